"""Trains one configuration, alone or as a rank of torchrun.

    python -m attune_lab.trainer CONFIG --out DIR
    torchrun --nproc-per-node 4 -m attune_lab.trainer CONFIG --out DIR

CONFIG is JSON or YAML with settings of `attune_lab.trainer.config.TrainerConfig`. Exit codes: 0 trained, 2 unusable
input, 3 the environment failed, 130 interrupted; the reason is one sentence on stderr, from rank 0 alone.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.recipe.text_files import read_text
from attune_lab.trainer.config import TrainerConfig, parse_config
from attune_lab.trainer.loop import train
from attune_lab.trainer.probes import PROBES
from attune_lab.trainer.state import load
from attune_lab.trainer.warm import warm_start
from attune_lab.writing import refuse_unwritable

MOST_WEIGHTS = 1_000_000_000
"""A thousand times a model of the suite; beyond, a mistyped size would fill the memory before it fails."""


def read_config(path: Path) -> TrainerConfig:
    """The configuration in a JSON or YAML file.

    Raises:
        UserError: unreadable, no mapping of settings, or settings that cannot be trained.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        values = YAML(typ="safe", pure=True).load(read_text(path))  # which reads JSON too
    except (YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: is neither JSON nor YAML; write settings as name: value.") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UserError(f"{path}: holds no settings; write them as name: value.")
    try:
        config = parse_config(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    broken = next((n for n, v in config.model_dump().items() if isinstance(v, float) and not math.isfinite(v)), None)
    if broken is not None:
        raise UserError(f"{path}: {broken} is {getattr(config, broken)}; give a finite number.")
    if (size := weights(config)) > MOST_WEIGHTS:
        raise UserError(f"{path}: a model of {size:.2g} weights; this trainer is for at most {MOST_WEIGHTS:.0e}.")
    return config


def weights(config: TrainerConfig) -> int:
    """About the number of weights of a model: its matrices."""
    attention = 2 * config.hidden * config.hidden * (config.heads + config.kv_groups) // config.heads
    width = config.num_experts * config.moe_ffn + config.shared_expert_size if config.num_experts else config.ffn
    layer = attention + 3 * config.hidden * width
    return (config.num_layers + config.mtp_num_layers) * layer + 2 * config.vocab_size * config.hidden


def refuse_damaged(path: Path, config: TrainerConfig) -> None:
    """Looks into a checkpoint that somebody may have edited, before a run believes it.

    Raises:
        UserError: no checkpoint of the trainer, parts of the wrong kind or shape, or no step left to train.
    """
    saved = load(path)
    step, parts = saved["step"], [saved[part] for part in ("weights", "mean", "square")]
    tensors = [item for part in parts if isinstance(part, dict) for item in part.values()]
    if not isinstance(step, int) or step < 0 or not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{path}: has no step and weights as the trainer writes them; write it anew.")
    if not all(isinstance(item, torch.Tensor) and item.is_floating_point() for item in tensors):
        raise UserError(f"{path}: holds something else than tensors of real numbers; write it anew.")
    weights, *moments = parts
    odd = [name for part in moments for name in part if name not in weights or part[name].shape != weights[name].shape]
    if odd:
        raise UserError(f"{path}: the moments of {odd[0]} have another shape than its weights; write it anew.")
    if step >= config.train_iters:
        raise UserError(f"{path}: is of step {step} and the run ends at {config.train_iters}; raise train_iters.")


@contextmanager
def only_run_in(folder: Path | None) -> Iterator[None]:
    """Keeps other runs out of a folder; the system lets go of it however the process ends.

    Raises:
        UserError: another run is in it.
    """
    if folder is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{folder}: another run is writing there; name another folder.") from error
        yield
    finally:
        os.close(handle)


@contextmanager
def process_group(config: TrainerConfig) -> Iterator[int]:
    """This process's rank, while it is in the default group of all that torchrun started, or alone.

    Raises:
        UserError: there are more or fewer processes than the layout has ranks.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != config.world_size:
        raise UserError(
            f"The settings need {config.world_size} ranks and {started} run: "
            f"start torchrun with --nproc-per-node {config.world_size}."
        )
    if torch.cuda.is_available():
        torch.set_default_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
        torch.cuda.set_device(torch.get_default_device())
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats its sums only so
    if "WORLD_SIZE" not in os.environ:
        yield 0
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="attune_lab.trainer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for train.log, signals.json and config.json")
    parser.add_argument("--probe", action="append", default=[], choices=PROBES, help="may be given several times")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--start", type=Path, help="a checkpoint to start from")
    start.add_argument("--warm", type=Path, help="start from trained weights, kept in this folder and made if missing")
    parser.add_argument("--save", type=Path, help="where to write the last checkpoint")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        config = read_config(options.config)
        refuse_unwritable(options.out / "train.log")
        if options.save:
            refuse_unwritable(options.save)
        if options.start:
            refuse_damaged(options.start, config)
        with process_group(config) as rank, only_run_in(options.out if rank == 0 else None):
            began = warm_start(config, options.warm) if options.warm else options.start
            train(
                config, out=options.out, probes=options.probe, start=began, save=options.save,
                echo=print if rank == 0 else None,
            )  # fmt: skip
    except UserError as error:
        return _fail(error, 2)
    except KeyboardInterrupt:
        return _fail("interrupted; the log ends at the last whole step", 130)
    except (EnvironmentFault, OSError, MemoryError, torch.OutOfMemoryError) as error:
        return _fail(error, 3)
    return 0


def _fail(error: Exception | str, code: int) -> int:
    if os.environ.get("RANK", "0") == "0":
        print(f"attune_lab.trainer: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
