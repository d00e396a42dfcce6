"""The suite: which faults and which legitimate changes the gate is asked about.

Legitimate changes are every layout of 1, 2 and 4 ranks that the workloads allow, the settings that a tuner moves, other
seeds, and random combinations of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from itertools import product
from random import Random
from typing import Any

from pydantic import ValidationError

from attune_lab.trainer.config import TrainerConfig
from experiments.faults.catalogue import FAULTS
from experiments.faults.plan import Case, Fault, Run
from experiments.faults.workloads import BASELINE_PROBES, CANDIDATE_PROBES, MODELS, TWINS, WORKLOADS

__all__ = ["FAULTS", "cases", "panel"]

SIZES = (1, 2, 4)
"""Ranks of the layouts."""

Changes = Mapping[str, Any]

SETTINGS: tuple[Changes, ...] = (
    {"mbs": 1},
    {"mbs": 4},
    {"mbs": 8},
    {"recompute_granularity": "full"},
    {"recompute_granularity": "selective"},
    {"attention_backend": "unfused"},
    {"attention_backend": "chunked"},
    {"cross_entropy_fusion": True},
    {"grouped_gemm": True},
    {"num_buckets": 5},
    {"dp": 2, "overlap_grad_reduce": True},
    {"dp": 2, "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    {"dp": 2, "ep": 2, "dispatcher": "allgather"},
    {"pp": 2, "schedule": "gpipe"},
    {"pp": 2, "vpp": 2, "mbs": 4},
    {"cp": 2, "cp_comm_type": "a2a"},
)
"""Single settings that change how fast a model trains, not what is trained."""

NUMERICS: tuple[Changes, ...] = ({"bf16": False}, {"grad_reduce_in_fp32": False}, {"fp8": True})
"""Changes of numerics that a user may approve; the cases approve them."""

COMBINATIONS = 36
"""How many random mixes."""


def cases(suite: str) -> list[Case]:
    """The cases of a suite: ``legitimate``, ``faults``, ``all``, ``panel`` (of faults) or ``ci`` (a sample of both)."""
    if suite == "legitimate":
        return list(_legitimate())
    if suite == "faults":
        return [_fault(fault) for fault in FAULTS.values()]
    if suite == "panel":
        return [_fault(FAULTS[name]) for name in panel()]
    if suite == "all":
        return cases("faults") + cases("legitimate")
    legitimate = cases("legitimate")
    some = cases("panel")[::2] + legitimate[:: len(legitimate) // 16]
    return [replace(case, twins=()) for case in some]


def panel() -> list[str]:
    """The faults of the fixed panel of 24, by name."""
    lines = (files("experiments.faults") / "panel.txt").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def _fault(fault: Fault) -> Case:
    """A faulty run in the layout that has the mechanism, against the sound baseline."""
    workload = WORKLOADS[fault.workload]
    candidate = Run(fault.name, _changed(workload, fault.layout), fault.name, CANDIDATE_PROBES)
    return Case(fault.name, "fault", _baseline(fault.workload), candidate, _twins(workload), fault.group, fault.note)


def _baseline(workload: str, **changes: Any) -> Run:
    return Run(f"{workload} baseline", _changed(WORKLOADS[workload], changes), None, BASELINE_PROBES)


def _twins(config: TrainerConfig) -> tuple[Run, ...]:
    return tuple(
        Run("twin", changed, None, BASELINE_PROBES) for twin in TWINS if (changed := _legal(config, twin)) is not None
    )


def _changed(config: TrainerConfig, changes: Changes) -> TrainerConfig:
    return TrainerConfig.model_validate({**config.model_dump(), **changes})


def _legal(config: TrainerConfig, changes: Changes) -> TrainerConfig | None:
    """The changed settings, None where the workload does not allow them or they change nothing."""
    try:
        changed = _changed(config, changes)
    except ValidationError:
        return None
    return None if changed == config else changed


def _legitimate() -> Iterator[Case]:
    """Every legitimate case, each configuration once."""
    seen = set()
    for workload, group, changes, seed in _changes():
        base = WORKLOADS[workload].model_copy(update={"seed": seed, "data_seed": seed})
        changed = _legal(base, changes)
        if changed is None or changed in seen:
            continue
        seen.add(changed)
        moved = {key: value for key, value in changes.items() if getattr(base, key) != value}
        name = f"{workload}: {', '.join(f'{key}={value}' for key, value in moved.items())}"
        baseline = _baseline(workload, seed=seed, data_seed=seed)
        candidate = Run(name, changed, None, CANDIDATE_PROBES)
        title = name + (f" (seed {seed})" if seed > 1 else "")
        approvals = tuple(changes) if group == "numerics" else ()
        yield Case(title, "legitimate", baseline, candidate, _twins(base), group, approvals=approvals)


def _changes() -> Iterator[tuple[str, str, Changes, int]]:
    """(workload, group, changes, seed) of every legitimate change, some of them not legal."""
    for workload in ("dense", "moe"):
        for layout in layouts():  # with fewer, larger micro-batches, since messages cost most of the time
            yield workload, "layout", {**layout, "mbs": 2 if layout["dp"] > 2 else 4}, 1
    for workload, changes in product(MODELS, SETTINGS):
        yield workload, "setting", changes, 1
    for workload, changes in product(("dense", "tied", "moe"), NUMERICS):
        yield workload, "numerics", changes, 1
    yield from _combinations()
    for seed, changes in product((2, 3, 4), (*TWINS, *SETTINGS[-6:])):
        yield MODELS[seed], "seed", changes, seed


def _combinations() -> Iterator[tuple[str, str, Changes, int]]:
    """Legal random mixes of a layout and three settings, the workloads in turn."""
    random = Random(20)
    names, every, found = MODELS, list(layouts()), 0
    while found < COMBINATIONS:
        workload, mixed = names[found % len(names)], dict(random.choice(every))
        for changes in random.sample(SETTINGS, 3):
            mixed |= {name: value for name, value in changes.items() if name not in mixed}
        if _legal(WORKLOADS[workload], mixed):
            found += 1
            yield workload, "combination", mixed, 1


def layouts() -> Iterator[Changes]:
    """Ways to divide a model over `SIZES` ranks; a workload allows some of them."""
    for ranks in SIZES:
        powers = [n for n in SIZES if n <= ranks]
        for tp, pp, cp, dp in product(powers, repeat=4):
            if tp * pp * cp * dp != ranks:
                continue
            for sequence_parallel in (False, True) if tp > 1 else (False,):
                dense = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "sequence_parallel": sequence_parallel}
                yield dense
                for ep, etp in product(powers, powers):
                    if ep * etp > 1:
                        yield {**dense, "ep": ep, "etp": etp}
