"""What people see of `attune validate`; the report itself is made in `tests/simulator/calibration`."""

import json

import pytest

import simulator
from attune_lab import calibration


@pytest.fixture
def report(monkeypatch):
    """The committed report, as if it had just been made."""
    path = calibration.Path(simulator.__file__).parent / "data" / "accuracy.json"
    data = json.loads(path.read_text()) | {"worse": [], "written": ["report/accuracy.md"], "left_out": "the plots"}
    monkeypatch.setattr(calibration, "validate_to", lambda *_: data)
    monkeypatch.setenv("COLUMNS", "80")
    return data


def test_80_columns_hold_every_word(attune, report):
    shown = attune("validate").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    words = shown.split()
    for figure in report["figures"].values():
        assert set(figure["what"].split()) <= set(words)
    assert "left out: the plots" in shown


def test_the_name_of_a_source_is_no_markup(attune, report):
    first = report["tables"]["source"][0]
    report["tables"]["source"] = [first | {"group": "[/mine]"}]
    assert "[/mine]" in attune("validate").stdout


def test_a_figure_that_fell_is_an_answer_of_no(attune, report):
    report["worse"] = ["time_median is 0.2, was 0.1"]
    outcome = attune("validate")
    assert outcome.code == 1
    assert "worse: time_median" in outcome.stdout
