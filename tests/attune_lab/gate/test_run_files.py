"""Runs named by a user: what is no run is refused in one sentence, whatever is in its files."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.gate.page import render
from attune_lab.gate.run import compare_runs
from attune_lab.gate.run_files import Run, read_recorded, read_run
from tests.attune_lab.gate.evidence.signals_for_tests import gradients, record, run
from tests.attune_lab.gate.test_page import curve

RECORDED = json.loads(run(1).model_dump_json())
PLACES = [
    *(("effective", name) for name in RECORDED["effective"]),
    *(("steps", 0, name) for name in RECORDED["steps"][0]),
    *(("steps", 1, name, "head") for name in ("grad_norm", "grad_sketch", "update_norm", "weight_norm", "unchanged")),
    *((name,) for name in RECORDED),
]
ODD = st.sampled_from(
    [None, True, -1, 0, 10**30, 1e308, 1e-320, 0.5, "NaN", "Infinity", "", "x", "12", "[red]x[/]", [], [[]], {"a": {}}]
)


@pytest.mark.parametrize("text", ["", "  ", ",", "recipe.sh,", ",run.csv"])
def test_an_empty_name_is_not_the_current_folder(text, tmp_path, monkeypatch):
    (tmp_path / "run.csv").write_text("step,lm_loss\n1,9.0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="names no run"):
        read_run(text)


def test_links_into_the_void_and_devices_are_called_what_they_are(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    for name, words in ((str(tmp_path / "loop"), "cannot be read"), (str(tmp_path / "gone"), "does not exist"),
                        ("/dev/null", "device or a pipe")):  # fmt: skip
        with pytest.raises(UserError, match=words):
            read_run(name)


def test_signals_that_cannot_be_opened_are_not_taken_for_none(tmp_path):
    (tmp_path / "run.csv").write_text("step,lm_loss\n1,9.0\n")
    (tmp_path / "signals.json").symlink_to("nowhere")
    with pytest.raises(UserError, match="does not exist"):
        read_run(str(tmp_path))


@settings(max_examples=150, deadline=None)
@given(place=st.sampled_from(PLACES), value=ODD, of_candidate=st.booleans())
def test_edited_signals_are_judged_or_refused(tmp_path_factory, place, value, of_candidate):
    """Whatever stands in one field of a signals file: a verdict and a page, or one sentence."""
    edited = copy.deepcopy(RECORDED)
    inner = edited
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    file = tmp_path_factory.mktemp("edited") / "signals.json"
    file.write_text(json.dumps(edited))
    try:
        odd = Run("odd", curve(1), signals=read_recorded(file))
    except UserError:
        return
    pair = (Run("right", curve(), signals=run()), odd)
    base, cand = pair if of_candidate else pair[::-1]
    render(compare_runs(base, cand), base, cand)


def test_steps_must_be_in_order(tmp_path):
    """A second record of a step would be one that no comparison looks at."""
    for numbers in ((1, 1), (2, 1), (0, 1), (-1, 1)):
        steps = tuple(record(n, gradients(1)) for n in numbers)
        (tmp_path / "signals.json").write_text(run().model_copy(update={"steps": steps}).model_dump_json())
        with pytest.raises(UserError, match="ascending order"):
            read_recorded(tmp_path / "signals.json")


def with_logged(name, value):
    """Signals whose first step printed something else, or nothing (None)."""
    signals = run(1)
    printed = {n: v for n, v in {**signals.steps[0].logged, name: value}.items() if v is not None}
    first = signals.steps[0].model_copy(update={"logged": printed})
    return signals.model_copy(update={"steps": (first, *signals.steps[1:])})


def doubt(candidate):
    verdict = compare_runs(Run("a", curve(), signals=run()), Run("b", curve(1), signals=candidate))
    return next((c.reason for c in verdict.checks if c.name == "signals"), None)


def test_signals_of_another_run_are_recognised_whatever_they_leave_out():
    assert doubt(run(1)) is None
    assert doubt(with_logged("lm loss", None)) is None
    assert "of another run" in doubt(with_logged("lm loss", 6.2))
    assert "of another run" in doubt(with_logged("lm loss", float("nan")))
    steps = tuple(s.model_copy(update={"loss": s.loss * 1.01, "logged": {}}) for s in run(1).steps)
    assert "of another run" in doubt(run(1).model_copy(update={"steps": steps}))
    late = tuple(s.model_copy(update={"step": s.step + 100}) for s in run(1).steps)
    assert "none of the steps" in doubt(run(1).model_copy(update={"steps": late}))


def test_runs_of_other_releases_are_not_compared():
    base = run().model_copy(update={"stack": {"torch": "2.13.0"}})
    for stack in ({}, {"torch": "2.12.0"}):
        verdict = compare_runs(
            Run("a", curve(), signals=base), Run("b", curve(1), signals=run(1).model_copy(update={"stack": stack}))
        )
        assert verdict.verdict == "inconclusive"
        assert "versions of torch" in verdict.reasons[0]
