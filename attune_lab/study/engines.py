"""Where the jobs of a study run: on this machine, or on a Ray or Dask cluster, all through joblib."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.study.worker import end_children, run_job

Engine: TypeAlias = Literal["local", "ray", "dask"]
_REACH_S = 20
_STUDY = ("joblib", "pandas", "pyarrow")
_NEEDS = {"local": _STUDY, "ray": (*_STUDY, "ray"), "dask": (*_STUDY, "distributed")}
_EXTRAS = {"local": "study", "ray": "ray", "dask": "dask"}


def require_engine(name: str) -> Engine:
    """The engine called ``name``, when what it needs is installed.

    Raises:
        UserError: no such engine, or its packages are missing.
    """
    known: tuple[Engine, ...] = get_args(Engine)
    for engine in known:
        if name == engine:
            missing = [package for package in _NEEDS[engine] if find_spec(package) is None]
            if missing:
                what = "a study" if engine == "local" else f"--engine {engine}"
                raise UserError(f"{what} needs {', '.join(missing)}: pip install 'attune-lab[{_EXTRAS[engine]}]'")
            return engine
    raise UserError(f"--engine {name}: no such engine; take {', '.join(known)}")


def run_all(jobs: Sequence[Any], *, engine: Engine, workers: int, address: str | None = None) -> None:
    """Do every job, ``workers`` at a time; each leaves its record, so nothing is returned.

    Args:
        jobs: `attune_lab.study.jobs.Job` s; on a cluster their folder must be the same on all its machines.
        engine: where.
        workers: jobs at a time.
        address: of a running Ray or Dask cluster; None starts one on this machine.

    Raises:
        EnvironmentFault: the cluster cannot be reached.
    """
    from joblib import Parallel, delayed

    with _ENGINES[engine](workers, address):
        # One job a task: they differ too much in length for joblib to guess batches.
        Parallel(n_jobs=workers, batch_size=1)(delayed(run_job)(job) for job in jobs)


@contextmanager
def _local(_workers: int, _address: str | None) -> Iterator[None]:
    """A thread a worker; the work is done by the child process of each."""
    from joblib import parallel_config

    try:
        with parallel_config(backend="threading"):
            yield
    finally:
        end_children()


@contextmanager
def _ray(workers: int, address: str | None) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from joblib import parallel_config
    from ray.util.joblib import register_ray

    register_ray()
    begun = not ray.is_initialized()
    if begun:
        with _reached("Ray", address):
            if address is None:
                ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
            else:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        with parallel_config(backend="ray"):
            yield
    finally:
        if begun:
            ray.shutdown()


@contextmanager
def _dask(workers: int, address: str | None) -> Iterator[None]:
    from distributed import Client, LocalCluster
    from joblib import parallel_config

    with _reached("Dask", address):
        cluster = None if address else LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        client = Client(address or cluster, timeout=_REACH_S)
    try:
        with parallel_config(backend="dask"):
            yield
    finally:
        client.close()
        if cluster is not None:
            cluster.close()


@contextmanager
def _reached(what: str, address: str | None) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:  # what both raise when nobody answers
        where = f"at {address} " if address else ""
        raise EnvironmentFault(
            f"the {what} cluster {where}cannot be reached ({str(error).splitlines()[0]}); check --address"
        ) from error


_ENGINES: dict[Engine, Callable[[int, str | None], Any]] = {"local": _local, "ray": _ray, "dask": _dask}
