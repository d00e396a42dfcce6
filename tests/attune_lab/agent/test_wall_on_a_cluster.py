"""The catalog policy on a simulated cluster, with a real recipe, meets none of the rules."""

from __future__ import annotations

from attune_lab.agent import AttuneTuner
from attune_lab.agent.rules import Rulebook
from attune_lab.agent.wall import Draft, Standing, objections
from attune_lab.lessons import catalog as lessons
from attune_lab.tuning import TuneRequest, tune_recipe


class Watched(AttuneTuner):
    """The tuner, with every proposal put before the rules on what it knows itself."""

    def __init__(self, task):
        super().__init__(task)
        self.task, self.heard = task, []
        self.kept, self.latest = {task.baseline.digest}, None

    def ask(self):
        proposal = super().ask()
        if proposal is not None:
            draft = Draft(proposal.recipe, proposal.lesson, remeasure=proposal.remeasure)
            self.heard += objections(draft, self.standing())
        return proposal

    def tell(self, proposal, report):
        super().tell(proposal, report)
        self.kept.add(self._best.recipe.digest)
        self.latest = self._history.get(proposal.recipe)

    def standing(self):
        task, again = self.task, self._follow_up
        return Standing(
            rules=Rulebook(),
            baseline=task.baseline,
            cluster=task.cluster,
            space=task.space,
            cost_model=task.cost_model,
            catalog=lessons.load(),
            history=self._history,
            fits=lambda recipe: self._calibration.fits(self._prices.of(recipe)),
            kept=frozenset(self.kept),
            latest=self.latest,
            worth=lambda _: again is not None,
            unconfirmed=again.recipe if again is not None and again.remeasure else None,
            left=task.budget.left_for_search,
        )


def test_the_catalog_policy_is_never_refused_on_a_cluster(tmp_path):
    watched = []

    def factory(task):
        watched.append(Watched(task))
        return watched[-1]

    request = TuneRequest("glm-4.5-air", "32xH100-SXM5-80GB", "30x", seed=100, out=tmp_path / "out", logs=False)
    result = tune_recipe(request, factory=factory)
    assert sum(run["purpose"] == "search" for run in result["runs"]) >= 5
    assert [f"{rule.name}: {sentence}" for rule, sentence in watched[-1].heard] == []
