"""Batches of measurement rows: which can be priced, and what memory they are said to need."""

from collections.abc import Mapping

import numpy as np
import pytest

from simulator.calibration.batches import Batch, batch_memory, batch_points, measured_peak, memory_demand
from simulator.calibration.observations import observe
from simulator.calibration.points import parse_point
from simulator.hardware import GIB
from simulator.memory_physics import DEFAULT_MEMORY_PHYSICS

DENSE = {"model": "llama-3-8b", "accelerator": "H100-SXM5-80GB", "n_gpus": "32", "seq_len": "4096", "gbs": "32"}
LARGE = DENSE | {"model": "mixtral-8x22b", "n_gpus": "128", "gbs": "128"}


def batched(*rows: Mapping[str, str]) -> tuple[list[Batch], dict[int, str]]:
    return batch_points({position: parse_point(row) for position, row in enumerate(rows)})


def test_a_layout_that_is_not_stated_is_plain_data_parallelism_only_where_that_fits():
    batches, refused = batched(DENSE, LARGE, LARGE | {"tp": "1"}, LARGE | {"cp": "1"})
    assert sorted(row for batch in batches for row in batch.rows) == [0, 2]
    assert sorted(refused) == [1, 3]
    assert "'tp', 'pp', 'ep' and 'zero_stage' are blank" in refused[1]


@pytest.mark.parametrize("stated", [{"tp": "8"}, {"ep": "8"}, {"zero_stage": "1"}, {"cp": "2"}, {"knobs": "fsdp2=1"}])
def test_one_degree_states_a_layout(stated):
    assert not batched(LARGE | stated)[1]


def test_recomputation_that_is_not_stated_is_granted_where_nothing_else_fits():
    long = DENSE | {"seq_len": "32768", "tp": "1"}
    rows = [long | {"recompute": word} for word in ("unknown", "none", "full")]
    [batch], _ = batched(*rows, DENSE | {"recompute": "unknown", "tp": "1"}, DENSE | {"recompute": "none", "tp": "1"})
    memory = batch_memory(batch, DEFAULT_MEMORY_PHYSICS)
    demand, peak = memory_demand(batch.jobs, memory), measured_peak(batch, memory)
    assert demand[0] == demand[2] < demand[1]
    assert demand[1] > 1
    assert peak[0] == peak[2]
    assert peak[3] == peak[4] > peak[2] / GIB


def test_a_run_that_ended_out_of_memory_has_no_peak():
    row = DENSE | {"tp": "1", "peak_mem_gb": "60", "oom": "0"}
    seen = observe([row, row | {"oom": "1"}])
    assert seen.memory_bytes[0] == 60e9
    assert np.isnan(seen.memory_bytes[1])
