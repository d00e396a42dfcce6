"""When to stop: what is left of the budget is the user's to use, unless nothing left has a chance to be worth it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attune_lab.agent.policy import Candidate

REAL_CHANCE = 0.005
"""A candidate with a smaller probability of a gain beyond the noise band is not run: one run in two hundred would
pay, and the budget is there to be used."""

NOTHING_LEFT = "no move from the best recipe is left that is new, allowed, and likely to fit and to run"
"""Why a search ends that has no candidate at all."""


@dataclass(frozen=True)
class StopRule:
    """What decides whether a candidate's run is worth making.

    Attributes:
        band: noise band of a run, a fraction.
        reliability: share of recipes that run at all.
        left: GPU-hours left for the search.
        cost: GPU-hours that a candidate's run is expected to take.
    """

    band: float
    reliability: float
    left: float
    cost: Callable[[Candidate], float]

    def worthwhile(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        """The candidates worth a run, in the order given."""
        return [candidate for candidate in self._promising(ranked) if not self.cost(candidate) > self.left]

    def chance(self, candidate: Candidate) -> float:
        """Probability that the candidate runs, and beats the best by more than the noise band."""
        margin = candidate.gain - math.log1p(self.band)
        beats = 0.5 * math.erfc(-margin / candidate.sd / math.sqrt(2.0)) if candidate.sd > 0 else float(margin > 0)
        return beats * candidate.fit_chance * candidate.sound_chance * self.reliability

    def reason(self, ranked: Sequence[Candidate]) -> str:
        """Why none of ``ranked`` is worth a run: one sentence with the figures it rests on."""
        if not ranked:
            return NOTHING_LEFT
        if promising := self._promising(ranked):
            cheapest = min(self.cost(candidate) for candidate in promising)
            return f"the next run costs {cheapest:.3g} GPU-hours and {self.left:.3g} are left for the search"
        best = max(ranked, key=self.chance)
        return (
            f"the best of {len(ranked)} moves left promises {math.expm1(min(best.gain, 2.0)):+.1%} and has a chance of "
            f"{self.chance(best):.1%} to gain more than the noise band of {self.band:.1%}"
        )

    def _promising(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        return [candidate for candidate in ranked if self.chance(candidate) >= REAL_CHANCE]
