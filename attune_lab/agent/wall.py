"""The search rules as a wall: what they object to in a proposal, whoever makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attune_lab.agent.history import History, Trial
from attune_lab.agent.moves import WITH_A_LAYOUT, is_small, resolve, touches_layout
from attune_lab.agent.rules import (
    CHECK_MEMORY,
    DIAGNOSE_FIRST,
    NOISE_BAND,
    ONE_LEVER,
    RE_MEASURE,
    RETRY_OOM,
    STOP,
    USE_CATALOG,
    Rule,
    Rulebook,
)
from attune_lab.agent.stopping import REAL_CHANCE
from attune_lab.contracts import CostModel, RunReport, UserError
from attune_lab.diagnosis import Diagnosis, diagnose
from attune_lab.lessons.catalog import Catalog, Lesson
from attune_lab.recipe import Recipe, Value
from attune_lab.recipe.effective import effective

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace
    from simulator.hardware import ClusterSpec

Edits = Mapping[str, Value]


@dataclass(frozen=True)
class Draft:
    """A proposal as the rules see it.

    Attributes:
        lesson: id of the catalog's lesson it rests on; None for none.
        symptom: the symptom it is meant to remove, where the proposer names one.
        remeasure: a recipe that ran is run again.
        chance: probability that it gains more than the noise band; None where nobody knows.
        cost: GPU-hours its run is expected to take; None where nobody knows.
    """

    recipe: Recipe
    lesson: str | None = None
    symptom: str | None = None
    remeasure: bool = False
    chance: float | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Standing:
    """What a campaign has come to when a draft is judged.

    Attributes:
        rules: those in force.
        baseline, cluster, space, cost_model, catalog: as in the task.
        history: what ran; ``latest`` is the trial told last.
        fits: whether a recipe is expected to fit, as far as the runs so far tell.
        kept: digests of the baseline and of every recipe that was kept as the best.
        worth: whether a retry of a recipe out of memory promises enough for a run.
        unconfirmed: a gain that is to be measured again before it counts.
        band: noise band of a search run, a fraction.
        left: GPU-hours left for the search.
    """

    rules: Rulebook
    baseline: Recipe
    cluster: ClusterSpec
    space: SearchSpace
    cost_model: CostModel
    catalog: Catalog
    history: History
    fits: Callable[[Recipe], bool]
    kept: frozenset[str]
    latest: Trial | None = None
    worth: Callable[[Recipe], bool] = lambda _: True
    unconfirmed: Recipe | None = None
    band: float = 0.0
    left: float = float("inf")
    _diagnoses: dict[str, Diagnosis] = field(default_factory=dict, init=False, repr=False, compare=False)
    _bases: dict[str, list[Trial]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def ran(self) -> list[Trial]:
        """The baseline and every recipe that ran or ran out of memory, in the order first run."""
        trials = [trial for trial in self.history if trial.ok or is_oom(trial)]
        if all(trial.recipe.digest != self.baseline.digest for trial in trials):
            trials.insert(0, Trial(self.baseline, self.cost_model.estimate([self.baseline])[0]))
        return trials

    def diagnosis(self, trial: Trial) -> Diagnosis:
        """The diagnosis of a trial's last run."""
        label = trial.reports[-1].label if trial.reports else ""
        key = f"{trial.recipe.digest}/{label}"
        if key not in self._diagnoses:
            nothing = RunReport(label="", status="ok", provenance="simulated", steps=0)
            report = trial.reports[-1] if trial.reports else nothing
            self._diagnoses[key] = diagnose(report, effective(trial.recipe, self.cluster), estimate=trial.estimate)
        return self._diagnoses[key]

    def bases(self, draft: Draft) -> list[Trial]:
        """The recipes that ran from which the draft is one lever away; itself, where it is to be measured again."""
        key = draft.recipe.digest
        if key not in self._bases:
            self._bases[key] = [trial for trial in self.ran() if self.is_one_lever(trial.recipe, draft.recipe)]
        return self._bases[key]

    def is_one_lever(self, before: Recipe, after: Recipe) -> bool:
        """Whether one lever leads from one recipe to the other; what must move with a lever counts with it."""
        if before.digest == after.digest:
            return True
        edits = {key: now for key, (_, now) in self.space.changed(before, after).items()}
        return any(self.leads(before, lever, after) for lever in self._levers(before, after, edits))

    def _levers(self, before: Recipe, after: Recipe, edits: Edits) -> Iterator[Edits]:
        """The levers that may have made ``edits``; each may have moved more than it names."""
        yield from ({key: value} for key, value in edits.items())
        if touches_layout(edits):
            yield {key: value for key, value in edits.items() if key in WITH_A_LAYOUT}
            yield {key: self.space.value(after, key) for key in WITH_A_LAYOUT if key in self.space.parameters}
        elif self._is_small_each(before, edits):
            yield edits
        for lesson in self.catalog.lessons:
            for move in lesson.moves:
                if (resolved := resolve(move, before, self.space)) and resolved.items() <= edits.items():
                    yield resolved

    def _is_small_each(self, before: Recipe, edits: Edits) -> bool:
        """Whether the cost model expects so little of each of ``edits`` that noise could hide it."""
        singles = [self.space.apply(before, {key: value}) for key, value in edits.items()]
        own, *estimates = self.cost_model.estimate([before, *singles])
        return all(not one.problems and is_small(own, one) for one in estimates)

    def leads(self, before: Recipe, edits: Edits, after: Recipe) -> bool:
        """Whether ``edits`` of one recipe give the other, in every setting that takes effect."""
        try:
            made = self.space.apply(before, edits)
            return made.digest == after.digest or effective(made, self.cluster) == effective(after, self.cluster)
        except UserError:
            return False

    def retry_of(self, draft: Draft) -> Trial | None:
        """The recipe out of memory that the draft is with more recomputation, or None."""
        for trial in self.ran():
            if is_oom(trial) and any(draft.recipe.digest == recipe.digest for recipe in self.stronger(trial.recipe)):
                return trial
        return None

    def stronger(self, recipe: Recipe) -> list[Recipe]:
        """``recipe`` with ever more recomputation."""
        found = []
        while edits := resolve({"recompute": "up"}, recipe, self.space):
            recipe = self.space.apply(recipe, edits)
            found.append(recipe)
        return found

    def label(self, trial: Trial) -> str:
        """How a person calls a trial."""
        return trial.reports[-1].label if trial.reports else "the baseline"


def is_oom(trial: Trial) -> bool:
    """Whether a trial ran out of memory and never ran well."""
    return not trial.ok and any(report.status == "oom" for report in trial.reports)


def objections(draft: Draft, standing: Standing) -> list[tuple[Rule, str]]:
    """Every rule in force that objects to the draft, with its sentence; empty where it may run."""
    found = ((rule, object_(draft, standing)) for rule, object_ in OBJECTIONS.items() if rule in standing.rules)
    return [(rule, sentence) for rule, sentence in found if sentence is not None]


def _one_lever(draft: Draft, standing: Standing) -> str | None:
    if standing.bases(draft) or standing.retry_of(draft):
        return None
    ran = standing.ran()
    nearest = min(ran, key=lambda trial: len(standing.space.changed(trial.recipe, draft.recipe)))
    names = sorted(standing.space.changed(nearest.recipe, draft.recipe))
    what = ", ".join(names) if len(names) > 1 else "settings that do not move with a lever by themselves"
    return f"against the nearest recipe that ran ({standing.label(nearest)}) it moves {what}: move one lever at a time"


def _diagnose_first(draft: Draft, standing: Standing) -> str | None:
    lesson = _lesson(draft, standing)
    if draft.remeasure or standing.retry_of(draft) or (lesson is None and draft.symptom is None):
        return None
    bases = _bases(draft, standing)
    shown = {symptom.name for base in bases for symptom in standing.diagnosis(base).symptoms}
    if not bases:  # more than one lever away from all that ran, as another rule says
        return None
    if draft.symptom is not None and draft.symptom not in shown:
        return f"the symptom {draft.symptom} does not show in the run it builds on; shown are {_listed(shown)}"
    if lesson is not None and draft.symptom is not None and draft.symptom not in lesson.symptoms:
        return f"{lesson.id} is no lesson for {draft.symptom}; its symptoms are {_listed(lesson.symptoms)}"
    if lesson is not None and not shown.intersection(lesson.symptoms):
        return f"none of the symptoms of {lesson.id} shows ({_listed(lesson.symptoms)}); shown are {_listed(shown)}"
    return None


def _use_catalog(draft: Draft, standing: Standing) -> str | None:
    if draft.remeasure or standing.retry_of(draft):
        return None
    lesson = _lesson(draft, standing)
    if lesson is None:
        named = f"{draft.lesson} is no lesson that can be acted on" if draft.lesson else "it names no lesson"
        return f"{named}; take a move of a lesson of the catalog"
    bases = _bases(draft, standing)
    holding = [base for base in bases if lesson.holds(standing.diagnosis(base).variables)]
    if not bases:  # more than one lever away from all that ran, as another rule says
        return None
    if not holding:
        return f"the preconditions of {lesson.id} do not hold here: {'; '.join(lesson.preconditions)}"
    if not any(_holds_move(lesson, base.recipe, draft.recipe, standing.space) for base in holding):
        moves = "; ".join(str(move) for move in lesson.moves)
        return f"what it changes holds no move of {lesson.id} ({moves})"
    return None


def _holds_move(lesson: Lesson, before: Recipe, after: Recipe, space: SearchSpace) -> bool:
    """Whether what changed holds one of the lesson's moves; that it holds no more is the matter of `ONE_LEVER`."""
    edits = {key: now for key, (_, now) in space.changed(before, after).items()}
    for move in lesson.moves:
        if "layout" in move:
            holds = any(key in WITH_A_LAYOUT for key in edits)
        elif "neighbour" in move:
            holds = any(now in space.neighbours(before, key) for key, now in edits.items())
        else:
            resolved = resolve(move, before, space)
            holds = resolved is not None and resolved.items() <= edits.items()
        if holds:
            return True
    return False


def _retry_oom(draft: Draft, standing: Standing) -> str | None:
    failed = standing.latest
    if failed is None or not is_oom(failed) or failed.recipe.digest in standing.kept:
        return None
    if standing.retry_of(draft) is failed:
        return None
    for recipe in standing.stronger(failed.recipe):
        level = standing.space.value(recipe, "recompute")
        estimate = standing.cost_model.estimate([recipe])[0]
        is_open = not estimate.problems and not standing.history.is_settled(recipe)
        if is_open and standing.fits(recipe) and standing.worth(recipe):
            return f"{standing.label(failed)} ran out of memory: try the same recipe with recompute = {level} first"
    return None


def _check_memory(draft: Draft, standing: Standing) -> str | None:
    known = standing.history.get(draft.recipe)
    if known is not None and known.ok:
        return None
    estimate = standing.cost_model.estimate([draft.recipe])[0]
    if estimate.problems or standing.fits(draft.recipe):
        return None
    expected, room = estimate.peak_memory_bytes / 1e9, estimate.memory_capacity_bytes / 1e9
    return (
        f"it is not expected to fit: the cost model has {expected:.1f} GB on the fullest stage, of {room:.1f} GB there "
        "are, and the runs so far correct that"
    )


def _re_measure(draft: Draft, standing: Standing) -> str | None:
    open_ = standing.unconfirmed
    if open_ is None or draft.remeasure or draft.recipe.digest == open_.digest or standing.retry_of(draft):
        return None
    bases = {base.recipe.digest for base in standing.bases(draft)}
    if open_.digest not in bases or bases & standing.kept:
        return None
    return "it builds on a gain of few noise bands that was measured once: measure that again first"


def _noise_band(draft: Draft, standing: Standing) -> str | None:
    bases = standing.bases(draft)
    if draft.remeasure or not bases or standing.retry_of(draft):
        return None
    open_ = standing.unconfirmed
    if any(base.recipe.digest in standing.kept or (open_ and base.recipe.digest == open_.digest) for base in bases):
        return None
    names = _listed(standing.label(base) for base in bases)
    return (
        f"it builds on {names}, which gained no more than the noise band of {standing.band:.1%}: build on what was kept"
    )


def _stop(draft: Draft, standing: Standing) -> str | None:
    if draft.cost is not None and draft.cost > standing.left:
        return f"its run costs {draft.cost:.3g} GPU-hours and {standing.left:.3g} are left for the search"
    if draft.remeasure or draft.chance is None or draft.chance >= REAL_CHANCE or standing.retry_of(draft):
        return None
    return (
        f"its chance to gain more than the noise band of {standing.band:.1%} is {draft.chance:.1%}, "
        f"below {REAL_CHANCE:.1%}: it is not worth a run"
    )


OBJECTIONS: Mapping[Rule, Callable[[Draft, Standing], str | None]] = {
    ONE_LEVER: _one_lever,
    DIAGNOSE_FIRST: _diagnose_first,
    USE_CATALOG: _use_catalog,
    RETRY_OOM: _retry_oom,
    CHECK_MEMORY: _check_memory,
    RE_MEASURE: _re_measure,
    NOISE_BAND: _noise_band,
    STOP: _stop,
}
"""What each rule objects to: a sentence, or None. None of them changes anything."""


def _bases(draft: Draft, standing: Standing) -> list[Trial]:
    """What the draft may build on: what is one lever away, or all that ran where levers may be moved together."""
    return standing.bases(draft) if ONE_LEVER in standing.rules else standing.ran()


def _lesson(draft: Draft, standing: Standing) -> Lesson | None:
    return next((lesson for lesson in standing.catalog.lessons if lesson.id == draft.lesson), None)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
