"""Which move next: candidates from the catalog (or from the neighbourhood), priced by what is known so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attune_lab.agent.calibration import LIKELY, Calibration, expected_improvement
from attune_lab.agent.coordinates import Coordinates, Points, Priced
from attune_lab.agent.history import History, Trial
from attune_lab.agent.jumps import JumpFinder
from attune_lab.agent.moves import is_small, resolve, touches_layout
from attune_lab.agent.past import Past
from attune_lab.agent.prices import Draft, Edits, Prices
from attune_lab.agent.rules import CHECK_MEMORY, DIAGNOSE_FIRST, Rulebook
from attune_lab.agent.suspects import Suspects
from attune_lab.contracts import Estimate, Proposal
from attune_lab.diagnosis import Diagnosis
from attune_lab.lessons.catalog import Catalog, Lesson
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace

Floats = NDArray[np.float64]

NEVER_S = 1e9
"""Step time of a recipe that does not run: anything that runs is better."""

PRIOR_WEIGHT = 0.5
"""A catalog range counts as this many of its half-widths to the standard deviation: ranges come from other models
and clusters, so they are taken at twice their width."""

SEARCHES = frozenset({"layout", "neighbour"})
"""Moves that stand for many recipes."""

WORTH = 0.0005
"""A setting that is expected to gain less than this joins no others."""


@dataclass(frozen=True)
class Situation:
    """All that a policy decides on.

    Attributes:
        best: the trial to improve on.
        diagnosis: of its latest report.
        history, calibration, suspects: what the campaign has shown so far.
        evidence: lesson id -> (wins, losses) in this campaign.
        refused: (lesson id, edits, layout) that were tried without success.
    """

    best: Trial
    diagnosis: Diagnosis
    history: History
    calibration: Calibration
    suspects: Suspects
    evidence: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    refused: frozenset[tuple[Any, ...]] = frozenset()

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
        gain_here: the same before past campaigns are heard.
        fit_chance: probability that memory suffices.
        sound_chance: probability that it has no cause of a failure met so far.
        score: expected improvement times both chances.
    """

    recipe: Recipe
    edits: Edits
    why: str
    lesson: Lesson | None
    estimate: Estimate
    gain: float = 0.0
    gain_here: float = 0.0
    sd: float = 0.0
    fit_chance: float = 1.0
    sound_chance: float = 1.0
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

    def __init__(
        self, catalog: Catalog, appraiser: Appraiser, jump_finder: JumpFinder, space: SearchSpace, rules: Rulebook
    ) -> None:
        self._catalog, self._appraiser, self._jump_finder = catalog, appraiser, jump_finder
        self._space, self._rules = space, rules
        self._ranked: Points | None = None
        self._known: dict[tuple[str, str], list[Edits]] = {}

    def rank(self, situation: Situation) -> list[Candidate]:
        """See `Policy.rank`. The first move is a lesson's: the whole space is looked at once that has been seen."""
        drafts = self._singles(situation)
        open_ = [draft for draft in drafts if not self._is_refused(draft.lesson, draft.edits, situation)]
        singles = self._appraiser.appraise(open_, situation)
        others = self._together(drafts, situation)
        if situation.history.recipes_run > 1:
            others += self._jumps(situation)
        return _ranked(singles + self._appraiser.appraise(others, situation))

    def _relevant(self, situation: Situation) -> list[tuple[Lesson, str]]:
        """The lessons that apply, in the order of the catalog, each with the evidence for it."""
        found = []
        for lesson in self._catalog.lessons:
            symptom = situation.diagnosis.find(lesson.symptoms)
            if (symptom is not None or DIAGNOSE_FIRST not in self._rules) and lesson.holds(
                situation.diagnosis.variables
            ):
                found.append((lesson, symptom.evidence if symptom else "no symptom shows"))
        return found

    def _singles(self, situation: Situation) -> list[Candidate]:
        """The moves of all lessons that apply but for those to other layouts of the whole space."""
        best = situation.best.recipe
        moves: list[tuple[Edits, str, Lesson]] = []
        sweep: list[tuple[Edits, str, Lesson]] = []
        for lesson, why in self._relevant(situation):
            if any("neighbour" in move for move in lesson.moves):
                sweep += [
                    (edits, "one step from the best recipe, measured in case the model is wrong", lesson)
                    for edits in self._edits(lesson, best)
                ]
            else:
                moves += [(edits, why, lesson) for edits in self._edits(lesson, best)]
        moves += sweep  # a recipe that a lesson proposes too is the lesson's
        return self._appraiser.candidates(best, moves)

    def _edits(self, lesson: Lesson, recipe: Recipe) -> list[Edits]:
        """What the moves of a lesson change in a recipe, found once; those to other layouts of the space left out."""
        key = (lesson.id, recipe.digest)
        if key not in self._known:
            found: list[Edits] = []
            for move in lesson.moves:
                if "neighbour" in move:
                    found += neighbours(self._space, recipe)
                elif "layout" not in move and (edits := resolve(move, recipe, self._space)):
                    found.append(edits)
            self._known[key] = found
        return self._known[key]

    def _together(self, singles: Sequence[Candidate], situation: Situation) -> list[Candidate]:
        """The settings that are expected to gain too little to be told from noise one by one, in one recipe; what was
        measured of them without being convincing is in what is expected.
        """
        expected = [one for one in self._appraiser.expect(singles, situation) if one.gain > WORTH]
        edits: dict[str, Any] = {}
        lesson = None
        for single in sorted(expected, key=lambda single: -single.gain):
            is_open = single.sound_chance >= LIKELY and not edits.keys() & single.edits.keys()
            if is_open and is_small(situation.best.estimate, single.estimate) and not touches_layout(single.edits):
                edits |= single.edits
                lesson = lesson or single.lesson
        if lesson is None or len(edits) < 2 or self._is_refused(lesson, edits, situation):
            return []
        why = f"{len(edits)} settings whose single effects noise would hide"
        return self._appraiser.candidates(situation.best.recipe, [(edits, why, lesson)])

    def _jumps(self, situation: Situation) -> list[Candidate]:
        """Other layouts of the whole space, where a lesson says so."""
        jumping = [lesson for lesson, _ in self._relevant(situation) if any("layout" in move for move in lesson.moves)]
        if not jumping:
            return []
        best = situation.best.recipe

        def scores(drafts: Sequence[Draft]) -> Floats:
            if self._ranked is None:  # the same drafts each time, and a thousand of them
                self._ranked = self._appraiser.coordinates.of(drafts)
            return self._appraiser.look(drafts, situation, self._ranked).scores

        found = self._jump_finder.find(best, self._appraiser.coordinates.values(best), scores)
        why = f"among the {len(found)} layouts that promise most by the cost model and the runs so far"
        return [Candidate(draft.recipe, move, why, jumping[0], draft.estimate) for move, draft in found]

    def _is_refused(self, lesson: Lesson | None, edits: Edits, situation: Situation) -> bool:
        return self._appraiser.refusal(situation.best.recipe, lesson.id if lesson else None, edits) in situation.refused


class NeighbourPolicy:
    """The search without a catalog: neighbours of the best recipe in the order of the space."""

    def __init__(self, appraiser: Appraiser, space: SearchSpace) -> None:
        self._appraiser, self._space = appraiser, space

    def rank(self, situation: Situation) -> list[Candidate]:
        """See `Policy.rank`; the order is the space's, whatever the prices."""
        best = situation.best.recipe
        moves = [(edits, "next neighbour", None) for edits in neighbours(self._space, best)]
        return self._appraiser.appraise(self._appraiser.candidates(best, moves), situation)


@dataclass(frozen=True)
class Look:
    """What is expected of some recipes; attributes as those of `Candidate`, shape (n,) each."""

    gains: Floats
    sds: Floats
    fit_chances: Floats
    sound_chances: Floats

    @property
    def scores(self) -> Floats:
        """See `Candidate.score`."""
        return np.asarray(expected_improvement(self.gains, self.sds) * self.fit_chances * self.sound_chances)


class Appraiser:
    """Says what recipes promise, by the cost model and what the campaign has shown so far."""

    def __init__(self, prices: Prices, coordinates: Coordinates, rules: Rulebook, past: Past | None = None) -> None:
        self.coordinates = coordinates
        self._prices, self._rules, self._past = prices, rules, past

    def candidates(self, recipe: Recipe, moves: Sequence[tuple[Edits, str, Lesson | None]]) -> list[Candidate]:
        """Candidates from ``recipe``: edits, the evidence for them and the lesson they come from."""
        drafts = self._prices.edited(recipe, [edits for edits, _, _ in moves])
        return [
            Candidate(draft.recipe, edits, why, lesson, draft.estimate)
            for (edits, why, lesson), draft in zip(moves, drafts, strict=True)
        ]

    def appraise(self, drafts: Sequence[Candidate], situation: Situation) -> list[Candidate]:
        """Those of ``drafts`` that are launchable, new and likely to run, with what they promise."""
        seen = self.expect([draft for draft in drafts if not situation.history.is_settled(draft.recipe)], situation)
        return [one for one in seen if one.fit_chance >= LIKELY and one.sound_chance >= LIKELY]

    def expect(self, drafts: Sequence[Candidate], situation: Situation) -> list[Candidate]:
        """Those of ``drafts`` that are launchable, with what they promise."""
        fresh = [draft for draft in _distinct(drafts) if not draft.estimate.problems]
        if not fresh:
            return []
        look = self.look(fresh, situation)
        columns = zip(look.gains.tolist(), look.sds.tolist(), strict=True)
        blended = [_blend(*column, draft, situation) for column, draft in zip(columns, fresh, strict=True)]
        weighed = [self._weighed(*column, draft) for column, draft in zip(blended, fresh, strict=True)]
        gains, sds, sound = (np.array(column) for column in zip(*weighed, strict=True))
        look = Look(gains, sds, look.fit_chances, look.sound_chances * sound)
        figures = (look.gains, look.sds, look.fit_chances, look.sound_chances, look.scores)
        names = ("gain_here", "gain", "sd", "fit_chance", "sound_chance", "score")
        rows = zip([gain for gain, _ in blended], *(column.tolist() for column in figures), strict=True)
        return [replace(draft, **dict(zip(names, row, strict=True))) for draft, row in zip(fresh, rows, strict=True)]

    def _weighed(self, gain: float, sd: float, draft: Candidate) -> tuple[float, float, float]:
        """Expected gain, its spread and the chance not to fail, with what the past says."""
        if self._past is None or draft.lesson is None:
            return gain, sd, 1.0
        return self._past.weighed(draft.lesson.id, draft.edits, gain, sd)

    def look(self, items: Sequence[Priced], situation: Situation, points: Points | None = None) -> Look:
        """What is expected of ``items``, which have estimates; ``points`` where they are known as such already."""
        points = self.coordinates.of(items) if points is None else points
        errors, sds = situation.calibration.error(points)
        fits = situation.calibration.fit_chance(points) if CHECK_MEMORY in self._rules else np.ones(len(items))
        sound = np.ones(len(items))
        if situation.suspects:
            sound = situation.suspects.chance([self.coordinates.values(item.recipe) for item in items])
        return Look(situation.log_time - points.log_times - errors, sds, fits, sound)

    def refusal(self, recipe: Recipe, lesson: str | None, edits: Edits) -> tuple[Any, ...]:
        """What identifies a move tried from an equivalent state: lesson, edits, and the layout it started from."""
        values = self.coordinates.values(recipe)
        layout = tuple(values.get(key) for key in (*LAYOUT, "recompute"))
        return (lesson, tuple(sorted(edits.items(), key=lambda item: item[0])), layout)


def _ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """By falling score, each recipe once."""
    return sorted(_distinct(candidates), key=lambda candidate: (-candidate.score, candidate.recipe.digest))


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
    trust = (1 + wins) / (1 + wins + losses)
    prior_mean, prior_sd = trust * (best + worst) / 2, max((best - worst) / 2 / PRIOR_WEIGHT, sd) / trust
    weight = prior_sd**2 / (prior_sd**2 + sd**2) if sd > 0 else 1.0
    return weight * mean + (1 - weight) * prior_mean, sd * math.sqrt(weight)


def _distinct(drafts: Iterable[Candidate]) -> list[Candidate]:
    """The first draft of every recipe."""
    return list({draft.recipe.digest: draft for draft in reversed(list(drafts))}.values())[::-1]


def neighbours(space: SearchSpace, recipe: Recipe) -> list[Edits]:
    """Every move of one parameter to a value next to its own, in the order of the space."""
    return [{key: value} for key in space.parameters for value in space.neighbours(recipe, key)]


def proposal(candidate: Candidate, space: SearchSpace, before: Recipe, past: str = "") -> Proposal:
    """What the campaign is asked to run: the lever in ``changed``, the symptom and the predicted effect as reason.

    Args:
        candidate: what to run, ``before`` what it is edited from.
        space: says what changes between the two.
        past: how past campaigns weigh in, in words (`Past.words`).
    """
    effect = f"{math.expm1(candidate.gain):+.1%} tokens/s expected" if abs(candidate.gain) < 2 else "should run"
    effect += f" ({past})" if past else ""
    return Proposal(
        recipe=candidate.recipe,
        changed=dict(space.changed(before, candidate.recipe)),
        reason=f"{candidate.why}; {effect}",
        lesson=candidate.lesson.id if candidate.lesson else None,
        predicted={
            "step_time_s": candidate.estimate.step_time_s,
            "peak_memory_bytes": candidate.estimate.peak_memory_bytes,
            "gain": math.expm1(min(candidate.gain, 2.0)),
            "gain_sd": min(candidate.sd, 2.0),
        },
    )
