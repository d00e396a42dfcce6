"""Dynamic programming over the layers of a model: for each pipeline, the fastest strategy of every layer that fits.

Galvatron (arXiv 2211.13878, VLDB 2022; code PKU-DAIR/Hetu-Galvatron) finds, for each pipeline depth and micro-batch,
the parallel strategy of every layer by dynamic programming over layers and discretised memory, with the cost of
changing the strategy between two layers, on a model of time and memory.

Faithful: the outer loop over pipelines and micro-batches, the recurrence over (layer, memory used, strategy), the
transition costs, the best plans run in order. Reconstructed: the profile of a layer. A strategy's layer takes an equal
share of the step that the cost model sees when all layers use it, and so of its memory, so that a uniform plan costs
what the cost model says. All layers of a recipe must use one strategy here, where Galvatron may mix them: the answer
is rounded to the strategies that occur in it, each for all layers. Added: measured step times and peaks correct the
predictions before the next plan, so that a plan that ran out of memory makes the following ones leaner.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attune_lab.recipe import Value
from baselines.common.offsets import Floats
from baselines.common.planner import Planner
from baselines.common.pricelist import ROOM, Priced, ranked

PIPELINE = ("pp", "vpp", "mbs")
"""What the outer loop goes over: the pipeline, and by the micro-batch the number of its passes."""

STRATEGY = ("tp", "cp", "ep", "etp", "recompute", "dispatcher", "ep_overlap", "tp_comm_overlap")
"""What makes a layer's strategy."""

MAX_STRATEGIES = 8
"""Strategies of each pipeline that the recurrence chooses from: the fastest, and the leanest of the others."""

MAX_PIPELINES = 12
"""Pipelines planned for; the others are slower at their best."""

STEPS_OF_MEMORY = 64
"""Units that the memory left to the layers is divided into."""


def plan_layers(seconds: Floats, memory: NDArray[np.int64], room: int, switch: Floats) -> tuple[float, list[int]]:
    """(seconds, strategy of each layer) of the fastest plan that fits; (inf, []) where none does.

    Args:
        seconds: of each layer under each strategy, shape (L, S).
        memory: units that it takes, shape (L, S).
        room: units in all.
        switch: seconds of going from one strategy to another between two layers, shape (S, S).

    **Source:** arXiv 2211.13878, section 3.3: C(L, E, S_j) = min over S_i of
    C(L-1, E - O(L, S_j), S_i) + c(L, S_j) + R(L, S_i, S_j).
    """
    layers, strategies = seconds.shape
    cost = np.zeros((room + 1, strategies))  # best time of the layers so far within so many units, by the last one's
    came_from = np.zeros((layers, room + 1, strategies), dtype=np.int64)
    for layer in range(layers):
        joined = cost[:, :, None] + (switch if layer else 0.0 * switch)
        came_from[layer] = joined.argmin(axis=1)
        before = joined.min(axis=1)
        cost = np.full_like(cost, np.inf)
        for s, units in enumerate(memory[layer]):
            if units <= room:
                cost[units:, s] = before[: room + 1 - units, s] + seconds[layer, s]
    last = int(cost[room].argmin())
    if math.isinf(cost[room, last]):
        return math.inf, []
    total, left, plan = float(cost[room, last]), room, [last]
    for layer in range(layers - 1, 0, -1):
        left -= int(memory[layer, plan[0]])
        plan.insert(0, int(came_from[layer, left, plan[0]]))
    return total, plan


class Galvatron(Planner):
    """Plans every pipeline by `plan_layers` and runs the strategies of the plans, fastest first."""

    name = "galvatron"

    def plans(self) -> Mapping[Priced, str]:
        """The strategies that occur in the plans of the best pipelines."""
        pipelines: dict[tuple[Value, ...], list[Priced]] = defaultdict(list)
        for one in ranked(self.knowledge.prices.good, self.hopeless):
            if not self.knowledge.history.known(one.recipe):
                pipelines[tuple(one.values.get(key, 1) for key in PIPELINE)].append(one)
        found = {}
        for sizes, recipes in list(pipelines.items())[:MAX_PIPELINES]:
            for one, share in self._plan(recipes).items():
                pipeline = ", ".join(f"{key} {size}" for key, size in zip(PIPELINE, sizes, strict=True))
                found[one] = f"the plan for {pipeline} gives {share:.0%} of the layers this strategy"
        return found

    def _plan(self, recipes: Sequence[Priced]) -> dict[Priced, float]:
        """Strategies of the plan for one pipeline, with their shares of the layers; ``recipes`` fastest first."""
        strategies = self._strategies(recipes)
        capacity = strategies[0].estimate.memory_capacity_bytes
        layers = math.ceil(int(str(self.task.baseline.get("num_layers"))) / strategies[0].size("pp"))
        seconds = self.knowledge.seconds(strategies)[0]
        peaks = self.knowledge.filled(strategies) * capacity
        fixed = min(_fixed_bytes(one, peak) for one, peak in zip(strategies, peaks, strict=True))
        unit = max(ROOM * capacity - fixed, 1.0) / STEPS_OF_MEMORY
        units = np.ceil((peaks - fixed) / layers / unit * layers).astype(np.int64)
        shares = [np.diff(np.linspace(0, one, layers + 1).round().astype(np.int64)) for one in units]
        per_layer = np.tile(seconds / layers, (layers, 1))
        _, plan = plan_layers(per_layer, np.stack(shares, axis=1), STEPS_OF_MEMORY, _switch(strategies, layers))
        return {strategies[s]: plan.count(s) / layers for s in sorted(set(plan), key=plan.count, reverse=True)}

    def _strategies(self, recipes: Sequence[Priced]) -> list[Priced]:
        """The fastest recipe of each strategy: half of them the fastest, half the leanest of the others."""
        fastest: dict[tuple[Value, ...], Priced] = {}
        for one in recipes:
            fastest.setdefault(tuple(one.values.get(key) for key in STRATEGY), one)
        chosen = list(fastest.values())
        half = MAX_STRATEGIES // 2
        return chosen[:half] + sorted(chosen[half:], key=lambda one: one.fill)[:half]


def _fixed_bytes(one: Priced, peak: float) -> float:
    """What of its peak is no layer's: buffers, temporary memory, and what the allocator does not see."""
    parts, whole = one.estimate.memory_parts_bytes, one.estimate.peak_memory_bytes
    in_layers = sum(parts.get(name, 0.0) for name in ("weights", "gradients", "optimizer", "activations"))
    return peak * (1.0 - in_layers / whole) if in_layers else 0.0


def _switch(strategies: Sequence[Priced], layers: int) -> Floats:
    """Seconds of re-distributing activations between layers split differently, shape (S, S): about what the
    tensor-parallel communication of a layer takes.
    """
    seconds = np.array([one.estimate.breakdown_s.get("exposed_tp", 0.0) / layers for one in strategies])
    split = np.array([[one.size("tp"), one.size("cp")] for one in strategies])
    differs = (split[:, None, :] != split[None, :, :]).any(axis=2)
    return np.asarray(differs * np.maximum(seconds[:, None], seconds[None, :]))
