"""The schedule against Megatron-LM's own scheduler, where it is installed, and against its definition."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.gate.evidence.schedule import NEEDED, learning_rate

SETTINGS = {"lr": 1e-3, "min_lr": 1e-4, "lr_decay_style": "cosine", "lr_decay_iters": 100, "lr_warmup_iters": 10}


@settings(max_examples=40)
@given(updates=st.integers(0, 300), style=st.sampled_from(["constant", "linear", "cosine"]))
def test_the_rate_rises_to_the_highest_and_falls_to_the_lowest(updates, style):
    rate = learning_rate(updates, SETTINGS | {"lr_decay_style": style})
    assert 0 <= rate <= 1e-3
    if updates <= 10:
        assert rate == pytest.approx(1e-4 * updates)
    elif style == "constant":
        assert rate == 1e-3
    else:
        assert rate >= 1e-4
    middle = learning_rate(55, SETTINGS | {"lr_decay_style": style})
    assert middle == pytest.approx(1e-3 if style == "constant" else 5.5e-4)


@pytest.mark.parametrize("missing", NEEDED)
def test_without_all_settings_there_is_no_rate(missing):
    assert learning_rate(1, {**SETTINGS, missing: None}) is None
    assert learning_rate(11, {**SETTINGS, "lr_decay_style": "WSD"}) is None


@pytest.mark.parametrize("style", ["constant", "linear", "cosine"])
def test_the_rate_is_that_of_megatron_core(style):
    scheduler = pytest.importorskip("megatron.core.optimizer_param_scheduler").OptimizerParamScheduler
    optimizer = type("Optimizer", (), {"param_groups": [{}]})()
    steps = scheduler(
        optimizer, 0.0, 1e-3, 1e-4, lr_warmup_steps=10, lr_decay_steps=100, lr_decay_style=style, start_wd=0.1,
        end_wd=0.1, wd_incr_steps=100, wd_incr_style="constant",
    )  # fmt: skip
    for updates in range(1, 130):
        steps.step(1)
        ours = learning_rate(updates, SETTINGS | {"lr_decay_style": style})
        assert math.isclose(optimizer.param_groups[0]["lr"], ours, rel_tol=1e-12)
