"""Trains one configuration, alone or as a rank of torchrun.

    python -m attune_lab.trainer CONFIG --out DIR
    torchrun --nproc-per-node 4 -m attune_lab.trainer CONFIG --out DIR

CONFIG is JSON or YAML with settings of `attune_lab.trainer.config.TrainerConfig`. Exit codes: 0 trained, 2 unusable
input, 3 the environment failed; the reason is one sentence on stderr, from rank 0 alone.
"""

from __future__ import annotations

import argparse
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
from attune_lab.trainer.warm import warm_start
from attune_lab.writing import refuse_unwritable


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
        return parse_config(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


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
        with process_group(config) as rank:
            began = warm_start(config, options.warm) if options.warm else options.start
            train(
                config, out=options.out, probes=options.probe, start=began, save=options.save,
                echo=print if rank == 0 else None,
            )  # fmt: skip
    except UserError as error:
        return _fail(error, 2)
    except (EnvironmentFault, OSError) as error:
        return _fail(error, 3)
    return 0


def _fail(error: Exception, code: int) -> int:
    if os.environ.get("RANK", "0") == "0":
        print(f"attune_lab.trainer: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
