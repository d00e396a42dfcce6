"""What a suite consists of: faults, runs, and cases that pair two runs for the gate.

`experiments.faults.suite` defines in these terms ``FAULTS`` (by name) and ``cases(suite)`` (the cases of one suite).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from attune_lab.trainer.config import TrainerConfig

Kind = Literal["fault", "legitimate"]
Half = Literal["calibration", "held-out"]


@dataclass(frozen=True)
class Fault:
    """A way to train the wrong model, as patches on the trainer.

    Attributes:
        name: as in the list of faults, e.g. ``F016``; variants of one end in a letter.
        title: one line for a person.
        group: where a gate can see it, e.g. ``missing-reduce``.
        source: the report it comes from, e.g. ``NVIDIA/Megatron-LM#7452``.
        patches: injection point -> what stands in for it; see `attune_lab.trainer.injection`.
        workload: what it is injected into, out of `experiments.faults.workloads`.
        layout: settings of the faulty run beside the workload's; most faults need several ranks.
        note: what a reader of the report should know, e.g. why the fault is harmless here.
    """

    name: str
    title: str
    group: str
    source: str
    patches: Mapping[str, Callable[..., Any]]
    workload: str = "dense"
    layout: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        name: for a person; two runs that differ in the name alone are one.
        config: its settings.
        fault: name of the fault in force, if any.
        probes: probes it makes besides its steps.
        warm: it starts from weights in which attention has learnt something, see `attune_lab.trainer.warm`.
    """

    name: str
    config: TrainerConfig
    fault: str | None = None
    probes: tuple[str, ...] = ()
    warm: bool = False


@dataclass(frozen=True)
class Case:
    """A question to the gate: is the candidate still the baseline's training run?

    Attributes:
        name: unique in a suite.
        kind: the right answer: a ``fault`` is to be rejected, a ``legitimate`` change is not.
        baseline, candidate: the pair.
        twins: further legitimate runs of the baseline that calibrate the limits.
        group: what the report sums up by: the fault's group, or the kind of legitimate change.
        note: what a reader of the report should know.
        approvals: changes of numerics that the case's user accepts.
    """

    name: str
    kind: Kind
    baseline: Run
    candidate: Run
    twins: tuple[Run, ...] = ()
    group: str = ""
    note: str = ""
    approvals: tuple[str, ...] = ()

    @property
    def half(self) -> Half:
        """Which half of the legitimate suite it is in: thresholds are set on ``calibration`` alone."""
        return "held-out" if hashlib.sha256(self.name.encode()).digest()[0] % 2 else "calibration"

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every run the case needs."""
        return (self.baseline, self.candidate, *self.twins)
