"""What finished campaigns say of a move, and how it is weighed against the cost model's word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attune_lab.lessons.evidence import Context, Effect, Experience


class Past:
    """Past campaigns, asked from one place."""

    def __init__(self, experience: Experience, context: Context) -> None:
        self._experience, self._context = experience, context

    def weighed(
        self, lesson: str | None, edits: Mapping[str, Any], gain: float, sd: float
    ) -> tuple[float, float, float]:
        """Expected log gain of a move and its spread as past surprises correct them, and its chance not to fail.

        Both the model's error here (``sd``) and the surprise elsewhere are normal; they are combined by precision, so
        that what this campaign has measured itself outweighs what others have.

        Args:
            lesson, edits: the move.
            gain, sd: expected by the cost model and the runs of this campaign.
        """
        effect = self._effect(lesson, edits)
        if effect is None:
            return gain, sd, 1.0
        weight = sd**2 / (sd**2 + effect.surprise_sd**2) if sd > 0 else 0.0
        return gain + weight * effect.surprise, sd * math.sqrt(1.0 - weight), 1.0 - effect.failure_chance

    def words(self, lesson: str | None, edits: Mapping[str, Any], gain: float) -> str:
        """``the model says +8.3%, 4 past tries -0.3%`` of a move; empty where the past is silent.

        Args:
            lesson, edits: the move.
            gain: as in `weighed`.
        """
        effect = self._effect(lesson, edits)
        if effect is None:
            return ""
        tries = "1 past try" if effect.tries == 1 else f"{effect.tries} past tries"
        return f"the model says {math.expm1(gain):+.1%}, {tries} {math.expm1(gain + effect.surprise):+.1%}"

    def _effect(self, lesson: str | None, edits: Mapping[str, Any]) -> Effect | None:
        return self._experience.effect(lesson, edits, self._context) if lesson else None
