"""`attune compare`: one JSON object, a table for people, refusals in one sentence, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STUDY = """
name: tiny
recipes: ['{recipe}']
clusters: [8xH200-SXM5-141GB]
budget: 12x
worlds: {{first: 100, count: 1}}
oracle: off
tuners: [attune, {{name: attune, label: no catalog, options: {{without: [use-catalog]}}}}]
"""


def written(folder: Path, change: tuple[str, str] = ("", "")) -> Path:
    path = folder / "study.yaml"
    path.write_text(STUDY.format(recipe=Path(__file__).with_name("tiny.sh")).replace(*change))
    return path


def test_json_then_the_same_from_the_folder_as_a_table(attune, tmp_path):
    study = written(tmp_path)
    data = attune("compare", study, "--workers", "2", "--json").json
    assert (data["campaigns"], data["statuses"]) == (2, {"finished": 2})
    assert {row["tuner"] for row in data["tuners"]} == {"attune", "no catalog"}
    assert Path(data["out"]).joinpath("campaigns.parquet").is_file()
    assert {Path(path).name for path in data["report"]} == {"report.md", "report.html"}
    assert all(Path(path).is_file() for path in data["report"])
    again = attune("compare", study)
    assert again.code == 0
    assert "no catalog" in again.stdout
    assert data["out"] in again.stdout
    assert "2 of 2 campaigns were done before" in again.stderr


def test_refusals(attune, tmp_path):
    for change, words, said in (
        (("[attune", "[atune"), (), "did you mean attune?"),
        (("use-catalog", "one-levr"), (), "no catalog: "),
        (("12x", "0.1x"), (), "less than one run"),
        (("", ""), ("--engine", "slurm"), "no such engine"),
    ):
        refused = attune("compare", written(tmp_path, change), *words)
        assert (refused.code, said in refused.stderr, refused.stderr.count("\n")) == (2, True, 1)


def test_a_campaign_that_is_refused_is_no_success(attune, tmp_path):
    change = ("[8xH200-SXM5-141GB]", "[8xH200-SXM5-141GB, 3xH200-SXM5-141GB]")
    outcome = attune("compare", written(tmp_path, change), "--json")
    assert (outcome.code, outcome.json["statuses"]) == (1, {"finished": 2, "refused": 2})


def test_an_interrupted_study_ends_at_once_and_leaves_no_process(tmp_path):
    command = [sys.executable, "-c", "from attune_lab.cli import main; main()", "compare", written(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while not any(file.read_text() for file in tmp_path.rglob("campaign.pid")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith("attune: stopped; run the same command again")
    for pid in filter(None, (file.read_text().strip() for file in tmp_path.rglob("campaign.pid"))):
        assert not Path(f"/proc/{pid}").exists()
