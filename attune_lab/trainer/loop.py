"""A whole run: probes, steps, log and signals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import torch

from attune_lab.signals.schema import FILE_NAME, Signals, StepSignals
from attune_lab.trainer import state as states
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.effective import effective
from attune_lab.trainer.log import log_line
from attune_lab.trainer.mesh import Mesh
from attune_lab.trainer.probes import Probes
from attune_lab.trainer.recording import Recorder
from attune_lab.trainer.step import run_step

OBSERVED = (1, 2, 3)
"""Steps whose tensors are recorded, besides the last."""


@dataclass
class RunResult:
    """What a run gave; the same on every rank.

    Attributes:
        loss, grad_norm: by step, as computed.
        signals: what the gate reads.
        log: the lines of the log.
    """

    loss: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    signals: Signals = field(default_factory=lambda: Signals(producer="attune trainer", world_size=1))


def train(
    config: TrainerConfig,
    *,
    out: Path | None = None,
    probes: Sequence[str] = (),
    start: Path | None = None,
    save: Path | None = None,
    record: bool = True,
    echo: Callable[[str], None] | None = None,
) -> RunResult:
    """Trains on this rank of a process group of exactly ``config.world_size`` ranks, or alone.

    Args:
        config: of the run.
        out: folder for ``train.log``, ``signals.json`` and ``config.json``, written by rank 0.
        probes: names out of `attune_lab.trainer.probes.PROBES`; those that do not apply are left out.
        start: a checkpoint to start or go on from; without one weights are drawn from the seed.
        save: where to write the final checkpoint.
        record: record `OBSERVED` steps; without it only losses and norms.
        echo: is given each line of the log as it is written.

    Raises:
        UserError: the checkpoint does not fit the model.
    """
    torch.use_deterministic_algorithms(True)
    mesh = Mesh.build(config)
    try:
        state = states.make_state(config, mesh, states.load(start) if start else None)
        with _log_file(out if mesh.world.rank == 0 else None) as file:
            result = _run(state, probes, record=record, write=_writer(file, echo))
        if save is not None:
            saved = states.checkpoint(state)
            if mesh.world.rank == 0:
                states.save(saved, save)
    finally:
        mesh.close()
    if out is not None and mesh.world.rank == 0:
        _write(result, config, out)
    return result


@contextmanager
def _log_file(out: Path | None) -> Iterator[TextIO | None]:
    """The log in a run's folder, if it has one."""
    if out is None:
        yield None
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / "train.log").open("w", encoding="utf-8") as file:
        yield file


def _writer(file: TextIO | None, echo: Callable[[str], None] | None) -> Callable[[str], None]:
    """What a line of the log is given to."""

    def write(line: str) -> None:
        if file is not None:
            file.write(line + "\n")
            file.flush()  # a run that is killed keeps the steps it did
        if echo is not None:
            echo(line)

    return write


def _run(state: states.State, names: Sequence[str], *, record: bool, write: Callable[[str], None]) -> RunResult:
    config, recorder = state.config, Recorder(state)
    probes = Probes(state, recorder, names)
    probes.before()
    result = RunResult()
    steps: list[StepSignals] = []
    skipped = 0
    for step in range(state.step + 1, config.train_iters + 1):
        began = time.perf_counter()
        probes.at(step)
        if record and (step in OBSERVED or step == config.train_iters):
            steps.append(recorder.step())
            figures, skipped = dict(steps[-1].logged), skipped + steps[-1].skipped
        else:
            figures = run_step(state).printed
        result.loss.append(figures["lm loss"])
        result.grad_norm.append(figures["grad norm"])
        result.log.append(log_line(step, time.perf_counter() - began, figures, config, skipped))
        write(result.log[-1])
    in_force = effective(state)
    probes.after(steps[0] if steps else None, result.loss)
    result.signals = Signals(
        producer="attune trainer",
        stack={"torch": torch.__version__},
        world_size=state.mesh.world.size,
        effective=in_force,
        steps=tuple(steps),
        probes=probes.found,
    )
    return result


def _write(result: RunResult, config: TrainerConfig, out: Path) -> None:
    (out / "config.json").write_text(config.model_dump_json(indent=1), encoding="utf-8")
    result.signals.write(out / FILE_NAME)
