"""The fit finds constants that generated the data, and holds out what it is told to."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.calibration.fit import fit, layout_of, select
from simulator.calibration.observations import observe, predict, predict_speed
from simulator.posterior import Posterior

TRUE = {"gemm_speed": -1.0, "launch_s": 1.5}
"""Shifts of the world that made the synthetic speeds."""


def rows(count=60):
    """Jobs of two models on one accelerator, from GPU-bound to host-bound."""
    fixed = {
        "framework": "Megatron-LM", "framework_version": "1", "accelerator": "H100-SXM5-80GB", "gbs": "64", "mbs": "1",
        "precision": "bf16", "quality": "ok", "tokens_per_s_per_gpu_std": "1", "peak_mem_gb": "", "oom": "0",
    }  # fmt: skip
    return [
        fixed | {
            "id": str(k), "source_id": f"s{k % 3}", "model": ("llama-3-8b", "llama-2-7b")[k % 2],
            "n_gpus": str((16, 32, 64)[k % 3]), "tp": str((1, 2, 4, 8)[k % 4]), "pp": str((1, 2)[k // 4 % 2]),
            "seq_len": str((512, 2048, 8192)[k % 3]),
        }
        for k in range(count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def synthetic():
    observations = observe(rows())
    assert not observations.refused
    truth = replace(Posterior.prior(), shifts=np.array([TRUE.get(n, 0.0) for n in Posterior.prior().constants]))
    speed = predict_speed(observations.batches, len(observations.rows), truth.physics)
    return replace(observations, speed=speed)


def test_what_generated_the_data_is_found_as_far_as_predictions_go(synthetic):
    seen = np.arange(len(synthetic.rows)) % 5 != 0
    found = fit(synthetic, seen)

    def errors(posterior):
        speed = predict_speed(synthetic.batches, len(synthetic.rows), posterior.physics)
        return np.abs(np.log(speed / synthetic.speed))[~seen]

    assert errors(Posterior.prior()).mean() > 0.05
    assert errors(found.posterior).mean() < 0.01
    at = dict(zip(found.layout.constants, found.shifts, strict=False))
    assert at["gemm_speed"] < 0 < at["launch_s"]
    assert np.mean([abs(shift) for name, shift in at.items() if name not in TRUE]) < 0.2


def test_one_wrong_label_does_not_pull(synthetic):
    speed = synthetic.speed.copy()
    speed[5] *= 20
    clean, spoilt = fit(synthetic), fit(replace(synthetic, speed=speed))
    kept = clean.rows != 5
    assert np.abs(spoilt.residual[kept]).max() < np.abs(clean.residual[kept]).max() + 0.03


def test_holding_out_is_the_fit_without_those_rows(synthetic):
    """One Gauss-Newton step against a fit from scratch, on noisy data."""
    random = np.random.default_rng(1)
    noisy = replace(synthetic, speed=synthetic.speed * np.exp(0.03 * random.normal(size=synthetic.speed.size)))
    model = noisy.column("model") == "llama-2-7b"
    full, refitted = fit(noisy), fit(noisy, ~model)
    step = full.layout.posterior(full.without(model[full.rows]))
    for_step = predict_speed(noisy.batches, model.size, step.physics)[model]
    for_refit = predict_speed(noisy.batches, model.size, refitted.posterior.physics)[model]
    assert np.abs(np.log(for_step / for_refit)).max() < 0.01


def test_where_the_search_starts_and_who_shares_it_changes_nothing(synthetic):
    first = fit(synthetic)
    again = fit(synthetic, start=first.posterior, workers=2)
    assert np.abs(again.residual - first.residual).max() < 5e-3


def test_parameters_survive_the_way_through_a_posterior(synthetic):
    layout = layout_of(synthetic)
    shifts = np.random.default_rng(0).normal(size=layout.size)
    assert layout.shifts(layout.posterior(shifts)) == pytest.approx(shifts)


def test_predictions_leave_out_what_cannot_be_priced():
    table = rows(6)
    table[2]["n_gpus"] = ""
    table[4]["model"] = "no-such-model"
    observations = observe(table)
    assert set(observations.refused) == {2, 4}
    found = predict(observations.batches, len(table), Posterior.prior().physics)
    assert np.isnan(found.speed[[2, 4]]).all()
    assert np.isfinite(found.speed[[0, 1, 3, 5]]).all()
    assert (found.memory_bytes[[0, 1, 3, 5]] > 0).all()
    assert select(observations, ["s0"]).sum() == 2


def test_rows_to_leave_out_are_not_fitted():
    table = rows(6)
    table[0]["quality"] = "exclude"
    table[1]["tokens_per_s_per_gpu_std"] = ""
    observations = observe(table)
    assert np.isnan(observations.speed[[0, 1]]).all()
