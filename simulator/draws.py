"""Random numbers that belong to a name: the same world, purpose and name always give the same draws."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *names: str) -> np.random.Generator:
    """A generator keyed by a world's seed and by what the draws are for; independent of any order of calls."""
    text = "\x1f".join(["attune.world", str(seed), *names])
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big"))
