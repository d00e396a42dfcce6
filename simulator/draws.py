"""Random numbers that belong to a name: the same world, purpose and name always give the same draws.

Few draws of any kind come from a `generator`. A number for each of many things comes from `normals`, which hashes
arrays of codes, so that a whole search space costs a few passes over its columns.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint64]
Floats = NDArray[np.float64]

LIMIT = 3.0
"""No draw of `normals` is further from 0; what is drawn can then be bounded."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BELOW = 0.0013498980316300933  # of a standard normal distribution lies below -LIMIT


def generator(seed: int, *names: str) -> np.random.Generator:
    """A generator keyed by a world's seed and by what the draws are for; independent of any order of calls."""
    return np.random.default_rng(int.from_bytes(_digest(seed, names)[:16], "big"))


def key(seed: int, *names: str) -> np.uint64:
    """The key of `normals` for a world's seed and for what the draws are for."""
    return np.uint64(int.from_bytes(_digest(seed, names)[:8], "big"))


def _digest(seed: int, names: tuple[str, ...]) -> bytes:
    text = "\x1f".join(["attune.world", str(seed), *names])
    return hashlib.sha256(text.encode()).digest()


def mixed(codes: Any) -> Codes:
    """Codes in which every bit depends on every bit of ``codes``; distinct codes stay distinct.

    **Source:** Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014 (SplitMix64).
    """
    bits: Codes = np.asarray(codes, dtype=np.uint64) + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def row_codes(columns: NDArray[np.int64]) -> Codes:
    """One code for each row of whole numbers, shapes (rows, columns) -> (rows,).

    A sum of columns times odd numbers modulo 2^64: columns of zeros at the end change nothing, and two rows of small
    numbers that differ have one code with a chance of about 2^-64.
    """
    odd = mixed(np.arange(columns.shape[1])) | np.uint64(1)
    codes: Codes = (columns.astype(np.uint64) * odd).sum(axis=1, dtype=np.uint64)
    return codes


def normals(keys: Any, codes: Codes) -> Floats:
    """A standard normal number for each pair of key and code (broadcast), none beyond `LIMIT`.

    Args:
        keys: as from `key`, one or an array.
        codes: what the numbers belong to.
    """
    from scipy.special import ndtri

    bits = mixed(mixed(codes) ^ keys) >> np.uint64(11)
    share = (bits.astype(np.float64) + 0.5) / 2.0**53
    drawn: Floats = ndtri(_BELOW + (1 - 2 * _BELOW) * share)
    return drawn
