"""Hostile input and surroundings: nothing hangs, nothing is executed, nothing reaches the terminal as a command."""

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from attune_lab import workbench
from attune_lab.campaign.budget import Budget, TunerBudget
from attune_lab.campaign.search import TRACEBACK
from attune_lab.contracts import Proposal

SCRIPT = (Path(__file__).parent / "tiny.sh").read_text()
CLUSTER = ("--cluster", "8xH200-SXM5-141GB")
ESCAPES = ("\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\u202e")


def _sentence(outcome, *codes):
    assert outcome.code in (codes or (2, 3)), outcome
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("attune: ")
    assert "internal error" not in line
    return line


@pytest.mark.parametrize("command", ["tune", "simulate", "predict", "gate"])
@pytest.mark.parametrize("kind", ["pipe", "zero", "loop", "folder", "null", "long name"])
def test_what_is_no_regular_file_is_refused_without_waiting_for_it(attune, tmp_path, command, kind):
    path = tmp_path / ("x" * (300 if kind == "long name" else 3))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "long name":
        path.symlink_to({"zero": "/dev/zero", "loop": path.name, "null": "/dev/null"}[kind])
    good = tmp_path / "good.csv"
    good.write_text("step,lm_loss\n" + "".join(f"{i},{9 - i * 0.1}\n" for i in range(20)))
    words = {
        "tune": (path, *CLUSTER, "--budget", "40x", "--out", tmp_path / "c"),
        "simulate": (path, *CLUSTER),
        "predict": (path, "--out", tmp_path / "out.csv"),
        "gate": ("--baseline", good, "--candidate", path),
    }[command]
    _sentence(attune(command, *words), 2)


@pytest.mark.parametrize("escape", ESCAPES)
def test_terminal_commands_in_names_and_values_are_shown_not_sent(attune, tmp_path, escape):
    named = tmp_path / f"[red]{escape}.sh"
    named.write_text(SCRIPT.replace("--bf16", f"--bf16 --save '{escape}' '--[bold]{escape}' 1"))
    shown = attune("simulate", named, *CLUSTER)
    refused = attune("simulate", escape, *CLUSTER)
    assert shown.code == 0
    assert "[red]" in shown.stdout
    assert not any(
        mark in shown.stdout + shown.stderr + refused.stderr for mark in ("\x1b]", "\x1b[2", "\x9b", "\u202e")
    )


@pytest.mark.parametrize("place", ["--hidden-size {}", "--save {}", "--pipeline-model-parallel-layout '{}'"])
@pytest.mark.parametrize(
    "form", ["$(touch {})", "`touch {}`", "${{X:=$(touch {})}}", "$((a[$(touch {})]))", "<(touch {})"]
)
def test_no_part_of_a_recipe_is_ever_executed(attune, tmp_path, place, form):
    canary, path = tmp_path / "canary", tmp_path / "recipe.sh"
    flag = place.format(form.format(canary))
    path.write_text(SCRIPT.replace("--hidden-size 4096", flag if "hidden" in flag else f"--hidden-size 4096 {flag}"))
    attune("simulate", path, *CLUSTER)
    assert not canary.exists()


@pytest.mark.parametrize(
    "text",
    [
        "A=(a a)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + SCRIPT.replace("--bf16", "--bf16 ${A[@]}"),
        SCRIPT.replace("--bf16", "--bf16 --num-experts 8 --moe-layer-freq '[" + "1," * 50_000 + "1]*9999'"),
        SCRIPT.replace("--bf16", "--bf16 --num-experts 8 --moe-router-topk 9"),
        SCRIPT.replace("--bf16", "--bf16 --make-vocab-size-divisible-by 0"),
    ],
    ids=["doubling array", "long pattern", "top-k", "zero divisor"],
)
def test_values_that_explode_or_divide_by_zero_are_refused(attune, tmp_path, text):
    (tmp_path / "recipe.sh").write_text(text)
    _sentence(attune("simulate", tmp_path / "recipe.sh", *CLUSTER), 2)


@pytest.mark.parametrize("text", ["[" * 10_000, "? [a, b]\n: 1\n", "MODEL_ARGS:\n  ? {a: b}\n  : 1\n"])
def test_yaml_that_is_nested_is_refused(attune, tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    assert (
        "line 1" in (line := _sentence(attune("simulate", tmp_path / "recipe.yaml", *CLUSTER), 2)) or "line 2" in line
    )


@pytest.mark.parametrize(
    "loss", ["1e999", "1e400", "-1e999", "1e-99999999", "9" * 5000, "low", "1,5", "", "nan"], ids=lambda text: text[:9]
)
def test_losses_that_are_no_numbers_never_pass_the_gate(attune, tmp_path, loss):
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    rows = [f"{i},{9 - i * 0.1:.3f}" for i in range(20)]
    good.write_text("\n".join(["step,lm_loss", *rows]))
    bad.write_text("\n".join(["step,lm_loss", *rows[:5], f"5,{loss}", *rows[6:]]))
    outcome = attune("gate", "--baseline", good, "--candidate", bad)
    assert outcome.code in (1, 2)
    assert "internal error" not in outcome.stderr


@pytest.mark.parametrize("step", ["nan", "1e300", "9" * 30, "-3", "3.5"])
def test_steps_that_are_none_are_refused(attune, tmp_path, step):
    bad = tmp_path / "bad.csv"
    bad.write_text(f"step,lm_loss\n1,2.0\n{step},1.9\n")
    assert "step" in _sentence(attune("gate", "--baseline", bad, "--candidate", bad), 2)


class _Odd:
    """A tuner that does what its name says."""

    deed = staticmethod(lambda: None)

    def __init__(self, task):
        self.baseline = task.baseline

    def ask(self):
        return self.deed()

    def tell(self, proposal, report):
        """Learn nothing."""


def _exit():
    sys.exit(0)


def _interrupt():
    raise KeyboardInterrupt


def _tuner_of(monkeypatch, entry):
    monkeypatch.setattr(workbench, "tuner_entry_points", lambda: {"odd": entry})


class _Entry:
    def __init__(self, factory):
        self.load, self.dist = lambda: factory, None


@pytest.mark.parametrize(
    ("deed", "code"),
    [
        (_exit, 1),
        (_interrupt, 130),
        (lambda: 1 / 0, 1),
        (lambda: 5, 1),
        (lambda: Proposal("nothing"), 1),
        (lambda: None, 0),
    ],
)
def test_whatever_a_tuner_does_the_command_answers(attune, monkeypatch, tmp_path, deed, code):
    (tmp_path / "recipe.sh").write_text(SCRIPT)
    _tuner_of(monkeypatch, _Entry(type("Odd", (_Odd,), {"deed": staticmethod(deed)})))
    outcome = attune(
        "tune", tmp_path / "recipe.sh", *CLUSTER, "--budget", "40x", "--tuner", "odd", "--json", "--out", tmp_path / "c"
    )
    assert outcome.code == code
    assert ("error" in outcome.json) == (code == 130)
    if code < 2:
        assert outcome.json["tuner_failed"] == bool(code)


def test_a_tuner_that_fails_is_told_where_and_its_campaign_is_named_when_learnt(attune, monkeypatch, tmp_path):
    (tmp_path / "recipe.sh").write_text(SCRIPT)
    _tuner_of(monkeypatch, _Entry(type("Odd", (_Odd,), {"deed": staticmethod(lambda: {}["n\x1b[2J"])})))
    words = (tmp_path / "recipe.sh", *CLUSTER, "--budget", "40x", "--tuner", "odd", "--out", tmp_path / "c")
    failed = attune("tune", *words, "--json")
    assert (failed.code, attune("tune", *words).code) == (1, 1)
    place = f"; {Path(__file__).name}, line "
    assert place in failed.json["stop_reason"]
    told = (tmp_path / "c" / TRACEBACK).read_text()
    assert "Traceback" in told
    assert "return self.deed()" in told
    assert attune("replay", tmp_path / "c").code == 0
    learnt = attune("lessons", "learn", tmp_path / "c", "--into", tmp_path / "l.json", "--json").json
    assert [place in row["why"] for row in learnt["tuner_failed"]] == [True]
    assert "KeyError" in attune("lessons", "learn", tmp_path / "c", "--into", tmp_path / "l.json").stdout


def test_a_tuner_that_prints_does_not_spoil_the_json(attune, monkeypatch, tmp_path):
    (tmp_path / "recipe.sh").write_text(SCRIPT)
    _tuner_of(monkeypatch, _Entry(type("Odd", (_Odd,), {"deed": staticmethod(lambda: print("noise"))})))
    words = ("--budget", "40x", "--tuner", "odd", "--json", "--out", tmp_path / "c")
    outcome = attune("tune", tmp_path / "recipe.sh", *CLUSTER, *words)
    assert outcome.json["kept_baseline"]
    assert "noise" in outcome.stderr


def test_the_budget_a_tuner_sees_cannot_be_written():
    ledger = Budget(100)
    seen = TunerBudget(ledger, 1.0)
    for name in ("total", "left_for_search"):
        with pytest.raises(AttributeError):
            setattr(seen, name, 1e9)
    assert not any(isinstance(value, Budget) for value in vars(seen).values())


def test_a_name_that_is_no_text_is_refused(attune):
    assert "UTF-8" in _sentence(attune("simulate", os.fsdecode(b"\xff.sh"), *CLUSTER), 2)


@pytest.mark.parametrize("factory", [lambda task: 1 / 0, lambda task: None, lambda task: task])
def test_a_tuner_that_cannot_be_set_up_is_refused_before_anything_is_spent(attune, monkeypatch, tmp_path, factory):
    (tmp_path / "recipe.sh").write_text(SCRIPT)
    _tuner_of(monkeypatch, _Entry(factory))
    outcome = attune(
        "tune", tmp_path / "recipe.sh", *CLUSTER, "--budget", "40x", "--tuner", "odd", "--out", tmp_path / "c"
    )
    assert "set up" in _sentence(outcome, 2)
    assert not (tmp_path / "c").exists()


def test_a_tuner_that_does_not_import_hides_no_other(attune, monkeypatch):
    _tuner_of(monkeypatch, EntryPoint("odd", "no.such.module:Tuner", "attune.tuners"))
    outcome = attune("tuners", "--json")
    assert outcome.code == 0
    assert "does not import" in outcome.json["tuners"][0]["summary"]


@pytest.mark.parametrize("words", [["recipes"], ["lessons", "--json"], ["simulate", "nope", "--cluster", "8xH200"]])
@pytest.mark.parametrize("sink", ["left", "full", "closed"])
def test_output_nobody_can_read_ends_quietly(words, sink):
    program = "import sys; from attune_lab.cli import main; sys.argv[0] = 'attune'; main()"
    shell = {"left": '"$@" | true; exit ${PIPESTATUS[0]}', "full": '"$@" > /dev/full', "closed": '"$@" >&-'}[sink]
    done = subprocess.run(
        ["bash", "-c", shell, "bash", sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not re.search("Traceback|Exception ignored|internal", done.stderr)
    assert done.returncode in (0, 2, 3, 141)
    assert done.returncode != 0 or sink != "full"


def test_a_shipped_file_removed_since_is_written_again(attune, tmp_path):
    (tmp_path / "recipe.sh").write_text(SCRIPT)
    words = ("tune", tmp_path / "recipe.sh", *CLUSTER, "--budget", "40x", "--out", tmp_path / "c", "--json")
    first = attune(*words).json
    shipped = Path(first["shipped_path"])
    content = shipped.read_bytes()
    shipped.unlink()
    (tmp_path / "c" / "result.json").unlink()
    assert attune(*words).json == first
    assert shipped.read_bytes() == content
    assert (tmp_path / "c" / "result.json").exists()
    (tmp_path / "c").rename(tmp_path / "moved")
    moved = attune(*words[:-2], tmp_path / "moved", "--json").json
    assert moved["shipped_path"] == str(tmp_path / "moved" / "shipped" / "recipe.sh")
    assert {**moved, "out": first["out"], "shipped_path": first["shipped_path"]} == first
    assert not (tmp_path / "c").exists()


def test_a_budget_refused_leaves_the_folder_free_for_a_larger_one(attune, tmp_path):
    (tmp_path / "recipe.sh").write_text(SCRIPT)
    words = ("tune", tmp_path / "recipe.sh", *CLUSTER, "--out", tmp_path / "c")
    _sentence(attune(*words, "--budget", "1x"), 2)
    assert attune(*words, "--budget", "40x").code == 0


def test_what_an_included_file_says_is_never_tried_as_it_could_not_be_shipped(attune, tmp_path):
    """Settings of included files cannot be edited; the campaign must find out before it spends, not when it ships."""
    *settings, launch = Path(__file__).with_name("tiny.sh").read_text().splitlines()
    (tmp_path / "settings.env").write_text("\n".join(settings[1:]))
    recipe = tmp_path / "job.sh"
    recipe.write_text(f"#!/bin/bash\nsource ./settings.env\n{launch}\n")
    done = attune(
        "tune", recipe, "--cluster", "8xH200-SXM5-141GB", "--budget", "16x", "--out", tmp_path / "o", "--json"
    )
    assert done.code == 0
    tried = [run for run in done.json["runs"] if run["purpose"] == "search"]
    assert any("could not be shipped" in run["message"] and run["gpu_hours"] == 0 for run in tried)
    ran = [run for run in tried if run["status"] == "ok"]
    assert all(key.startswith("env.") for run in ran for key in run["changed"])
    assert attune("replay", tmp_path / "o").code == 0


def test_one_bad_row_spoils_no_other_prediction(attune, tmp_path):
    points, out = tmp_path / "points.csv", tmp_path / "out.csv"
    row = "llama-3-70b,H100-SXM5-80GB,64,8192,8,{},{}"
    bad = ["nvfp4,", "bf16,inter_node=fooGbps", "bf16,inter_node=0Gbps", "bf16,intra_node=nanGB/s"]
    rows = ["model,accelerator,n_gpus,seq_len,tp,precision,knobs", row.format("bf16", "")]
    rows += ["llama-3-70b,H100-SXM5-80GB,64,8192,8," + cells for cells in bad]
    points.write_text("\n".join(rows))
    outcome = attune("predict", points, "--out", out, "--json")
    assert outcome.code == 0
    statuses = [line.split(",")[7] for line in out.read_text().splitlines()[1:]]
    assert statuses[0] in ("ok", "oom")
    assert set(statuses[1:]) <= {"invalid", "unsupported"}


def test_predicting_onto_the_input_or_a_device_loses_nothing(attune, tmp_path):
    points, pipe = tmp_path / "points.csv", tmp_path / "pipe"
    points.write_text("model,accelerator,n_gpus,seq_len\nllama-3-70b,H100-SXM5-80GB,64,8192\n")
    os.mkfifo(pipe)
    _sentence(attune("predict", points, "--out", pipe), 3)
    assert attune("predict", points, "--out", points).code == 0
    assert points.read_text().splitlines()[1].startswith("llama-3-70b,H100-SXM5-80GB,64,8192,")
    assert list(tmp_path.glob("*.partial")) == []
