"""Rules of the stack, against megatron-core's own words for them and one layout at a time."""

import numpy as np
import pytest

from simulator.job import DEFAULTS, Dispatcher, Graph, Recompute, Schedule
from simulator.legality import legal
from simulator.models import model

USUAL = {**DEFAULTS, "gbs": 64, "seq_len": 4096, "ep": 2}


def runs(name: str = "mixtral-8x7b", gpus: int = 16, **columns: object) -> bool:
    row = {key: np.asarray(value) for key, value in (USUAL | columns).items()}
    return bool(legal(row, model(name), gpus))


@pytest.mark.parametrize(
    "broken",
    [
        {"tp": 3}, {"tp": 64, "gpus": 64}, {"pp": 5}, {"tp": 4, "pp": 8}, {"ep": 3}, {"ep": 16}, {"etp": 3},
        {"ep": 8, "etp": 4}, {"cp": 16, "seq_len": 48}, {"tp": 2, "seq_len": 4097}, {"gbs": 65}, {"mbs": 3},
        {"vpp": 2}, {"pp": 2, "vpp": 32}, {"pp": 4, "vpp": 2, "gbs": 8, "mbs": 1}, {"optimizer_instances": 3},
        {"recompute": Recompute.FULL | Recompute.MOE}, {"recompute": Recompute.MOE_ACT, "recompute_layers": 1},
        {"recompute": Recompute.FULL, "cuda_graph": Graph.ATTN}, {"dispatcher": Dispatcher.DEEPEP, "ep": 1},
        {"ep_overlap": True, "pp": 2}, {"ep_overlap": True, "ep": 1}, {"delay_wgrad": True},
        {"ep_overlap": True, "dispatcher": Dispatcher.ALLGATHER}, {"ep_overlap": True, "recompute": Recompute.FULL},
        {"ep_overlap": True, "shared_expert_overlap": True}, {"tp": 2, "sequence_parallel": False},
        {"tp_comm_overlap": True}, {"schedule": Schedule.DUALPIPE, "pp": 2, "gbs": 24, "mbs": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_no_stack_starts(broken) -> None:
    assert not runs(**broken)


@pytest.mark.parametrize(
    "fine",
    [
        {}, {"tp": 2, "pp": 2, "cp": 2, "ep": 4}, {"pp": 2, "vpp": 4}, {"ep": 8, "etp": 2}, {"optimizer_instances": 2},
        {"ep_overlap": True, "delay_wgrad": True}, {"ep_overlap": True, "pp": 2, "vpp": 2},
        {"recompute": Recompute.FULL, "recompute_layers": 2, "cuda_graph": Graph.FULL_ITERATION},
        {"tp": 2, "tp_comm_overlap": True}, {"schedule": Schedule.DUALPIPE, "pp": 2, "mbs": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_starts(fine) -> None:
    assert runs(**fine)


def test_a_dense_model_has_no_expert_ranks() -> None:
    assert runs("llama-3-8b", ep=1)
    assert not runs("llama-3-8b", ep=2)


def test_rules_of_missing_columns_are_not_looked_at() -> None:
    shape = model("mixtral-8x7b")
    assert legal({"tp": np.array([1, 2, 3])}, shape, 6).tolist() == [True, True, False]
    assert legal({"tp": np.array([1, 2, 3])}, shape, 6, about=("pp",)).all()
