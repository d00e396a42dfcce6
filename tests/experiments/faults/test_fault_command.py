"""The whole command on tiny runs: trained, kept, judged, reported, and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attune_lab.trainer.config import TrainerConfig
from experiments.faults import suite
from experiments.faults.__main__ import kept, main
from experiments.faults.plan import Case, Run

TINY = TrainerConfig(
    hidden=16, heads=2, kv_groups=2, ffn=32, vocab_size=64, num_layers=2, gbs=4, seq_len=16, train_iters=6
)
BASELINE = Run("baseline", TINY)
CASES = [
    Case("dp=2", "legitimate", BASELINE, Run("dp=2", TINY.model_copy(update={"dp": 2})), group="layout"),
    Case(
        "warm",
        "legitimate",
        Run("warm baseline", TINY, warm=True),
        Run("mbs=4", TINY.model_copy(update={"mbs": 4}), warm=True),
    ),
    Case("F085", "fault", BASELINE, Run("F085", TINY, "F085"), group="optimizer", note="<b>found</b>"),
]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "cases", lambda name: CASES)


def test_from_training_to_report_and_again_from_the_cache(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--suite", "ci", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    code = main([*arguments, "--json"])
    printed = capsys.readouterr()
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert json.loads(printed.out) == found
    assert printed.err == ""
    assert found["cases"] == {"fault": 1, "legitimate": 2}
    assert [row["name"] for row in found["judgements"]] == ["dp=2", "warm", "F085"]
    assert code == (0 if kept(found) else 1)
    assert "<b>found" not in (tmp_path / "out" / "report.html").read_text()

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    assert len([path for path in before if path.name == "train.log"]) == 5
    assert main(arguments) == code
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == before
    assert capsys.readouterr().out == (tmp_path / "out" / "report.md").read_text() + "\n"
    assert main([*arguments, "--full"]) == code
    assert all(path.stat().st_mtime_ns > before[path] for path in (tmp_path / "cache").rglob("train.log"))


def test_one_case_can_be_chosen(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "dp=2", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out"), "--json"]
    main(arguments)
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["judgements"]] == ["dp=2"]


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--workers", "0"], 2, "--workers 0: give 1 or more"),
        (["--cache", "/dev/null/x"], 3, "name another folder"),
        (["--only", "F058"], 2, "--only F058: the suite has no such case, but e.g. F085"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, reason: str
) -> None:
    assert main([*arguments, "--out", str(tmp_path)]) == code
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("caught", "rejected", "expected"), [(95, 0, True), (94, 0, False), (100, 1, False), (100, 0, True)]
)
def test_promises(caught: int, rejected: int, expected: bool) -> None:
    found = {
        "cases": {"fault": 100},
        "rejected": {"fault": {"signals": caught}, "legitimate": {"loss": 0, "signals": rejected}},
    }
    assert kept(found) is expected
