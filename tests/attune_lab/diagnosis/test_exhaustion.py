"""What ran out of memory, and ends that are no lack of memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import Estimate, RunReport
from attune_lab.diagnosis import diagnose
from attune_lab.diagnosis.endings import ENDS, STATUS
from attune_lab.diagnosis.memory import NAMED, kinds_of, logit_bytes, single_rank
from attune_lab.lessons.catalog import load
from attune_lab.logs import KINDS, LoggedStep, TrainingLog, read_log
from simulator.hardware import parse_cluster
from simulator.job import make_jobs
from simulator.memory import peak_memory
from simulator.models import models

GIB = 2.0**30
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB"
)


def report(**fields) -> RunReport:
    return RunReport(**{"label": "1", "status": "oom", "provenance": "measured", "steps": 8, **fields})


def estimate(parts: dict[str, float], stages: tuple[float, ...] = (80e9,)) -> Estimate:
    return Estimate(1.0, 1.0, max(stages), 8e10, {}, {}, stage_memory_bytes=stages, memory_parts_bytes=parts)


def names(given: RunReport, known: dict[str, Any] | None = None, log: TrainingLog | None = None, **more) -> list[str]:
    return [symptom.name for symptom in diagnose(given, known or {}, log, **more).symptoms]


def test_every_kind_of_a_log_has_a_word_of_the_catalog():
    assert set(KINDS) == {*NAMED, *ENDS, "oom_first_step", "oom_late"}
    assert {*NAMED.values(), *ENDS.values(), *STATUS.values()} <= set(load().symptoms)


@pytest.mark.parametrize(("parts", "first"), [
    ({"weights": 20e9, "gradients": 20e9, "optimizer": 20e9, "activations": 30e9}, "oom_first_step"),
    ({"weights": 10e9, "optimizer": 10e9, "activations": 40e9, "temporary": 5e9}, "oom_forward"),
])  # fmt: skip
def test_the_largest_part_comes_first(parts, first):
    told = diagnose(report(), {}, estimate=estimate(parts)).symptoms
    assert told[0].name == first
    assert told[0].at_stake == 1.0
    share = max(60e9 / 90e9 if first == "oom_first_step" else 45e9 / 65e9, 0)
    assert f"{share:.0%}" in told[0].evidence


def test_logits_count_on_the_last_stage_alone():
    known = {"mbs": 4, "seq_len": 8192, "cp": 1, "tp": 1, "vocab_padded": 128256, "pp": 2}
    parts = {"weights": 5e9, "activations": 8e9, "temporary": 45e9}
    assert logit_bytes(known) == 10 * 4 * 8192 * 128256
    assert logit_bytes({**known, "cross_entropy_fusion": True}) == 4 * 4 * 8192 * 128256
    assert names(report(message=f"{TORCH} (pipeline stage 1)."), known, estimate=estimate(parts))[0] == "oom_last_stage"
    assert names(report(message=f"{TORCH} (pipeline stage 0)."), known, estimate=estimate(parts))[0] == "oom_forward"
    fullest = estimate(parts, (60e9, 80e9))
    assert names(report(), known, estimate=fullest)[0] == "oom_last_stage"  # where the cost model expects most


def test_counted_logits_are_those_of_the_simulator():
    """The oracle is the simulator's memory without bytes for logits."""
    jobs = make_jobs(models()["llama-3-8b"], parse_cluster("8xH100-SXM5-80GB"), gbs=64, seq_len=8192, mbs=2, tp=4)
    from simulator.memory_physics import DEFAULT_MEMORY_PHYSICS as usual

    none = dataclasses.replace(usual, logit_bytes=0.0)
    less = (
        peak_memory(jobs, usual).peak_allocated_bytes - peak_memory(jobs.take(np.array([0])), none).peak_allocated_bytes
    )
    known = {"mbs": 2, "seq_len": 8192, "cp": 1, "tp": 4, "vocab_padded": jobs.model.vocab}
    assert logit_bytes(known) == pytest.approx(float(less[0, 0]))


@given(st.dictionaries(st.sampled_from(["weights", "gradients", "optimizer", "activations", "temporary", "buffers"]),
                       st.floats(0, 1e11)), st.integers(0, 3))  # fmt: skip
def test_kinds_divide_what_is_held(held, stage):
    known = {"mbs": 1, "seq_len": 4096, "cp": 1, "tp": 1, "vocab_padded": 100_000, "pp": 4}
    kinds = kinds_of(held, known, stage)
    assert sum(kinds.values()) == pytest.approx(sum(size for size in held.values() if size > 0), rel=1e-9, abs=1e-3)
    assert all(size >= 0 for size in kinds.values())


def test_the_step_tells_what_no_line_does():
    assert names(report(step_times_s=(1.0,), message=TORCH))[0] == "oom_optimizer_step"
    assert names(report(step_times_s=(1.0,) * 12, message=TORCH))[0] == "oom_late"
    assert names(report(message=TORCH))[:4] == ["oom_first_step", "oom_forward", "oom_backward", "oom_optimizer_step"]
    assert diagnose(report(message=TORCH), {}).symptoms[0].at_stake == 0.5  # nothing says in what


def test_a_line_comes_before_the_estimate():
    parts = {"weights": 60e9, "activations": 10e9}
    told = names(report(message="NCCL WARN Cuda failure 'out of memory'"), estimate=estimate(parts))
    assert told[0] == "oom_nccl"
    known = diagnose(report(message="NCCL WARN Cuda failure 'out of memory'"), {}).variables
    assert (known["oom_nccl"], known["oom_late"]) == (True, False)  # what lessons' preconditions ask for
    assert not {"oom_first_step", "oom_forward"} & set(told)


def test_one_rank_alone():
    log = TrainingLog("torchtitan", (), memory_bytes={0: 50 * GIB, 1: 51 * GIB, 2: 78 * GIB, 3: 50 * GIB})
    assert names(report(message=TORCH), {"pp": 1}, log)[0] == "oom_single_rank"
    assert list(single_rank(log.memory_bytes, {"pp": 4})) == []  # stages differ
    assert list(single_rank({0: 50.0, 1: 52.0, 2: 53.0}, {})) == []


def test_the_logs_cause_counts_whatever_the_status_says():
    log = read_log(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM\n"
    )
    assert names(report(status="crash"), {}, log)[0] == "oom_host"
    assert (
        names(report(status="hang", message="NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus"))[0]
        == "hardware_fault"
    )


@pytest.mark.parametrize(("status", "message", "first"), [
    ("preempted", "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-01 DUE TO PREEMPTION ***", "preempted"),
    ("timeout", "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***", "time_limit"),
    ("node_failure", "srun: error: Node failure on node-3", "node_failure"),
    ("hang", "Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)", "hang"),
    ("diverged", "found NaN in local grad norm for bucket #0 at iteration 3", "nan"),
    ("crash", "ModuleNotFoundError: No module named 'deep_ep'", "backend_missing"),
    ("invalid", "8 GPUs are no multiple of 3", "launch_error"),
    ("crash", "", "crash"),
    ("hang", "", "hang"),
])  # fmt: skip
def test_ends(status, message, first):
    told = diagnose(report(status=status, message=message), {}).symptoms[0]
    assert (told.name, told.at_stake) == (first, 1.0)
    assert told.evidence


def test_a_loss_that_is_no_number_in_a_run_that_went_on():
    assert names(report(status="ok", loss=(2.0, float("nan"), 2.0))) == ["nan", "always"]
    log = TrainingLog("nemo", (LoggedStep(1, loss=2.0), LoggedStep(2, loss=float("inf"))))
    told = diagnose(report(status="ok"), {}, log).symptoms[0]
    assert (told.name, told.evidence) == ("nan", "the logged loss of step 2 is no number")


def test_lines_are_shown_short_and_clean():
    told = diagnose(report(status="crash", message="boom\x1b[31m \x07" + "x" * 500), {}).symptoms[0]
    assert told.evidence.isprintable()
    assert len(told.evidence) < 250
