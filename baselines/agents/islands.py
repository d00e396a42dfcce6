"""Populations on islands with an archive: the database of an evolutionary search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from baselines.common.history import Trial

if TYPE_CHECKING:
    import numpy as np

EXPLOIT = 0.7
"""How often a parent comes from the better half of its island. **Source:** OpenEvolve,
algorithmicsuperintelligence/openevolve@411fb59, default exploitation ratio."""


class Islands:
    """Trials that ran, on islands, fastest first.

    Args:
        count, size: islands, and members of each.
        archive: how many of the best of all islands are kept as inspirations.
    """

    def __init__(self, count: int, size: int, archive: int) -> None:
        self.populations: list[list[Trial]] = [[] for _ in range(count)]
        self.archive: list[Trial] = []
        self._size, self._archive_size = size, archive

    def add(self, island: int, trial: Trial) -> None:
        """Let ``trial`` live on an island, as long as it is among the fastest there, and in the archive likewise."""
        self.populations[island] = _fastest([*self.populations[island], trial], self._size)
        self.archive = _fastest([*self.archive, trial], self._archive_size)

    def migrate(self) -> None:
        """Send a copy of each island's fastest to the next island."""
        travellers = [population[:1] for population in self.populations]
        for place, visitors in enumerate(travellers):
            for trial in visitors:
                self.add((place + 1) % len(self.populations), trial)

    def parent(self, island: int, rng: np.random.Generator) -> Trial | None:
        """A member of an island: mostly from its better half, else from all of it; None while it is empty."""
        members = self.populations[island]
        if not members:
            return None
        better = members[: (len(members) + 1) // 2]
        pool = better if rng.random() < EXPLOIT else members
        return pool[rng.integers(len(pool))]

    def inspirations(self, parent: Trial, rng: np.random.Generator) -> list[Trial]:
        """The best of the archive and a random other member of it, neither of them ``parent``."""
        others = [trial for trial in self.archive if trial is not parent]
        if len(others) < 2:
            return others
        return [others[0], others[1 + rng.integers(len(others) - 1)]]


def _fastest(trials: Sequence[Trial], count: int) -> list[Trial]:
    distinct = {trial.recipe.digest: trial for trial in trials}
    return sorted(distinct.values(), key=lambda trial: trial.step_time_s or 0.0)[:count]
