"""`attune logs` as a shell sees it."""

import os
import signal
import subprocess
import sys

import pytest

from tests.attune_lab.logs.printed import Step, megatron, nemo

LINES = [megatron(Step(i, 2.0, 9.0 - i, 1.5, 1.0, 400.0)) + "\n" for i in range(1, 7)]
START = "  world_size ........ 64\n  seq_length ........ 4096\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has\n"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(START + "".join(LINES) + OOM)
    return path


def test_one_file_is_the_object_itself(attune, log):
    outcome = attune("logs", log, "--json")
    assert outcome.code == 0
    said = outcome.json
    assert {"stack", "steps", "summary", "failure"} <= set(said)
    assert said["stack"] == "megatron-lm"
    assert [step["step"] for step in said["steps"]] == [1, 2, 3, 4, 5, 6]
    assert said["summary"]["tokens_per_s_per_gpu"] == 2048.0
    assert said["failure"]["kind"] == "oom_late"
    assert said["failure"]["evidence"] == OOM.strip()
    assert said["failure"]["line"] == 9


def test_several_files_are_a_list_each_with_its_name(attune, log, tmp_path):
    (tmp_path / "b.log").write_text("".join(nemo(Step(i, 2.0, 9.0, 1.5, 1.0, 400.0)) + "\n" for i in range(1, 7)))
    said = attune("logs", log, "b.log", "--json", "--gpus", "8", "--tokens-per-step", "1000").json["logs"]
    assert [(entry["file"], entry["stack"]) for entry in said] == [(str(log), "megatron-lm"), ("b.log", "nemo")]
    assert said[1]["failure"] is None
    assert said[1]["summary"]["tokens_per_s_per_gpu"] == 62.5


def test_a_person_reads_figures_the_failure_and_the_steps(attune, log):
    outcome = attune("logs", log, "--steps")
    assert outcome.code == 0
    for words in ("megatron-lm", "2,048", "ended: GPU memory ran out", "line 9: torch.OutOfMemoryError", "grad norm"):
        assert words in outcome.stdout


def test_a_name_and_a_log_full_of_markup_are_shown_as_they_are(attune, tmp_path):
    path = tmp_path / "[red]x.log"
    path.write_text(LINES[0] + "RuntimeError: CUDA error: [bold]\x1b[2J\x07 broken\n")
    outcome = attune("logs", path)
    assert outcome.code == 0
    assert "[red]x.log" in outcome.stdout.replace("\n", "")
    assert "[bold]" in outcome.stdout
    assert "\x07" not in outcome.stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("missing.log",), "does not exist"),
        (("/dev/null",), "device"),
        (("novel.txt",), "no line of a known stack"),
        (("novel.txt", "novel.txt", "--follow"), "one file"),
        (("novel.txt", "--gpus", "0"), "gpus"),
        ((), "FILE"),
    ],
)
def test_what_is_no_log_is_refused_in_one_sentence(attune, tmp_path, words, hint):
    (tmp_path / "novel.txt").write_text("It was a dark night.\nThe iteration of days went on.\n")
    outcome = attune("logs", *words)
    assert outcome.code == 2
    assert hint in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_run_that_failed_before_any_step_is_read(attune, tmp_path):
    (tmp_path / "x.log").write_text("train.py: error: unrecognized arguments: --fast\n")
    said = attune("logs", "x.log", "--json")
    assert (said.code, said.json["stack"], said.json["failure"]["kind"]) == (0, "unknown", "launch_error")


def test_ctrl_c_ends_following_with_what_was_read(tmp_path):
    """A real process, a real signal: it is sent once the first step has been shown."""
    path = tmp_path / "x.log"
    path.write_text(LINES[0])
    code = "from attune_lab.cli import main; main()"
    command = [sys.executable, "-c", code, "logs", "--follow", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.getcwd()
    ) as process:
        assert "step 1" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert "megatron-lm" in stdout
