"""How large batches are worked through."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

CHUNK = 4096
"""Jobs priced at a time: enough to hide Python, few enough that what is computed of them stays in a core's cache."""

_LARGEST = 31 * 2**20  # bytes; above 32 MiB the C library no longer learns from a block


def chunks(size: int, length: int = CHUNK) -> Iterator[slice]:
    """Slices that cover ``size`` jobs in order, ``length`` at a time."""
    return (slice(start, start + length) for start in range(0, size, length))


@cache
def keep_freed_memory() -> None:
    """Lets the C library keep freed arrays for the next chunk.

    glibc gives freed blocks back to the system, and the next chunk pays for each of their pages again, unless they
    are smaller than the largest block freed before: so one is allocated, not touched, and freed.

    **Source:** glibc ``mallopt(3)``, dynamic adjustment of ``M_MMAP_THRESHOLD`` and ``M_TRIM_THRESHOLD``.
    """
    np.empty(_LARGEST, dtype=np.uint8)
