"""What points can be at best while some of their axes are open: a lower bound on the step, and whether memory can do.

A point with open axes is priced as two jobs. In one, every column that is not settled has the value that no other
betters in time; in the other the value that takes least memory. Residuals are exact for the layout and for settled
levers and as small as any value has them for the others. With no axis open both are the point itself, and the bound is
its truth.

That no value is better holds whatever the other columns are, because of what the physics makes of them:

- what is fused, captured in a graph, overlapped or not recomputed takes no longer, and what is recomputed, sharded or
  freed takes no more memory;
- an expert dispatch takes no less than its latencies, and no overlap hides more than all of it (the bound takes a
  dispatcher of unlimited rate, hidden as far as there is something to hide it), while what it hides slows the rest by
  less than it takes itself;
- data parallelism takes no less than nothing.

Tests hold it against random points of every study model in worlds with twice the usual spread; `TOLERANCE` is left
for effects of second order, such as less work to hide gradients under.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attune_lab.counting import Ints
from attune_lab.study.choices import Choices
from simulator.chunks import chunks
from simulator.job import Dispatcher, Floats, Recompute
from simulator.memory import peak_memory
from simulator.residuals import LEVERS, layout_residuals, lever_residuals
from simulator.step import step_parts
from simulator.world import World

TOLERANCE = 1e-4
"""Share of a step by which settling open columns may still gain."""

_MOST, _LEAST = "most", "least"
FAST: Mapping[str, Any] = {
    "recompute": int(Recompute.NONE), "tp_comm_overlap": True, "grouped_gemm": True, "permute_fusion": True,
    "router_fusion": True, "dispatcher": int(Dispatcher.HYBRIDEP), "ep_overlap": True, "delay_wgrad": True,
    "shared_expert_overlap": True, "max_connections": 1, "overlap_grad_reduce": False, "overlap_param_gather": False,
    "bucket_bytes": 0, "cross_entropy_fusion": True, "host_tuned": _MOST, "cuda_graph": _MOST,
    "optimizer_offload": _LEAST, "expandable_segments": True, "nvls": True, "avoid_record_streams": True,
    "sm_margin": True,
}  # fmt: skip
"""Column -> value that no other betters in time, or which end of its values that is."""

LEAN: Mapping[str, Any] = {
    **FAST,
    "recompute": int(Recompute.FULL), "dispatcher": int(Dispatcher.ALLTOALL), "ep_overlap": False,
    "cuda_graph": _LEAST, "optimizer_offload": _MOST, "nvls": False,
}  # fmt: skip
"""The same of memory."""

_DISPATCH = frozenset({"dispatcher", "ep_overlap", "max_connections"})
_DATA_PARALLEL = frozenset({"overlap_grad_reduce", "overlap_param_gather", "bucket_bytes"})


class Bounds:
    """Bounds on the points of one space in one world.

    Attributes:
        priced: points priced so far, settled or not.
    """

    def __init__(self, choices: Choices, world: World) -> None:
        """Look up the residuals of every layout and lever."""
        self.priced = 0
        self._choices, self._world = choices, world
        # With `FAST` columns: dispatch at no cost but latencies, and more than hidden.
        self._free = replace(world.physics, hybridep_gain=1e6, ep_overlap_hidden=1.2)
        start = np.zeros((len(choices.rows), len(choices.names)), dtype=np.int64)
        start[:, : choices.rows.shape[1]] = choices.rows
        jobs = choices.jobs(start)
        self._stages = jobs.pp
        scale = world.conditions.residuals
        self._layouts = scale * layout_residuals(world.seed, jobs)
        self._constant = np.zeros((2, 1))
        self._levers: dict[str, NDArray[np.float64]] = {}
        for name in LEVERS:
            column = choices.columns.get(name)
            values = getattr(jobs, name)[:1] if column is None else column.values.ravel()
            parts = scale * lever_residuals(world.seed, jobs.model.name, (name,), values[None].astype(np.float64))
            if column is None:
                self._constant = self._constant + parts[:, 0]
            else:
                self._levers[name] = parts.reshape(2, *column.values.shape)

    def step_seconds(self, rows: Ints, options: Ints, settled: Collection[int]) -> Floats:
        """A lower bound on the true step time of every legal point there is to be, shape (N,); inf where none fits.

        Args:
            rows: places of the layouts in ``choices.rows``, shape (N,).
            options: of the points, shape (N, A); those of axes that are not ``settled`` are not looked at.
            settled: numbers of axes.
        """
        self.priced += len(rows)
        bounds = np.zeros(len(rows))
        deepest_last = np.argsort(self._stages[rows], kind="stable")  # a job costs as much as the deepest of its chunk
        for chunk in chunks(len(rows)):
            some = deepest_last[chunk]
            bounds[some] = self._bounds(rows[some], options[some], settled)
        return bounds

    def _bounds(self, rows: Ints, options: Ints, settled: Collection[int]) -> Floats:
        open_columns = {name for name, column in self._choices.columns.items() if not set(column.axes) <= set(settled)}
        time, memory = np.exp(self._residuals(rows, options, open_columns))
        lean = self._choices.jobs(options, self._instead(LEAN, open_columns))
        fullest = memory * peak_memory(lean, self._world.physics.memory).peak_reserved_bytes.max(axis=1)
        bounds = np.full(len(rows), np.inf)
        fits = fullest <= self._world.cluster.accelerator.memory_bytes
        if fits.any():
            seconds = self._physics(options[fits], open_columns)
            bounds[fits] = seconds * time[fits] * self._world.retries(fullest[fits])
        return bounds

    def _physics(self, options: Ints, open_columns: Collection[str]) -> Floats:
        """What the physics says the fast jobs take at least, shape (N,)."""
        jobs = self._choices.jobs(options, self._instead(FAST, open_columns))
        physics = self._world.physics if _DISPATCH.isdisjoint(open_columns) else self._free
        parts = step_parts(jobs, physics)
        if not _DATA_PARALLEL.isdisjoint(open_columns):
            parts["exposed_dp"] = np.zeros(len(options))
        seconds: Floats = np.sum(list(parts.values()), axis=0)
        return seconds * (1 - TOLERANCE if open_columns else 1)

    def _instead(self, best: Mapping[str, Any], open_columns: Collection[str]) -> dict[str, Any]:
        """The values that open columns have in a job that is best in its way."""
        columns = {name: best[name] for name in open_columns}
        ends = {_MOST: np.max, _LEAST: np.min}
        return {
            name: ends[value](self._choices.columns[name].values) if value in ends else value
            for name, value in columns.items()
        }

    def _residuals(self, rows: Ints, options: Ints, open_columns: Collection[str]) -> Floats:
        """Log-ratios of truth to physics at least, of time and of memory, shape (2, N)."""
        total = self._layouts[:, rows] + self._constant
        for name, parts in self._levers.items():
            if name in open_columns:
                total = total + parts.reshape(2, -1).min(axis=1)[:, None]
            else:
                places = tuple(options[:, axis] for axis in self._choices.columns[name].axes)
                total = total + np.stack([part[places] for part in parts])
        return total
