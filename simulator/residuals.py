"""What the physics leaves out of step time and memory: a pure function of world, model and job.

One part belongs to the layout and is shared by all its recipes. The other is a sum over levers: to each value of each
lever a world has a small opinion of its own, on every layout the same, beyond what the physics says of it. A kernel
that is slower than its table is so wherever it runs; what depends on the layout is the physics' affair, and the first
part's. Nothing belongs to whole combinations of levers, so that what one run shows of a lever helps to judge the next,
and the best recipe of a space can be proven to be the best.

Shape letters:  B = jobs,  L = levers,  2 = step time and memory.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from simulator.draws import Codes, key, normals, row_codes
from simulator.job import Floats, Jobs

LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")
"""With the layers of every stage, the columns of `Jobs` that are a layout."""

LEVERS = (
    "recompute", "sequence_parallel", "tp_comm_overlap", "dispatcher", "grouped_gemm", "permute_fusion",
    "router_fusion", "ep_overlap", "delay_wgrad", "shared_expert_overlap", "overlap_grad_reduce",
    "overlap_param_gather", "bucket_bytes", "cross_entropy_fusion", "host_tuned", "cuda_graph", "optimizer_offload",
    "expandable_segments", "nvls", "max_connections", "avoid_record_streams", "sm_margin", "precision",
    "moment_bytes", "grad_reduce_fp32",
)  # fmt: skip
"""Columns of `Jobs` that recipes of one model and batch differ in."""

# Relative standard deviations, of step time and of memory; those of levers are of all levers together. Prior: about
# what a calibrated model leaves between the layouts of one model on one accelerator, beyond a draw of its constants.
LAYOUT_SD = np.array([0.025, 0.025])
LEVERS_SD = np.array([0.012, 0.0125])

_PURPOSES = ("time", "memory")


def residuals(seed: int, jobs: Jobs) -> Floats:
    """Log-ratios of truth to physics of step time and of memory, shape (2, B)."""
    values = np.array([getattr(jobs, name) for name in LEVERS], dtype=np.float64)
    parts = lever_residuals(seed, jobs.model.name, LEVERS, values)
    total: Floats = layout_residuals(seed, jobs) + parts.sum(axis=1)
    return total


def layout_residuals(seed: int, jobs: Jobs) -> Floats:
    """The part that belongs to the layout, shape (2, B)."""
    sizes = np.array([getattr(jobs, name) for name in LAYOUT], dtype=np.int64).T
    codes = row_codes(np.concatenate((sizes, jobs.stage_layers), axis=1))
    parts: Floats = LAYOUT_SD[:, None] * normals(_keys(seed, jobs.model.name, ("layout",)), codes)
    return parts


def lever_residuals(seed: int, model: str, levers: tuple[str, ...], values: Floats) -> Floats:
    """The parts that belong to values of some of `LEVERS`, each at most ``LIMIT * LEVERS_SD / sqrt(L)``.

    Args:
        seed, model: of the world, of the jobs.
        levers: L' names.
        values: of each lever, shape (L', B).

    Returns:
        Parts of time and of memory, shape (2, L', B).
    """
    keys = _keys(seed, model, levers)[..., None]
    parts: Floats = (LEVERS_SD / np.sqrt(len(LEVERS)))[:, None, None] * normals(keys, values.view(np.uint64))
    return parts


@lru_cache(maxsize=1024)
def _keys(seed: int, model: str, names: tuple[str, ...]) -> Codes:
    """Keys of draws by purpose and name, shape (2, names)."""
    return np.array([[key(seed, purpose, model, name) for name in names] for purpose in _PURPOSES])
