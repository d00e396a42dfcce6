"""A campaign on a scripted cluster whose figures are known, of the small recipe and the real space and cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attune_lab.campaign import CampaignSpec, parse_budget, run_campaign
from attune_lab.contracts import Proposal, RunReport, TuningTask
from attune_lab.recipe import Recipe
from attune_lab.testing import FakeCluster, FakeGate, FakeVerdict, Outcome
from attune_lab.workbench import Workbench, open_workbench

RECIPE = Path(__file__).parents[1] / "cli" / "tiny.sh"
CLUSTER = "8xH200-SXM5-141GB"

Move = tuple[str | None, dict[str, Any], dict[str, Any]]
"""Lesson, parameters of the recipe it starts from (against the baseline), parameters it changes."""


@cache
def bench() -> Workbench:
    """The small recipe on one node."""
    return open_workbench(str(RECIPE), CLUSTER)


class Mover:
    """Proposes moves, each from the recipe that it names."""

    def __init__(self, task: TuningTask, moves: Sequence[Move]) -> None:
        self._task, self._moves = task, iter(moves)

    def ask(self) -> Proposal | None:
        """The next move."""
        move = next(self._moves, None)
        if move is None:
            return None
        lesson, start, edits = move
        space, base = self._task.space, self._task.space.apply(self._task.baseline, start)
        recipe = space.apply(base, edits)
        return Proposal(recipe, space.changed(base, recipe), "as scripted", lesson)

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Nothing is learnt."""


def run(
    folder: Path,
    moves: Sequence[Move],
    outcome: Callable[[dict[str, Any], str], Outcome],
    *,
    reject: Callable[[dict[str, Any]], str | None] = lambda values: None,
    refuse: Callable[[dict[str, Any]], bool] = lambda values: False,
    budget: str = "60x",
    seed: int = 0,
    cluster: type[FakeCluster] = FakeCluster,
) -> Any:
    """The result of the campaign. ``outcome(parameters, label)`` says how a run ends.

    ``reject`` gives the gate's reason against a final run, ``refuse`` whether it rejects settings without a run.
    """
    from attune_lab.space import search_space

    here = bench()
    space = search_space(here.baseline, here.cluster)

    def script(recipe: Recipe, steps: int, label: str) -> Outcome:
        return outcome(space.values(recipe), label)

    class Gate(FakeGate):
        def configuration(self, baseline: Recipe, candidate: Recipe) -> FakeVerdict:
            is_refused = refuse(space.values(candidate))
            return FakeVerdict("reject", ("a known defect",)) if is_refused else FakeVerdict("pass")

    return run_campaign(
        CampaignSpec("tiny.sh", here.baseline, CLUSTER, parse_budget(budget), "scripted", seed=seed),
        folder,
        cluster=cluster(script),
        tuner_factory=lambda task: Mover(task, moves),
        space=space,
        cost_model=here.cost_model,
        gate=Gate(lambda recipe: reject(space.values(recipe))),
    )
