"""Which move next: candidates from the catalog (or from the neighbourhood), priced by what is known so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from attune_lab.agent.calibration import Calibration, MemoryCheck, expected_improvement
from attune_lab.agent.history import History, Trial
from attune_lab.agent.jumps import JumpFinder
from attune_lab.agent.moves import resolve
from attune_lab.agent.rules import CHECK_MEMORY, DIAGNOSE_FIRST, Rulebook
from attune_lab.contracts import CostModel, Estimate, Proposal
from attune_lab.diagnosis import Diagnosis
from attune_lab.lessons.catalog import Catalog, Lesson
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe, Value

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace

NEVER_S = 1e9
"""Step time of a recipe that does not run: anything that runs is better."""

PRIOR_WEIGHT = 0.5
"""A catalog range counts as this many of its half-widths to the standard deviation: ranges come from other models
and clusters, so they are taken at twice their width."""

SEARCHES = frozenset({"layout", "neighbour"})
"""Moves that stand for many recipes."""

Edits = Mapping[str, Value]


@dataclass(frozen=True)
class Situation:
    """All that a policy decides on.

    Attributes:
        best: the trial to improve on.
        diagnosis: of its latest report.
        history, calibration, memory: what the campaign has shown so far.
        evidence: lesson id -> (wins, losses) in this campaign.
        refused: (lesson id, edits, layout) that were tried without success.
        broken: (setting, value) that made a run fail.
    """

    best: Trial
    diagnosis: Diagnosis
    history: History
    calibration: Calibration
    memory: MemoryCheck
    evidence: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    refused: frozenset[tuple[Any, ...]] = frozenset()
    broken: frozenset[tuple[str, Value]] = frozenset()

    @property
    def log_time(self) -> float:
        """Log of the step time to beat."""
        return math.log(self.best.step_time_s or NEVER_S)


@dataclass(frozen=True)
class Candidate:
    """A recipe that could be run next.

    Attributes:
        why: the evidence that suggested it.
        gain: expected log gain in tokens/s, ``sd`` its standard deviation.
        fit_chance: probability that it does not run out of memory.
        score: expected improvement times ``fit_chance``.
    """

    recipe: Recipe
    edits: Edits
    why: str
    lesson: Lesson | None
    estimate: Estimate
    gain: float = 0.0
    sd: float = 0.0
    fit_chance: float = 1.0
    score: float = 0.0


class Policy(Protocol):
    """Ranks what could be run next, best first."""

    def rank(self, situation: Situation) -> list[Candidate]:
        """Candidates that are launchable, new and allowed by the rules; empty when there is nothing left."""
        ...


class CatalogPolicy:
    """Deterministic ranking of the catalog's moves and of layout jumps by expected improvement.

    The expected gain of a move blends the cost model, corrected by this campaign's `Calibration`, with the range of
    the lesson, each weighted by its precision; the range loses weight with every loss of the lesson.
    """

    def __init__(self, catalog: Catalog, space: SearchSpace, cost_model: CostModel, rules: Rulebook) -> None:
        self._catalog, self._space, self._cost_model, self._rules = catalog, space, cost_model, rules
        self._jump_finder = JumpFinder(space, cost_model)

    def rank(self, situation: Situation) -> list[Candidate]:
        """See `Policy.rank`."""
        return price(self._from_lessons(situation), situation, self._rules)

    def _from_lessons(self, situation: Situation) -> list[Candidate]:
        """Moves of all lessons that apply, in the order of the catalog."""
        drafts: list[tuple[Recipe, Edits, str, Lesson]] = []
        sweep: list[tuple[Recipe, Edits, str, Lesson]] = []
        jumps: list[Candidate] = []
        best = situation.best.recipe
        for lesson in self._catalog.lessons:
            symptom = situation.diagnosis.find(lesson.symptoms)
            if (symptom is None and DIAGNOSE_FIRST in self._rules) or not lesson.holds(situation.diagnosis.variables):
                continue
            why = symptom.evidence if symptom else "no symptom shows"
            for move in lesson.moves:
                if "layout" in move:
                    jumps += self._jumps(situation, lesson)
                elif "neighbour" in move:
                    sweep += [
                        (self._space.apply(best, edits), edits, "measured, whatever the model expects", lesson)
                        for edits in neighbours(self._space, best)
                    ]
                elif edits := resolve(move, best, self._space):
                    drafts.append((self._space.apply(best, edits), edits, why, lesson))
        drafts += sweep  # a recipe that a lesson proposes too is the lesson's
        estimates = self._cost_model.estimate([recipe for recipe, *_ in drafts])
        singles = [
            Candidate(recipe, edits, why, lesson, estimate)
            for (recipe, edits, why, lesson), estimate in zip(drafts, estimates, strict=True)
            if not self._is_refused(lesson, edits, situation)
        ]
        return singles + jumps

    def _jumps(self, situation: Situation, lesson: Lesson) -> list[Candidate]:
        best = situation.best.recipe
        limit = 1.0 + situation.memory.margin if CHECK_MEMORY in self._rules else math.inf
        jumps = self._jump_finder.find(best, memory_limit=limit, broken=situation.broken)
        why = f"best of {len(jumps)} layouts that the cost model expects to fit"
        return [Candidate(j.recipe, _edits(self._space, best, j.recipe), why, lesson, j.estimate) for j in jumps]

    def _is_refused(self, lesson: Lesson, edits: Edits, situation: Situation) -> bool:
        return refusal(self._space, situation.best.recipe, lesson.id, edits) in situation.refused


class NeighbourPolicy:
    """The search without a catalog: neighbours of the best recipe in the order of the space."""

    def __init__(self, space: SearchSpace, cost_model: CostModel, rules: Rulebook) -> None:
        self._space, self._cost_model, self._rules = space, cost_model, rules

    def rank(self, situation: Situation) -> list[Candidate]:
        """See `Policy.rank`; the order is the space's, whatever the prices."""
        best = situation.best.recipe
        edits = neighbours(self._space, best)
        recipes = [self._space.apply(best, edit) for edit in edits]
        estimates = self._cost_model.estimate(recipes)
        drafts = [
            Candidate(recipe, edit, "next neighbour", None, estimate)
            for recipe, edit, estimate in zip(recipes, edits, estimates, strict=True)
        ]
        order = {recipe.digest: place for place, recipe in enumerate(recipes)}
        priced = price(drafts, situation, self._rules)
        return sorted(priced, key=lambda candidate: order[candidate.recipe.digest])


def price(drafts: Sequence[Candidate], situation: Situation, rules: Rulebook) -> list[Candidate]:
    """The candidates among ``drafts`` that are launchable, new and allowed, by falling score."""
    open_drafts = [draft for draft in _distinct(drafts) if _is_open(draft, situation, rules)]
    if not open_drafts:
        return []
    errors, sds = situation.calibration.error([draft.recipe for draft in open_drafts])
    priced = []
    for draft, error, sd in zip(open_drafts, errors, sds, strict=True):
        mean = situation.log_time - math.log(draft.estimate.step_time_s) - float(error)
        gain, spread = _blend(mean, float(sd), draft, situation)
        chance = situation.memory.chance(draft.estimate) if CHECK_MEMORY in rules else 1.0
        score = expected_improvement(gain, spread) * chance
        priced.append(replace(draft, gain=gain, sd=spread, fit_chance=chance, score=score))
    return sorted(priced, key=lambda candidate: (-candidate.score, candidate.recipe.digest))


def _blend(mean: float, sd: float, draft: Candidate, situation: Situation) -> tuple[float, float]:
    """Precision-weighted mean of the model's gain and the lesson's range.

    A jump or a sweep names no lever of its own, so no range speaks for it; nor does one where nothing runs yet.
    """
    lesson = draft.lesson
    names_no_lever = lesson is not None and any(SEARCHES & move.keys() for move in lesson.moves)
    if lesson is None or lesson.step_time_pct is None or names_no_lever or situation.best.step_time_s is None:
        return mean, sd
    best, worst = (-math.log1p(percent / 100.0) for percent in lesson.step_time_pct)
    wins, losses = situation.evidence.get(lesson.id, (0, 0))
    trust = (1 + wins + lesson.wins) / (1 + wins + lesson.wins + losses + lesson.losses)
    prior_mean, prior_sd = trust * (best + worst) / 2, max((best - worst) / 2 / PRIOR_WEIGHT, sd) / trust
    weight = prior_sd**2 / (prior_sd**2 + sd**2) if sd > 0 else 1.0
    return weight * mean + (1 - weight) * prior_mean, sd * math.sqrt(weight)


def _distinct(drafts: Iterable[Candidate]) -> list[Candidate]:
    """The first draft of every recipe."""
    return list({draft.recipe.digest: draft for draft in reversed(list(drafts))}.values())[::-1]


def _is_open(draft: Candidate, situation: Situation, rules: Rulebook) -> bool:
    if draft.estimate.problems or situation.history.is_settled(draft.recipe):
        return False
    if any(item in situation.broken for item in draft.edits.items()):
        return False
    return CHECK_MEMORY not in rules or situation.memory.fits(draft.estimate)


def _edits(space: SearchSpace, before: Recipe, after: Recipe) -> dict[str, Value]:
    return {key: now for key, (_, now) in space.changed(before, after).items()}


def neighbours(space: SearchSpace, recipe: Recipe) -> list[Edits]:
    """Every move of one parameter to a value next to its own, in the order of the space."""
    return [{key: value} for key in space.parameters for value in space.neighbours(recipe, key)]


def refusal(space: SearchSpace, recipe: Recipe, lesson: str | None, edits: Edits) -> tuple[Any, ...]:
    """What identifies a move tried from an equivalent state: lesson, edits, and the layout it started from."""
    values = space.values(recipe)
    layout = tuple(values.get(key) for key in (*LAYOUT, "recompute"))
    return (lesson, tuple(sorted(edits.items(), key=lambda item: item[0])), layout)


def proposal(candidate: Candidate, space: SearchSpace, before: Recipe) -> Proposal:
    """What the campaign is asked to run: the lever in ``changed``, the symptom and the predicted effect as reason."""
    effect = f"{math.expm1(candidate.gain):+.1%} tokens/s expected" if abs(candidate.gain) < 2 else "should run"
    return Proposal(
        recipe=candidate.recipe,
        changed=dict(space.changed(before, candidate.recipe)),
        reason=f"{candidate.why}; {effect}",
        lesson=candidate.lesson.id if candidate.lesson else None,
        predicted={
            "step_time_s": candidate.estimate.step_time_s,
            "peak_memory_bytes": candidate.estimate.peak_memory_bytes,
            "gain": math.expm1(min(candidate.gain, 2.0)),
        },
    )
