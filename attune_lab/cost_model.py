"""The engineer's estimate of a recipe: posterior-mean physics, without noise, residuals or defects."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attune_lab.contracts import Estimate, UserError
from attune_lab.recipe.constraints import can_start, refusals
from attune_lab.recipe.effective import effective
from attune_lab.recipe.jobs import job_columns, jobs_from_columns
from attune_lab.recipe.recipe import Recipe
from attune_lab.recipe.shape import shape_of
from simulator.hardware import ClusterSpec
from simulator.metrics import peak_flops
from simulator.models import ModelShape
from simulator.posterior import POSTERIOR, Posterior
from simulator.step import simulate_step

if TYPE_CHECKING:
    from simulator.explain import Explanation
    from simulator.job import Jobs
    from simulator.timeline import Timeline


class SimulatedCostModel:
    """Predictions for recipes on one cluster; implements `attune_lab.contracts.CostModel`."""

    def __init__(self, cluster: ClusterSpec, posterior: Posterior = POSTERIOR) -> None:
        """``posterior`` is the project's calibration unless the user made another."""
        self._cluster = cluster
        self._posterior = posterior
        self._physics = posterior.physics()

    def estimate(self, recipes: Sequence[Recipe]) -> list[Estimate]:
        """Estimates in the order asked, one vectorised simulation per model among them.

        A recipe that cannot start, or that the simulator has no figures for, has ``problems`` and nan figures.
        """
        outcomes: dict[int, Estimate] = {}
        startable: dict[ModelShape, dict[int, Mapping[str, Any]]] = defaultdict(dict)
        for index, recipe in enumerate(recipes):
            try:
                values = effective(recipe, self._cluster)
                if can_start(values):
                    self._refuse_format(values)
                    startable[shape_of(recipe)][index] = job_columns(values)
                else:
                    outcomes[index] = self._impossible(*(finding.message for finding in refusals(values)))
            except UserError as error:
                outcomes[index] = self._impossible(str(error))
        for shape, rows in startable.items():
            outcomes |= zip(rows, self._simulate(shape, list(rows.values())), strict=True)
        return [outcomes[index] for index in range(len(recipes))]

    def timeline(self, recipe: Recipe) -> Timeline:
        """One step of a recipe that has an estimate, pass by pass.

        Raises:
            UserError: it has no estimate.
        """
        from simulator.timeline import timeline  # loads SimPy

        return timeline(self._job(recipe), self._physics)

    def explain(self, recipe: Recipe) -> Explanation:
        """The prediction for a recipe that has an estimate, taken apart.

        Raises:
            UserError: it has no estimate.
        """
        from simulator.explain import explain

        return explain(self._job(recipe), self._physics, self._posterior)

    def step_time_sd_s(self, recipe: Recipe) -> float:
        """Standard deviation of its predicted step time that is left by the uncertainty of the constants, seconds.

        Raises:
            UserError: it has no estimate.
        """
        from simulator.explain import step_time_sd

        return float(step_time_sd(self._job(recipe), self._physics, self._posterior)[0])

    def _job(self, recipe: Recipe) -> Jobs:
        """A batch of this recipe alone."""
        values = effective(recipe, self._cluster)
        return jobs_from_columns([job_columns(values)], shape_of(recipe), self._cluster)

    def _refuse_format(self, values: Mapping[str, Any]) -> None:
        """Raise UserError where the accelerator has no units for the recipe's number format."""
        accelerator = self._cluster.accelerator
        for key, peak in (("fp8", accelerator.peak_fp8_flops), ("fp4", accelerator.peak_fp4_flops)):
            if values[key] and not peak:
                raise UserError(f"{accelerator.name} has no {key.upper()} units; train in BF16 there")

    def _impossible(self, *problems: str) -> Estimate:
        capacity = self._cluster.accelerator.memory_bytes
        return Estimate(math.nan, math.nan, math.nan, capacity, {}, {}, problems)

    def _simulate(self, shape: ModelShape, rows: Sequence[Mapping[str, Any]]) -> list[Estimate]:
        jobs = jobs_from_columns(rows, shape, self._cluster)
        step = simulate_step(jobs, self._physics)
        peaks = peak_flops(self._cluster.accelerator, jobs.precision)
        reserved = step.peak_reserved_bytes
        return [
            Estimate(
                step_time_s=float(step.step_time_s[i]),
                tokens_per_s_per_gpu=float(step.tokens_per_s_per_gpu[i]),
                peak_memory_bytes=float(reserved[i].max()),
                memory_capacity_bytes=self._cluster.accelerator.memory_bytes,
                breakdown_s=_row(step.breakdown_s, i),
                diagnostics=_row(step.diagnostics, i),
                model_tflops_per_gpu=float(step.model_flops_per_s_per_gpu[i]) / 1e12,
                mfu=float(step.mfu[i]),
                peak_flops=float(peaks[i]),
                stage_memory_bytes=tuple(map(float, reserved[i, : int(jobs.pp[i])])),
                memory_parts_bytes=_row(step.memory_bytes, i),
            )
            for i in range(jobs.size)
        ]


def _row(columns: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]], index: int) -> dict[str, float]:
    return {name: float(column[index]) for name, column in columns.items()}
