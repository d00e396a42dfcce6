"""The truth of the diagnosis experiment: terms taken out of the physics, and tables that count right."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from attune_lab.diagnosis import diagnose
from experiments.diagnosis import worlds
from experiments.diagnosis.__main__ import bottlenecks, first
from experiments.diagnosis.counterfactuals import CLEARLY, TERMS, WORTH, dominant, dominant_memory, saved
from experiments.diagnosis.injected import CLEAN, IN_TIME, injected
from experiments.diagnosis.tables import Confusion, write
from simulator.hardware import parse_cluster
from simulator.job import make_jobs
from simulator.models import models
from simulator.physics import Physics
from simulator.step import simulate_step
from simulator.world import World

CLUSTER = parse_cluster("64xH100-SXM5-80GB")
WORLD = World.draw(100, CLUSTER)


def job(**columns):
    return make_jobs(models()["mixtral-8x7b"], CLUSTER, **{"gbs": 256, "seq_len": 4096, **columns})


def test_a_term_that_is_not_there_saves_nothing():
    alone = saved(job(tp=1, pp=1, ep=1), WORLD)
    for term in ("exposed_tp_comm", "exposed_cp_comm", "exposed_pp_p2p", "pipeline_bubble", "recompute_heavy"):
        assert alone[term] == pytest.approx(0.0, abs=1e-12), term
    assert all(alone[term] >= 0 for term in alone)


@pytest.mark.parametrize(("term", "part", "columns"), [
    ("exposed_tp_comm", "exposed_tp", {"tp": 8}),
    ("exposed_dp_comm", "exposed_dp", {"tp": 2, "overlap_grad_reduce": False, "overlap_param_gather": False}),
    ("exposed_ep_a2a", "exposed_ep", {"ep": 8}),
    ("pipeline_bubble", "bubble", {"pp": 8, "tp": 2, "gbs": 32}),
])  # fmt: skip
def test_a_term_saves_about_what_its_part_of_the_breakdown_takes(term, part, columns):
    """The breakdown is the oracle: what hangs on the term besides adds little."""
    one = job(**columns)
    step = simulate_step(one, WORLD.physics)
    share = float(step.breakdown_s[part][0] / step.step_time_s[0])
    assert share > 0.01
    assert saved(one, WORLD)[term] == pytest.approx(share, rel=0.25)


def test_the_physics_is_left_as_it_was():
    one, before = job(tp=2, ep=8), simulate_step(job(tp=2, ep=8), Physics())
    saved(one, WORLD)
    after = simulate_step(job(tp=2, ep=8), Physics())
    assert np.array_equal(before.step_time_s, after.step_time_s)


def test_what_dominates():
    quiet = dict.fromkeys(TERMS, 0.0)
    assert dominant(quiet) == dominant({**quiet, "launch_bound": 0.9 * WORTH}) == "compute_bound"
    assert dominant({**quiet, "launch_bound": 1.1 * CLEARLY * WORTH}) == "launch_bound"
    assert dominant({**quiet, "launch_bound": 1.1 * WORTH}) is None
    assert dominant({**quiet, "launch_bound": 0.2, "pipeline_bubble": 0.15}) is None


def test_what_fills_the_memory():
    assert dominant_memory(job(ep=1, zero_stage=0), WORLD) == "oom_first_step"
    assert dominant_memory(job(ep=8, tp=8, mbs=16, sequence_parallel=False), WORLD) == "oom_forward"


def test_worlds_are_told_right(monkeypatch):
    """A few of the worlds of the experiment, with seeds that thresholds were looked at on."""
    monkeypatch.setattr(worlds, "SCENARIOS", (worlds.SCENARIOS[1], worlds.SCENARIOS[-1]))
    (full, lean, _, memory, _), _ = bottlenecks(worlds.trials(10, 100))
    for table in (full, lean, memory):
        assert table.cases >= 3
        assert table.right >= 0.9 * table.cases, table.markdown()


def test_what_was_put_in_is_found():
    for run in injected(1, 100, 60):
        found = diagnose(run.report, run.settings, run.log).find(IN_TIME)
        assert (found.name if found else CLEAN) == run.truth, run.how


def test_a_narrower_word_counts_as_the_term():
    run = next(trial for trial in worlds.trials(1, 100) if trial.report.status == "ok")
    full = {**run.settings, "recompute_level": 3}
    seen = run.report.model_copy(update={"breakdown_s": {"compute": 1.0}, "diagnostics": {}, "peak_memory_bytes": ()})
    assert first(diagnose(seen, full)) in ("recompute_heavy", "expert_imbalance")


def test_tables(tmp_path):
    table = Confusion("t", "Table")
    for truth, told in [("a", "a"), ("a", "b"), ("b", "b"), ("b", "b")]:
        table.add(truth, told)
    assert table.summary() == "Table: 3 of 4 right (75.0%), mean over classes 75.0%"
    assert list(csv.reader(io.StringIO(table.csv()))) == [["truth", "a", "b"], ["a", "1", "1"], ["b", "0", "2"]]
    assert "| `a` | 2 | 50% | b 1 |" in write(tmp_path, [table])
    assert {path.name for path in tmp_path.iterdir()} == {"t.csv", "diagnosis.md"}
