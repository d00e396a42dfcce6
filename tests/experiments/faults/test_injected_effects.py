"""Faults of the second half of the catalogue do to a tiny model what their reports say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from attune_lab.signals.schema import Signals, StepSignals
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import patched
from attune_lab.trainer.loop import train
from attune_lab.trainer.pool import RankPool
from experiments.faults.catalogue import FAULTS
from experiments.faults.workloads import WORKLOADS

TINY: dict[str, Any] = {
    "hidden": 32, "heads": 2, "ffn": 32, "moe_ffn": 8, "vocab_size": 64, "seq_len": 32, "gbs": 8, "num_layers": 2,
    "bf16": False, "train_iters": 2, "lr_warmup_iters": 0,
}  # fmt: skip
ROUTERS = ("layers.0.router.weight", "layers.1.router.weight")


def run(_rank: int, _world_size: int, config: TrainerConfig, fault: str | None) -> Signals:
    with patched(FAULTS[fault].patches if fault else {}):
        return train(config, probes=("perturbation",)).signals


@cache
def signals(fault: str | None, workload: str) -> Signals:
    layout = FAULTS[fault].layout if fault else {}
    return run(0, 1, TrainerConfig.model_validate(WORKLOADS[workload].model_dump() | layout | TINY), fault)


def pair(fault: str) -> tuple[StepSignals, StepSignals]:
    """The first steps of the sound and the faulty run."""
    workload = FAULTS[fault].workload
    return signals(None, workload).steps[0], signals(fault, workload).steps[0]


def difference(one: StepSignals, other: StepSignals, name: str) -> list[float]:
    """The sketch of the difference of two gradients."""
    return [a - b for a, b in zip(one.grad_sketch[name], other.grad_sketch[name], strict=True)]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


def on_two_ranks(pool: RankPool, fault: str) -> tuple[StepSignals, StepSignals]:
    """The first steps of the sound and the faulty run in the fault's layout."""
    settings = WORKLOADS[FAULTS[fault].workload].model_dump() | dict(FAULTS[fault].layout) | TINY
    config = TrainerConfig.model_validate(settings)
    sound, faulty = (pool.run(run, config, name) for name in (None, fault))
    return sound.steps[0], faulty.steps[0]


def test_an_auxiliary_loss_that_is_not_attached_is_logged_and_trains_nothing() -> None:
    (sound, detached), (_, none) = pair("F048"), pair("F049")
    assert detached.logged["load_balancing_loss"] == sound.logged["load_balancing_loss"] > 0
    assert detached.grad_norm == none.grad_norm
    assert none.logged["load_balancing_loss"] == 0


@pytest.mark.parametrize(("fault", "factor"), [("F045", 1 / 4), ("F112", 8 / 2)])
def test_only_the_gradient_of_the_auxiliary_loss_has_the_factor(fault: str, factor: float) -> None:
    (sound, scaled), (_, none) = pair(fault), pair("F048")
    for name in ROUTERS:
        wanted = [factor * share for share in difference(sound, none, name)]
        assert difference(scaled, none, name) == pytest.approx(wanted, abs=1e-4 * scaled.grad_norm[name])


@pytest.mark.parametrize("fault", ["F042", "F043"])
def test_the_auxiliary_gradient_is_halved_on_two_ranks(fault: str, pool: RankPool) -> None:
    (sound, halved), (_, none) = on_two_ranks(pool, fault), pair("F048")
    for name in ROUTERS:
        wanted = [share / 2 for share in difference(sound, none, name)]
        assert difference(halved, none, name) == pytest.approx(wanted, abs=1e-4 * halved.grad_norm[name])


def test_the_last_router_learns_from_two_losses_and_loses_one_of_them() -> None:
    (sound, balanced), (_, taught) = pair("F123"), pair("F048")
    both = [a + b for a, b in zip(balanced.grad_sketch[ROUTERS[1]], taught.grad_sketch[ROUTERS[1]], strict=True)]
    assert both == pytest.approx(list(sound.grad_sketch[ROUTERS[1]]), abs=1e-5)


def test_tokens_beyond_the_capacity_are_dropped() -> None:
    sound, faulty = pair("F053")
    assert sound.dropped == 0 < faulty.dropped
    assert sound.expert_load == faulty.expert_load


def test_recomputation_that_routes_elsewhere_shows_in_gradients_alone() -> None:
    sound, faulty = pair("F100")
    assert faulty.loss == pytest.approx(sound.loss, rel=1e-6)
    assert faulty.grad_norm["layers.1.experts.down"] != pytest.approx(
        sound.grad_norm["layers.1.experts.down"], rel=0.01
    )


@pytest.mark.parametrize(("fault", "figure"), [("F077", "future"), ("F040", "document")])
def test_a_lost_mask_lets_a_token_move_what_it_must_not(fault: str, figure: str) -> None:
    workload = FAULTS[fault].workload
    sound, faulty = (signals(f, workload).probes["perturbation"].figures[figure] for f in (None, fault))
    assert sound < 1e-6
    assert faulty > 1e-4


def test_gathered_logits_add_the_logarithm_of_the_ranks(pool: RankPool) -> None:
    sound, faulty = on_two_ranks(pool, "F036")
    assert faulty.loss == pytest.approx(sound.loss + math.log(2), rel=1e-6)


def test_the_trunk_learns_nothing_from_the_multi_token_module_which_itself_learns() -> None:
    (sound, detached), (_, without) = pair("F118"), pair("F110")
    for name in sound.grad_norm:
        if name.startswith("layers."):
            assert detached.grad_norm[name] == pytest.approx(without.grad_norm[name], rel=1e-5)
            assert detached.grad_norm[name] != pytest.approx(sound.grad_norm[name], rel=1e-5)
        elif name.startswith("mtp."):
            assert detached.grad_norm[name] == pytest.approx(sound.grad_norm[name], rel=1e-5)


def test_the_first_layer_alone_gets_no_gradient() -> None:
    sound, faulty = pair("F106")
    assert all(norm > 0 for norm in sound.grad_norm.values())
    assert {n for n, norm in faulty.grad_norm.items() if norm == 0} == {n for n in sound.grad_norm if "layers.0." in n}


def test_weights_that_are_not_refreshed_are_seen_in_the_forward() -> None:
    first, second = signals("F071", "fp8").steps
    assert first.stale == ()
    assert {name.split(".")[2] for name in second.stale} == {"attention"}


def test_logged_values_alone_are_wrong() -> None:
    sound, faulty = pair("F108")
    assert faulty.logged["lm loss"] == pytest.approx(sound.logged["lm loss"] / 4)
    assert (faulty.loss, faulty.grad_norm) == (sound.loss, sound.grad_norm)


@pytest.mark.parametrize(
    ("fault", "setting", "value"),
    [
        ("F050", "router_dtype", None), ("F068", "fp8", "hybrid"), ("F086", "adam_beta2", 0.999),
        ("F089", "grad_reduce_in_fp32", False), ("F090", "exp_avg_dtype", "bf16"), ("F126", "aux_loss_coeff", 1e-3),
    ],
)  # fmt: skip
def test_settings_are_told_as_they_are_in_force(fault: str, setting: str, value: Any) -> None:
    workload = FAULTS[fault].workload
    assert signals(None, workload).effective[setting] != value == signals(fault, workload).effective[setting]
