"""A cluster that exists on paper: recipes go in, the reports of a simulated world come out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from attune_lab.cluster.megatron_log import write_log
from attune_lab.contracts import RunReport, UserError
from attune_lab.gate.defects import active
from attune_lab.gate.facts import facts_of
from attune_lab.recipe import Recipe
from attune_lab.recipe.constraints import errors
from attune_lab.recipe.jobs import jobs_for
from attune_lab.recipe.registry import registry
from attune_lab.recipe.remembered import remembered
from attune_lab.recipe.shape import filled
from simulator.curves import Signature
from simulator.hardware import ClusterSpec
from simulator.job import Jobs
from simulator.models import flops_per_token
from simulator.world import USUAL, Conditions, World, WorldRun

LIBRARIES = {"te": "2.12.0", "torch": "2.9.0", "nccl": "2.27.5"}
"""Installed beside the world's release of Megatron-Core, unless the recipe names others."""


def world_seed(campaign_seed: int) -> int:
    """The world of a campaign's seed, hashed under its own tag: draws from a tuner's seed are not the world's.

    What keeps tuners and worlds apart: a `TuningTask` leads to no cluster and no world, importing a tuner loads
    neither, and ours import neither; tests hold all three. It holds against accidents, not against intent. A tuner
    runs in the process of its campaign, so one that imports this module can rebuild the world from its own seed, and
    one that walks stack frames or ``gc.get_objects()`` finds the cluster itself. Read the source of a tuner from
    elsewhere before you believe its result.
    """
    digest = hashlib.sha256(f"attune.campaign.world:{campaign_seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def installed(world: World, recipe: Recipe) -> dict[str, str]:
    """The versions of the libraries with which a recipe runs in a world."""
    return {"mcore": world.mcore, **LIBRARIES, **recipe.versions}


@dataclass(frozen=True)
class SimulatedCluster:
    """A `Cluster` backed by one world; the same label on the same recipe is the same run.

    Attributes:
        spec: the hardware.
        world_seed: which world; a tuner is never given it.
        conditions: how harsh the world is.
        log_dir: where logs of the runs are written, one ``LABEL.log`` each; None for nowhere.
    """

    spec: ClusterSpec
    world_seed: int
    conditions: Conditions = field(default=USUAL, kw_only=True)
    log_dir: Path | None = field(default=None, kw_only=True)

    @cached_property
    def _world(self) -> World:
        return World.draw(self.world_seed, self.spec, conditions=self.conditions)

    def startup_bound_s(self, recipe: Recipe) -> float:
        """Seconds that start-up may take at most; 0 for a recipe that is refused before it starts."""
        job = _job(recipe, self.spec)
        return 0.0 if isinstance(job, str) else self._world.startup_bound_s(job)

    def run(self, recipe: Recipe, steps: int, *, label: str, step_limit_s: float | None = None) -> RunReport:
        """Run ``steps`` steps and report; see `Cluster.run`."""
        job = _job(recipe, self.spec)
        if isinstance(job, str):
            return RunReport(label=label, status="invalid", provenance="simulated", steps=steps, message=job)
        versions = installed(self._world, recipe)
        known, _ = active(facts_of(recipe, self.spec, versions))
        limit_s = None if step_limit_s is None else self._world.startup_bound_s(job) + steps * step_limit_s
        happened = self._world.run(
            job,
            label=label,
            steps=steps,
            objective=_objective(recipe),
            faults=[_signature(defect.effect) for defect in known],
            limit_s=limit_s,
        )
        report = self._report(job, happened, label=label, steps=steps, versions=versions)
        return report if self.log_dir is None else self._logged(report, recipe, self.log_dir)

    def _report(self, job: Jobs, happened: WorldRun, *, label: str, steps: int, versions: dict[str, str]) -> RunReport:
        """The report of a run that started; throughput needs at least one timed step."""
        accelerator = self.spec.accelerator
        report = RunReport(
            label=label,
            status=happened.status,
            provenance="simulated",
            steps=steps,
            step_times_s=tuple(happened.step_times_s.tolist()),
            tokens_per_step=int(job.gbs[0] * job.seq_len[0]),
            peak_memory_bytes=tuple(happened.peak_reserved_bytes.tolist()),
            memory_capacity_bytes=accelerator.memory_bytes,
            breakdown_s=happened.breakdown_s,
            diagnostics=happened.diagnostics,
            loss=tuple(happened.loss.tolist()),
            grad_norm=tuple(happened.grad_norm.tolist()),
            startup_s=happened.startup_s,
            gpu_hours=happened.elapsed_s * self.spec.n_gpus / 3600,
            versions=versions,
            message=happened.message,
        )
        mean = report.mean_step_time_s
        if mean is None:
            return report
        rate = report.tokens_per_step / mean / self.spec.n_gpus
        flops = rate * float(flops_per_token(job.model, job.seq_len)[0])
        speed: dict[str, Any] = {
            "tokens_per_s_per_gpu": rate,
            "model_tflops_per_gpu": flops / 1e12,
            "mfu": flops / accelerator.peak_bf16_flops,
            "peak_flops": accelerator.peak_bf16_flops,
        }
        return report.model_copy(update=speed)

    def _logged(self, report: RunReport, recipe: Recipe, folder: Path) -> RunReport:
        path = folder / f"{report.label}.log"
        batch, lr = recipe.get("gbs"), recipe.get("lr")
        write_log(report, path, global_batch_size=int(str(batch)), lr=float(str(lr or 0.0)), gpus=self.spec.n_gpus)
        return report.model_copy(update={"log_path": str(path)})


@remembered(last=32)
def _job(recipe: Recipe, cluster: ClusterSpec) -> Jobs | str:
    """The job, or the sentence that says why there is none; each run asks for it several times."""
    try:
        broken = errors(recipe, cluster)
        return broken[0].message if broken else jobs_for([recipe], cluster)
    except (UserError, ValueError) as error:
        return str(error)


def _objective(recipe: Recipe) -> dict[str, str]:
    """The settings that define what is trained, as text."""
    values = filled(recipe)
    return {key: str(values[key]) for key in _objective_keys()}


@cache
def _objective_keys() -> tuple[str, ...]:
    return tuple(key for key, setting in registry().items() if setting.cls == "objective-changing")


def _signature(effect: Any) -> Signature:
    return Signature(**{name: value for name, value in effect.items() if name != "reported"})
