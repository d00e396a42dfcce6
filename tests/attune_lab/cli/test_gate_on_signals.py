"""`attune gate` on run folders that hold signals."""

import json

import pytest

from attune_lab.gate.run_files import read_twins
from tests.attune_lab.gate.evidence.signals_for_tests import run, scaled

LOSSES = [6.2 - 0.05 * t for t in range(1, 21)]


@pytest.fixture
def folders(tmp_path):
    for name, signals in (
        ("base", run()), ("good", run(1)), ("bad", run(1, lambda g: scaled(g, 0.5))), ("bare", None),
        ("twins/a", run(2)), ("twins/b", run(3)),
    ):  # fmt: skip
        folder = tmp_path / name
        folder.mkdir(parents=True)
        lines = [f" iteration {t}/ 20 | lm loss: {loss:.6E} | grad norm: 1.3 |" for t, loss in enumerate(LOSSES, 1)]
        (folder / "train.log").write_text("\n".join(lines))
        if signals is not None:
            signals.write(folder / "signals.json")
    return tmp_path


def test_run_folders_with_signals_are_judged_by_them(attune, folders):
    common = ("gate", "--baseline", folders / "base", "--twin", folders / "twins")
    assert attune(*common, "--candidate", folders / "good").code == 0
    page = folders / "page.html"
    outcome = attune(*common, "--candidate", folders / "bad", "--html", page, "--json")
    assert outcome.code == 1
    assert set(outcome.json) == {"verdict", "reasons", "checks"}
    assert "gradient norm" in outcome.json["reasons"][0]
    assert outcome.json["checks"][0]["family"] == ""
    assert ">reject</span>" in page.read_text()
    shown = attune(*common, "--candidate", folders / "bad").stdout
    assert shown.startswith("reject, likely gradient scale")


def test_a_candidate_without_the_baselines_signals_is_left_open(attune, folders):
    outcome = attune("gate", "--baseline", folders / "base", "--candidate", folders / "bare", "--json")
    assert outcome.json["verdict"] == "inconclusive"
    other = attune("gate", "--baseline", folders / "bare", "--candidate", folders / "good", "--json")
    assert other.json["verdict"] == "pass"
    assert {c["outcome"] for c in other.json["checks"] if c["name"] == "signals"} == {"skipped"}


def test_signals_of_another_run_are_not_believed(attune, folders):
    other = run(1, loss=6.0, logged={"lm loss": 6.0})
    other.write(folders / "good" / "signals.json")
    outcome = attune("gate", "--baseline", folders / "base", "--candidate", folders / "good", "--json")
    assert outcome.json["verdict"] == "inconclusive"
    assert "another loss at step 1" in outcome.json["reasons"][0]


def test_a_folder_of_run_folders_is_that_many_twins(folders):
    assert [twin.signals for twin in read_twins([str(folders / "twins")])] == [run(2), run(3)]
    assert len(read_twins([str(folders / "base"), str(folders / "twins")])) == 3


@pytest.mark.parametrize("text", ["", "{", json.dumps({"producer": "x"}), json.dumps({"steps": [{"step": "one"}]})])
def test_broken_signals_are_one_sentence(attune, folders, text):
    (folders / "base" / "signals.json").write_text(text)
    outcome = attune("gate", "--baseline", folders / "base", "--candidate", folders / "good")
    assert outcome.code == 2
    assert "signals.json" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_page_that_cannot_be_written_is_one_sentence(attune, folders):
    outcome = attune(
        "gate", "--baseline", folders / "base", "--candidate", folders / "good", "--html", folders / "no/x.html"
    )
    assert outcome.code == 2
    assert "cannot be written" in outcome.stderr
