"""`attune simulate --timeline`: what is written, and what is refused."""

import builtins
import json

import pytest

SIMULATE = ("simulate", "llama-3.1-405b", "--cluster", "512xH100-SXM5-80GB", "--json")


def test_a_picture_comes_with_its_trace(attune, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = attune(*SIMULATE, "--timeline", "made/step.png")
    assert outcome.json["timeline"] == {"png": "made/step.png", "trace": "made/step.json"}
    assert (tmp_path / "made/step.png").read_bytes().startswith(b"\x89PNG")
    trace = json.loads((tmp_path / "made/step.json").read_text())
    assert trace["otherData"]["predicted_step_time_s"] == pytest.approx(outcome.json["step_time_s"])
    assert "llama-3.1-405b on 512xH100-SXM5-80GB" in trace["otherData"]["title"]


def test_a_folder_gets_both(attune, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "made").mkdir()
    assert attune(*SIMULATE, "--timeline", "made").json["timeline"]["trace"] == "made/timeline.json"


def test_a_trace_needs_no_matplotlib(attune, tmp_path, monkeypatch):
    known = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return known(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert attune(*SIMULATE, "--timeline", "step.json").json["timeline"] == {"png": None, "trace": "step.json"}
    refused = attune(*SIMULATE, "--timeline", "step.png")
    assert refused.code == 2
    assert "pip install 'attune-lab[plots]'" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_other_names_are_refused(attune):
    refused = attune(*SIMULATE, "--timeline", "step.gif")
    assert refused.code == 2
    assert ".png" in refused.stderr


def test_no_timeline_unless_asked(attune):
    assert "timeline" not in attune(*SIMULATE).json
