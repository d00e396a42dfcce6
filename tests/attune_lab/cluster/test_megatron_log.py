"""A simulated run's log says of it what the reader of real logs finds in it, however it ended."""

from collections import Counter

import pytest

from attune_lab.logs import cross_check, read_log, summarise
from tests.attune_lab.cluster.test_simulated import BASE, SPEC, TAME, cluster

TOO_LARGE = BASE.with_settings({"pp": 1, "ep": 1, "mbs": 4})
ENDS = {
    "hang": {"hang"},
    "node_failure": {"node_failure"},
    "preempted": {"preempted"},
    "timeout": {"time_limit"},
    "diverged": {"nan"},
    "oom": {"oom_first_step"},
}
HARSH = type(TAME)(failures=3000)


def test_steps_memory_and_tokens_read_back_and_agree_with_our_timing(tmp_path):
    report = cluster(100, log_dir=tmp_path).run(BASE, 20, label="run-1")
    log = read_log(report.log_path)
    assert (log.stack, log.failure, log.finished) == ("megatron-lm", None, True)
    assert [step.step_time_s for step in log.steps] == pytest.approx(report.step_times_s, abs=1e-4)
    assert (log.gpus, log.tokens_per_step) == (SPEC.n_gpus, report.tokens_per_step)
    assert list(log.memory_bytes) == [0, 16, 32, 48]
    assert list(log.memory_bytes.values()) == pytest.approx(report.peak_memory_bytes, rel=1e-6)
    assert summarise(log).tokens_per_s_per_gpu == pytest.approx(report.tokens_per_s_per_gpu, rel=0.02)
    assert cross_check(report, log) == ()


def test_the_end_of_every_run_is_found_in_its_log(tmp_path):
    found = Counter()
    for seed in range(100, 130):
        world = cluster(seed, conditions=HARSH, log_dir=tmp_path)
        for label, recipe, limit in (("a", BASE, None), ("b", BASE, 0.5), ("c", TOO_LARGE, None)):
            report = world.run(recipe, 20, label=f"{seed}-{label}", step_limit_s=limit)
            failure = read_log(report.log_path).failure
            assert (failure is None) == (report.status == "ok")
            if failure:
                assert failure.kind in ENDS[report.status]
                found[report.status] += 1
    assert {"oom", "timeout", "preempted", "node_failure"} <= set(found)


def test_a_line_forged_into_a_log_is_named_and_changes_no_figure(tmp_path):
    report = cluster(100, log_dir=tmp_path).run(BASE, 20, label="run-1")
    lines = (tmp_path / "run-1.log").read_text().splitlines(keepends=True)
    last = next(line for line in reversed(lines) if "iteration" in line and "elapsed" in line)
    ours = f"(ms): {1000 * report.step_times_s[-1]:.1f}"
    assert ours in last
    forged = last.replace(ours, "(ms): 1.0")
    for text in (
        "".join(lines) + forged,
        "".join(lines) + last.replace("      20/", "      21/"),
        "".join(lines).replace(last, forged),
    ):
        before = report.model_dump_json()
        assert cross_check(report, read_log(text))
        assert report.model_dump_json() == before
