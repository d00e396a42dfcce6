"""Which parts of a model sit on which pipeline stage.

Shape letters:  B = jobs,  P = pipeline stages of the deepest job (zero-padded).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.job import Jobs
from simulator.models import layer_kinds

Floats = NDArray[np.float64]

_MIXERS = {"attention": "*", "mamba": "M", "mlp": "-", "moe": "E"}
"""Letter of each part in the pattern of a hybrid."""


def layer_parts(jobs: Jobs) -> dict[str, Floats]:
    """How many of ``attention``, ``mamba``, ``mlp`` and ``moe`` every stage's layers hold, shape (B, P) each.

    A plain transformer layer holds attention and one MLP, and the first layers' are dense. A layer of a hybrid is
    one mixer: stages take the letters of its pattern one after the other.

    Raises:
        ValueError: a hybrid pattern with unknown letters.
    """
    layers = jobs.stage_layers.astype(np.float64)
    if jobs.model.hybrid:
        return _hybrid_parts(jobs)
    dense = dense_layers(jobs)
    return {"attention": layers, "mamba": np.zeros_like(layers), "mlp": dense, "moe": layers - dense}


def dense_layers(jobs: Jobs) -> Floats:
    """Layers with a dense MLP on every stage, shape (B, P): the model's first ones, dealt out chunk by chunk."""
    layers = jobs.stage_layers.astype(np.float64)
    if not jobs.model.experts:
        return layers
    chunk = layers / jobs.vpp[:, None]
    round_layers = chunk.sum(axis=1, keepdims=True)
    dense, rounds = np.zeros_like(layers), 0
    while rounds < jobs.vpp.max() and np.any(jobs.model.first_dense_layers > rounds * round_layers):
        before = rounds * round_layers + np.cumsum(chunk, axis=1) - chunk
        dense += np.clip(jobs.model.first_dense_layers - before, 0, chunk) * (rounds < jobs.vpp[:, None])
        rounds += 1
    return dense


def _hybrid_parts(jobs: Jobs) -> dict[str, Floats]:
    """The same of a hybrid, exact without interleaving; chunks of a stage hold the model's average mixture."""
    layer_kinds(jobs.model)  # refuses unknown letters
    end = np.cumsum(jobs.stage_layers, axis=1)
    whole = jobs.vpp[:, None] == 1
    parts = {}
    for part, letter in _MIXERS.items():
        before = np.concatenate([[0], np.cumsum([letter == mixer for mixer in jobs.model.hybrid])])
        there = before[end] - before[end - jobs.stage_layers]
        average = jobs.stage_layers * before[-1] / jobs.model.layers
        parts[part] = np.where(whole, there, average).astype(np.float64)
    return parts
