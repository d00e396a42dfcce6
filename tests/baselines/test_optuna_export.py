"""A campaign of any tuner as a study that Optuna and its dashboard open."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import optuna
import pytest

from attune_lab.campaign.store import read_campaign
from attune_lab.tuning import TuneRequest, tune_recipe
from baselines.optuna_export import export_campaign, main
from baselines.random_search import RandomSearch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("campaigns") / "mixtral"
    request = TuneRequest("mixtral-8x22b", "64xH100-SXM5-80GB", "16x", tuner="random", seed=100, out=out)
    tune_recipe(request, factory=RandomSearch)
    return out


def test_every_paid_run_is_a_trial(folder, tmp_path, capsys):
    out = tmp_path / "study.db"
    assert main([str(folder), "--out", str(out)]) == 0
    assert "mixtral:" in capsys.readouterr().out
    study = optuna.load_study(study_name="mixtral", storage=f"sqlite:///{out}")
    rows = [row for row in read_campaign(folder).runs if row.repeats is None]
    assert study.user_attrs["tuner"] == "random"
    assert [trial.user_attrs["label"] for trial in study.trials] == [row.label for row in rows]
    for trial, row in zip(study.trials, rows, strict=True):
        assert trial.user_attrs["status"] == row.report.status
        assert trial.user_attrs["gpu_hours"] == row.report.gpu_hours
        assert trial.params["tp"] == row.recipe.settings["tp"]
        expected = row.report.mean_step_time_s if row.report.status == "ok" else None
        assert trial.value == expected
        assert (trial.state.name == "COMPLETE") == (row.report.status == "ok")


def test_what_cannot_be_exported_ends_in_one_sentence(folder, tmp_path, capsys):
    journal = f"journal:{tmp_path}/study.log"
    export_campaign(folder, journal)
    assert main([str(folder), "--out", journal]) == 2
    assert "has a study mixtral already" in capsys.readouterr().err
    assert main([str(tmp_path), "--out", journal]) == 2
    assert "holds no campaign" in capsys.readouterr().err
    assert main([str(folder), "--out", str(tmp_path / "no" / "such.db")]) == 3
    assert "cannot be used" in capsys.readouterr().err


def answer(url, process):
    """The body at ``url``, waiting until the server is up."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.URLError:
            time.sleep(0.2)
    raise AssertionError(f"the dashboard ended: {process.stderr.read()}")


def test_the_dashboard_serves_the_study(folder, tmp_path):
    pytest.importorskip("optuna_dashboard")
    out = tmp_path / "study.db"
    export_campaign(folder, f"sqlite:///{out}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = "from optuna_dashboard._cli import main; main()"
    command = [sys.executable, "-c", start, f"sqlite:///{out}", "--port", str(port), "--server", "wsgiref"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            status, _ = answer(f"http://127.0.0.1:{port}/dashboard/", process)
            assert status == 200
            _, listed = answer(f"http://127.0.0.1:{port}/api/studies", process)
            (summary,) = json.loads(listed)["study_summaries"]
            assert summary["study_name"] == "mixtral"
            _, detail = answer(f"http://127.0.0.1:{port}/api/studies/{summary['study_id']}", process)
            assert len(json.loads(detail)["trials"]) > 3
        finally:
            process.kill()
