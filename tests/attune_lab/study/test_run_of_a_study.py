"""A study is resumed after a kill, extended, and refused where its folder holds another one; its ledgers are equal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from small_study import SECONDS, assert_same, study, study_text

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.study.jobs import campaign_jobs
from attune_lab.study.run import StudyObserver, run_study
from attune_lab.study.spec import parse_study
from attune_lab.study.tables import Tables, read_parquet, read_tables


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tables]:
    """The small study, run without any disturbance, and its folder."""
    out = tmp_path_factory.mktemp("study") / "out"
    return out, run_study(study(), out, workers=2)


def test_every_campaign_is_a_row_and_every_run_of_it(done: tuple[Path, Tables]) -> None:
    campaigns, runs = done[1].campaigns, done[1].runs
    assert list(zip(campaigns["tuner"], campaigns["world"], strict=True)) == [
        ("uniform", 100), ("attune", 100), ("uniform", 101), ("attune", 101),
    ]  # fmt: skip
    assert (campaigns["status"] == "finished").all()
    keys = ["scenario", "tuner", "world"]
    spent = runs.groupby(keys)["gpu_hours"].sum()
    assert spent.to_numpy() == pytest.approx(campaigns.set_index(keys)["gpu_hours_spent"][spent.index].to_numpy())
    made = runs[~runs["repeated"] & (runs["status"] != "invalid")].groupby(keys).size()
    assert made.to_dict() == campaigns.set_index(keys)["runs"].to_dict()
    for _, run in runs.groupby(keys):
        assert run["gpu_hours_before"].to_numpy() == pytest.approx(run["gpu_hours"].cumsum().shift(fill_value=0.0))
        assert run["best_gain_pct"].is_monotonic_increasing
        assert not run["label"].duplicated().any()


def test_tuners_in_one_world_have_the_same_budget_and_stay_within_it(done: tuple[Path, Tables]) -> None:
    campaigns = done[1].campaigns
    assert (campaigns.groupby("world")[["gpu_hours_budget", "run_cost_gpu_hours"]].nunique() == 1).all(axis=None)
    assert campaigns["gpu_hours_budget"].nunique() == 2  # worlds differ
    assert (campaigns["gpu_hours_spent"] <= campaigns["gpu_hours_budget"]).all()
    first = done[1].runs.groupby(["world", "tuner"])["tokens_per_s_per_gpu"].first().groupby("world")
    assert (first.nunique() == 1).all()  # they met the same world


def test_what_a_search_reached_is_consistent(done: tuple[Path, Tables]) -> None:
    shipped = done[1].campaigns[~done[1].campaigns["kept_baseline"]]
    assert len(shipped)
    assert (shipped["gpu_hours_to_95"] <= shipped["gpu_hours_spent"]).all()
    assert (shipped["best_searched_gain_pct"] > 0).all()
    assert (shipped["gain_pct"] > shipped["noise_band_pct"]).all()


def test_a_finished_study_is_read_back_and_nothing_is_run_again(done: tuple[Path, Tables]) -> None:
    out, tables = done
    before = {path: path.stat().st_mtime_ns for path in out.rglob("record.json")}
    assert_same(run_study(study(), out, workers=2), tables)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("record.json")} == before


def test_tables_survive_parquet_with_their_provenance(done: tuple[Path, Tables]) -> None:
    out, tables = done
    for name, frame in (("campaigns", tables.campaigns), ("runs", tables.runs)):
        stored, provenance = read_parquet(out / f"{name}.parquet")
        assert_frame_equal(stored, frame)
        assert provenance["figures"] == "simulated"
        assert provenance["worlds"] == {"first": 100, "count": 2}
        assert {"numpy", "pandas"} <= {*provenance["libraries"]}


def test_a_killed_study_goes_on_and_ends_with_the_same_tables(done: tuple[Path, Tables], tmp_path: Path) -> None:
    file, out = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(study_text())
    command = "from attune_lab.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "compare", str(file), "--out", str(out), "--workers", "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    while not (kept := {path: path.stat().st_mtime_ns for path in out.rglob("record.json")}):
        assert process.poll() is None
        time.sleep(0.01)
    with pytest.raises(EnvironmentFault, match="another attune process"):
        run_study(study(), out)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(read_tables(out).campaigns) < 4
    assert_same(run_study(study(), out, workers=1), done[1])
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_more_tuners_and_worlds_extend_a_study(done: tuple[Path, Tables], tmp_path: Path) -> None:
    class Counted(StudyObserver):
        new = 0

        def campaign_done(self, job, record) -> None:
            self.new += 1

    out, seen = tmp_path / "out", Counted()
    shutil.copytree(done[0], out)
    tuners = "[uniform, attune, {name: attune, label: no catalog, options: {without: [use-catalog]}}]"
    more = run_study(study(tuners, "worlds: {first: 99, count: 3}\n"), out, workers=2, observer=seen)
    assert (len(more.campaigns), seen.new) == (9, 5)
    before = done[1].campaigns.drop(columns=SECONDS)
    same = more.campaigns.query("world >= 100 and tuner != 'no catalog'").drop(columns=SECONDS)
    assert_frame_equal(same.reset_index(drop=True), before)


@pytest.mark.parametrize(
    ("more", "tuners", "what"),
    [
        ("rules: {repeats: run}\n", "[uniform, attune]", r"other settings \(rules\)"),
        ("conditions: {noise: 2}\ngate: off\n", "[uniform, attune]", r"other settings \(conditions, gate\)"),
        ("", "[{name: uniform, label: attune}]", r"other settings \(tuner\)"),
        ("", "[{name: attune, label: attune, options: {without: [use-catalog]}}]", r"other settings \(options\)"),
    ],
)
def test_a_folder_of_another_study_is_refused(done: tuple[Path, Tables], more: str, tuners: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        run_study(study(tuners, more), done[0])


def test_a_study_no_campaign_of_which_could_begin_is_refused_before_anything_runs(tmp_path: Path) -> None:
    spec = parse_study(study_text().replace("12x", "2x"))
    with pytest.raises(UserError, match="take at least"):
        run_study(spec, tmp_path / "out")
    assert not list(tmp_path.rglob("record.json"))


def test_a_folder_without_a_study_or_with_a_damaged_one_is_named(done: tuple[Path, Tables], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no study"):
        read_tables(tmp_path)
    shutil.copytree(done[0], tmp_path / "out")
    record = next((tmp_path / "out").rglob("record.json"))
    whole = json.loads(record.read_text())
    for damaged in (
        "{",
        "[" * 100_000,
        json.dumps(whole | {"row": []}),
        json.dumps(whole | {"status": "won"}),
        json.dumps(whole | {"identity": 3}),
        json.dumps(whole | {"row": whole["row"] | {"gain_pct": "much"}}),
        json.dumps(whole | {"row": whole["row"] | {"runs": 2**80}}),
        json.dumps(whole | {"message": "\ud800", "row": {"faults": "\ud800"}}),
        json.dumps(whole | {"runs": [{"label": 5}]}),
    ):
        record.write_text(damaged)
        with pytest.raises(EnvironmentFault, match="remove it"):
            read_tables(tmp_path / "out")
    with pytest.raises(EnvironmentFault, match="no table of a study"):
        read_parquet(record)


def test_reading_changes_nothing(done: tuple[Path, Tables]) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in done[0].rglob("*"))
    assert isinstance(read_tables(done[0]).campaigns, pd.DataFrame)
    assert sorted((path, path.stat().st_mtime_ns) for path in done[0].rglob("*")) == before


def test_a_folder_that_cannot_be_written_stops_the_study_and_is_no_tuners_fault(tmp_path: Path) -> None:
    spec, out = study("[uniform]"), tmp_path / "out"
    folder = next(campaign_jobs(spec, out)).folder
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    with pytest.raises(EnvironmentFault, match="world-100"):
        run_study(spec, out)
    folder.unlink()
    assert (run_study(spec, out).campaigns["status"] == "finished").all()
