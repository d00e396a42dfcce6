"""Faults of losses, gradients, reductions and batches do on a tiny model what their reports say."""

from __future__ import annotations

import math
import re
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
from experiments.faults.plan import Fault
from experiments.faults.workloads import WORKLOADS

MODULES = ("batches", "clip_norm", "grad_scale", "loss_norm", "missing_reduce", "tied_embedding")
NAMES = sorted(
    name
    for name, fault in FAULTS.items()
    if any(patch.__module__.endswith(MODULES) for patch in fault.patches.values())
)
LATE = {"F009", "F032", "F033", "F034b", "F066"}
"""Faults that wait for a step past the first ones."""
TINY: dict[str, Any] = {
    "hidden": 32, "ffn": 32, "moe_ffn": 16, "vocab_size": 64, "seq_len": 16, "bf16": False, "clip_grad": 1e9,
}  # fmt: skip


def config_of(fault: Fault, *, steps: int, **changes: Any) -> TrainerConfig:
    settings = {**WORKLOADS[fault.workload].model_dump(), **TINY, **fault.layout, "train_iters": steps, **changes}
    return TrainerConfig.model_validate(settings)


def run(_rank: int, _world_size: int, config: TrainerConfig, name: str | None) -> Signals:
    with patched(FAULTS[name].patches if name else {}):
        return train(config, probes=("ragged", "resume")).signals


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as ranks:
        yield ranks


class Runs:
    """The sound and the faulty run of a fault's layout on a tiny model; sound ones are shared."""

    def __init__(self, pool: RankPool) -> None:
        self._run = cache(lambda config, name: pool.run(run, config, name, world_size=config.world_size))

    def of(self, name: str, *, steps: int = 3, **changes: Any) -> tuple[Signals, Signals]:
        config = config_of(FAULTS[name], steps=steps, **changes)
        return self._run(config, None), self._run(config, name)

    def first_steps(self, name: str, **changes: Any) -> tuple[StepSignals, StepSignals]:
        sound, faulty = self.of(name, **changes)
        return sound.steps[0], faulty.steps[0]


@pytest.fixture(scope="module")
def runs(pool: RankPool) -> Runs:
    return Runs(pool)


def ratios(sound: StepSignals, faulty: StepSignals) -> dict[str, float]:
    return {name: faulty.grad_norm[name] / norm for name, norm in sound.grad_norm.items() if norm > 0}


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_declared_whole(name: str) -> None:
    fault = FAULTS[name]
    with patched(fault.patches):
        config_of(fault, steps=1)
    assert fault.title
    assert re.match(r"[\w-]+/[\w.-]+(#\d+|@\w+ \S+| \S+)", fault.source), fault.source
    assert all(patch.__doc__ or patch.__qualname__.partition(".")[0] for patch in fault.patches.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_changes_what_is_recorded(name: str, runs: Runs) -> None:
    sound, faulty = runs.of(name, steps=20, clip_grad=0.1) if name in LATE else runs.of(name)
    assert sound.steps[0].replicas == ()
    assert (sound.steps, sound.probes) != (faulty.steps, faulty.probes)


@pytest.mark.parametrize(
    ("name", "factor"), [("F002b", 1 / 2), ("F004", 16 * 16), ("F005", 2), ("F012", 1 / 4), ("F092", 1 / 2)]
)
def test_the_whole_gradient_has_the_factor_and_the_loss_is_right(name: str, factor: float, runs: Runs) -> None:
    sound, faulty = runs.first_steps(name)
    assert ratios(sound, faulty) == pytest.approx(dict.fromkeys(sound.grad_norm, factor), rel=1e-3)
    assert faulty.logged["lm loss"] == pytest.approx(sound.logged["lm loss"], rel=1e-6)


@pytest.mark.parametrize(("name", "factor"), [("F013", 2), ("F014", 2), ("F015", 64)])
def test_experts_alone_have_the_factor(name: str, factor: float, runs: Runs) -> None:
    for parameter, ratio in ratios(*runs.first_steps(name)).items():
        expected = factor if ".experts." in parameter else 1
        assert ratio == pytest.approx(expected, rel=1e-3), parameter


def test_averaged_norms_have_half_the_gradient(runs: Runs) -> None:
    for parameter, ratio in ratios(*runs.first_steps("F016")).items():
        assert ratio == pytest.approx(0.5 if parameter.endswith("norm") else 1, rel=1e-3), parameter


@pytest.mark.parametrize(
    ("name", "differ"),
    [
        ("F017", r"tp: .*norm"),
        ("F018", r"tp: .*router\.weight"),
        ("F023", r"tp: .*\.(key|value)"),
        ("F024", r"tp: .*(query|key)_norm"),
        ("F025", r"tp: .*(query|key)_norm"),
        ("F121", r"tp: .*(output|down)_bias"),
        ("F065", r"edp: .*experts\..*"),
        ("F093", r"dp: .*"),
        ("F027", r"ends: embedding"),
        ("F028", r"ends: embedding"),
    ],
)
def test_copies_drift_apart_where_the_sum_is_missing(name: str, differ: str, runs: Runs) -> None:
    sound, faulty = runs.of(name)
    copies = {text for step in faulty.steps for text in step.replicas}
    assert copies
    assert all(re.fullmatch(differ, text) for text in copies), copies
    assert not any(step.replicas for step in sound.steps)


@pytest.mark.parametrize("name", ["F020", "F021"])
def test_the_router_gets_a_part_of_its_gradient_and_no_copy_differs(name: str, runs: Runs) -> None:
    sound, faulty = runs.first_steps(name)
    off = {
        name: math.dist(sketch, faulty.grad_sketch[name]) / math.hypot(*sketch)
        for name, sketch in sound.grad_sketch.items()
    }
    assert min(off[parameter] for parameter in off if parameter.endswith("router.weight")) > 0.01
    assert max(off["head"], off["final_norm"]) < 1e-5  # nothing above the experts is off
    assert faulty.loss == pytest.approx(sound.loss, rel=1e-6)
    assert faulty.replicas == ()


@pytest.mark.parametrize(("name", "larger"), [("F062", False), ("F063", True), ("F114", False)])
def test_the_logged_norm_is_wrong_and_the_gradients_are_right(name: str, larger: bool, runs: Runs) -> None:
    sound, faulty = runs.first_steps(name)
    assert ratios(sound, faulty) == pytest.approx(dict.fromkeys(sound.grad_norm, 1), rel=1e-3)
    change = faulty.logged["grad norm"] - sound.logged["grad norm"]
    assert change > 0 if larger else change < 0


@pytest.mark.parametrize("name", ["F001", "F002a", "F007", "F061"])
def test_only_ragged_lengths_show_a_divisor_of_a_part(name: str, runs: Runs) -> None:
    sound, faulty = runs.of(name, ragged=False)
    assert ratios(sound.steps[0], faulty.steps[0]) == pytest.approx(
        dict.fromkeys(sound.steps[0].grad_norm, 1), rel=1e-3
    )
    before, after = (signals.probes["ragged"].step for signals in (sound, faulty))
    assert before is not None
    assert after is not None
    assert max(abs(ratio - 1) for ratio in ratios(before, after).values()) > 1e-3


def test_tokens_of_the_main_loss_weigh_the_multi_token_loss_less(runs: Runs) -> None:
    off = ratios(*runs.first_steps("F124"))
    assert off["mtp.projection"] == pytest.approx(15 / 16, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "same", "steps"),
    [("F030", 1, 3), ("F031", 0, 3), ("F102", 0, 3), ("F032", 3, 20), ("F033", 3, 20), ("F009", 3, 20)],
)
def test_batches_differ_from_a_step_on(name: str, same: int, steps: int, runs: Runs) -> None:
    sound, faulty = runs.of(name, steps=steps)
    equal = [before.samples == after.samples for before, after in zip(sound.steps, faulty.steps, strict=True)]
    assert equal == [True] * same + [False] * (len(equal) - same)


def test_labels_of_another_micro_batch_leave_the_inputs_alone(runs: Runs) -> None:
    sound, faulty = runs.first_steps("F103")
    assert faulty.samples == sound.samples
    assert faulty.loss != pytest.approx(sound.loss, rel=1e-4)
    assert faulty.replicas == ("pp input: batch",)


def test_lost_moments_show_when_the_run_resumes_only(runs: Runs) -> None:
    sound, faulty = runs.of("F034a")
    assert sound.steps == faulty.steps
    assert sound.probes["resume"].figures["weights"] == 0
    assert faulty.probes["resume"].figures["weights"] > 1e-5
