"""Simulated loss curves: differences have the sizes that were measured on real ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.curves import Signature, curves
from simulator.hardware import parse_cluster
from simulator.job import Dispatcher, Precision, make_jobs
from simulator.models import models

MODEL, CLUSTER = models()["mixtral-8x7b"], parse_cluster("64xH200-SXM5-141GB")
OBJECTIVE = {"gbs": "256", "lr": "1e-4"}


def job(**columns):
    return make_jobs(MODEL, CLUSTER, **{"gbs": 256, "seq_len": 4096, "pp": 4, "ep": 8, **columns})


def difference(seed, first, second, labels=("a", "b"), **arguments):
    (loss_a, norm_a), (loss_b, norm_b) = (
        curves(seed, j, label, steps=20, objective=OBJECTIVE) for j, label in zip((first, second), labels, strict=True)
    )
    return np.log(loss_b / loss_a), np.log(norm_b / norm_a)


# Change -> largest difference within 20 steps, and of the means. Bounds are the recorded ones.
CHANGES = {
    "repeat": ({}, 2e-4, 5e-5),
    "recompute": ({"recompute": 128}, 3e-4, 1e-4),
    "micro-batch": ({"mbs": 2}, 2e-3, 3e-4),
    "layout": ({"tp": 2, "pp": 2, "ep": 4}, 2e-3, 3e-4),
    "dispatcher": ({"dispatcher": Dispatcher.DEEPEP, "mbs": 2, "permute_fusion": False}, 5e-3, 1e-3),
    "fp8": ({"precision": Precision.FP8_BLOCKWISE}, 1.5e-2, 5e-3),
}


@pytest.mark.parametrize("change", CHANGES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_differences_stay_within_what_was_recorded(change, seed):
    columns, largest, mean = CHANGES[change]
    loss, _ = difference(seed, job(), job(**columns))
    assert 0 < np.abs(loss).max() <= largest
    assert abs(loss.mean()) <= mean


def test_changes_are_ordered_by_size():
    typical = [
        np.median([np.abs(difference(seed, job(), job(**columns))[0]).max() for seed in range(40)])
        for columns, _, _ in (CHANGES[c] for c in ("repeat", "micro-batch", "dispatcher", "fp8"))
    ]
    assert typical == sorted(typical)
    assert typical[-1] > 20 * typical[0]


def test_the_same_label_is_the_same_curve_and_a_short_run_its_prefix():
    long = curves(1, job(), "a", steps=20, objective=OBJECTIVE)
    short = curves(1, job(), "a", steps=8, objective=OBJECTIVE)
    assert all(np.array_equal(x[:8], y) for x, y in zip(long, short, strict=True))


def test_a_run_starts_at_the_entropy_of_its_vocabulary_and_learns():
    loss, norm = curves(1, job(), "a", steps=20, objective=OBJECTIVE)
    assert loss[0] == pytest.approx(np.log(MODEL.vocab), abs=0.2)
    assert loss[-1] < 0.85 * loss[0]
    assert np.all(norm > 0)


def test_another_objective_is_usually_another_curve():
    """Usually: among real curves, too, some objective changes show little within twenty steps."""
    means = []
    for seed in range(40):
        a, _ = curves(seed, job(), "a", steps=20, objective=OBJECTIVE)
        b, _ = curves(seed, job(), "a", steps=20, objective={**OBJECTIVE, "lr": "2e-4"})
        means.append(abs(np.log(b / a).mean()))
    assert np.median(means) > 2e-3


def test_faults_show_what_their_signature_says():
    fault = Signature(step_1=5e-4, bias=2e-3, grad_norm=0.5, diverges_at=15)
    sound, norm = curves(1, job(), "a", steps=20, objective=OBJECTIVE)
    faulty, faulty_norm = curves(1, job(), "a", steps=20, objective=OBJECTIVE, faults=[fault])
    assert np.log(faulty[0] / sound[0]) == pytest.approx(5e-4)
    assert np.log(faulty / sound)[1:14].mean() == pytest.approx(2 * 2e-3 * 7 / 20)
    assert np.allclose(faulty_norm[:14] / norm[:14], 0.5)
    assert np.isnan(faulty[14:]).all()
    assert np.isfinite(faulty[:14]).all()
