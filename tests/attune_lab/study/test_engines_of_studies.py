"""Ray and Dask clusters on this machine give the tables that local workers give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_study import assert_same, study

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.study import engines
from attune_lab.study.run import run_study
from attune_lab.study.tables import Tables

MORE = "worlds: {first: 100, count: 1}\n"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return run_study(study(more=MORE), tmp_path_factory.mktemp("local") / "out", workers=2)


@pytest.fixture
def dask_address() -> Iterator[str]:
    """A running Dask cluster."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_cluster_of_its_own(local: Tables, tmp_path: Path, engine: engines.Engine, package: str) -> None:
    pytest.importorskip(package)
    assert_same(run_study(study(more=MORE), tmp_path / "out", engine=engine, workers=2), local)


def test_a_running_cluster(local: Tables, tmp_path: Path, dask_address: str) -> None:
    tables = run_study(study(more=MORE), tmp_path / "out", engine="dask", workers=2, address=dask_address)
    assert_same(tables, local)


def test_a_cluster_that_is_away_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(engines, "_REACH_S", 0.5)
    with pytest.raises(EnvironmentFault, match="cannot be reached"):
        run_study(study(more=MORE), tmp_path / "out", engine="dask", address="tcp://127.0.0.1:1")


def test_an_engine_that_is_unknown_or_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="take local, ray, dask"):
        engines.require_engine("slurm")
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'attune-lab\[ray\]'"):
        engines.require_engine("ray")
