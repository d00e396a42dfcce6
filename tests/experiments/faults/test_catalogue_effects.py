"""Every fault of the second half of the catalogue can be injected, and does something."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import pytest

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import patched
from attune_lab.trainer.loop import train
from attune_lab.trainer.pool import RankPool
from experiments.faults.catalogue import (
    FAULTS,
    auxiliary_losses,
    masks_and_labels,
    model,
    precision,
    routing,
    updates,
    weights_and_races,
)
from experiments.faults.plan import Fault
from experiments.faults.workloads import WORKLOADS

MODULES = (auxiliary_losses, masks_and_labels, model, precision, routing, updates, weights_and_races)
OURS = {
    name: fault
    for name, fault in FAULTS.items()
    if {patch.__module__ for patch in fault.patches.values()} <= {module.__name__ for module in MODULES}
}
SMALL: dict[str, Any] = {"hidden": 32, "heads": 2, "ffn": 32, "moe_ffn": 8, "vocab_size": 64, "seq_len": 32, "gbs": 4}
SOURCE = re.compile(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{7,10}( \S+)?)|arXiv \d{4}\.\d{5}.*")


def small(fault: Fault) -> TrainerConfig:
    """The fault's run with a small model, long enough for what comes at the fourth step."""
    steps = 4 if fault.name == "F067" else 2
    layers = 4 if fault.layout.get("vpp", 1) > 1 else 2
    changed = {**SMALL, "num_layers": layers, "train_iters": steps, "lr_warmup_iters": 0}
    return TrainerConfig.model_validate(WORKLOADS[fault.workload].model_dump() | fault.layout | changed)


def changes(rank: int, world_size: int, names: list[str]) -> list[str]:
    """The faults that change nothing a run computes, logs or says of its settings; on every rank of a pool."""
    updates.LOADED_AFTER, weights_and_races.RACE = 1, 0.2
    random.seed(rank)
    sound = cache(lambda config: train(config).signals)
    idle = []
    for name in names:
        config = small(OURS[name])
        with patched(OURS[name].patches):
            faulty = train(config).signals
        if faulty == sound(config):
            idle.append(name)
    return idle


@pytest.mark.parametrize("fault", OURS.values(), ids=list(OURS))
def test_a_fault_is_declared_in_full(fault: Fault) -> None:
    with patched(fault.patches):
        pass
    assert SOURCE.fullmatch(fault.source)
    assert all(patch.__doc__ for patch in fault.patches.values())
    assert small(fault).world_size in (1, 2)


def test_no_fault_is_missing() -> None:
    assert len(OURS) == 61


def test_every_fault_on_one_rank_changes_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "LOADED_AFTER", updates.LOADED_AFTER)
    monkeypatch.setattr(weights_and_races, "RACE", weights_and_races.RACE)
    assert changes(0, 1, [name for name, fault in OURS.items() if small(fault).world_size == 1]) == []


def test_every_fault_on_two_ranks_changes_something() -> None:
    with RankPool(2) as pool:
        assert pool.run(changes, [name for name, fault in OURS.items() if small(fault).world_size == 2]) == []
