"""The curated data set: its schema, its arithmetic and what its rows say about themselves."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.calibration.measurements import (
    Outcome,
    data_hash,
    load_lever_pairs,
    load_measurements,
    measured_memory_bytes,
    measured_speed,
    outcome,
    sweep_cell,
)

ROWS = load_measurements()
BY_ID = {row["id"]: row for row in ROWS}


def _of(row, column):
    return float(row[column]) if row[column] else math.nan


def test_every_row_has_an_id_of_its_own_and_a_source():
    assert len(BY_ID) == len(ROWS) > 4000
    assert all(row["source_id"] and row["source_locator"] for row in ROWS)


def test_every_row_that_is_not_ok_says_why():
    assert {row["quality"] for row in ROWS} == {"ok", "suspicious", "exclude"}
    assert all(row["quality_note"] for row in ROWS if row["quality"] != "ok")


def test_rows_said_to_repeat_another_one_name_a_row_that_stays():
    named = [re.match(r"repeats (\S+)", row["quality_note"]) for row in ROWS]
    kept = [BY_ID[found.group(1)] for found in named if found]
    assert kept
    assert all(row["quality"] == "ok" for row in kept)


def test_rates_agree_with_step_times_within_rounding():
    for row in ROWS:
        counted = _of(row, "gbs") * _of(row, "seq_len") / _of(row, "n_gpus") / _of(row, "step_time_s")
        if row["quality"] == "ok" and math.isfinite(counted) and math.isfinite(measured_speed(row)):
            assert measured_speed(row) == pytest.approx(counted, rel=0.01), row["id"]


def test_degrees_of_usable_rows_divide_the_gpus():
    for row in ROWS:
        degrees = math.prod(int(row[column] or 1) for column in ("tp", "pp", "cp"))
        if row["quality"] == "ok" and row["n_gpus"]:
            assert int(row["n_gpus"]) % degrees == 0, row["id"]


def test_batches_of_usable_rows_are_whole_micro_batches_on_every_rank():
    for row in ROWS:
        if row["quality"] == "ok" and all(row[column] for column in ("n_gpus", "gbs", "mbs", "tp", "pp")):
            model_ranks = math.prod(int(row[column] or 1) for column in ("tp", "pp", "cp"))
            assert int(row["gbs"]) % (int(row["mbs"]) * int(row["n_gpus"]) // model_ranks) == 0, row["id"]


def test_reserved_memory_holds_the_allocated_and_the_device_holds_both():
    for row in ROWS:
        sizes = [_of(row, column) for column in ("peak_mem_gb", "reserved_gb", "device_gb")]
        known = [size for size in sizes if math.isfinite(size)]
        assert known == sorted(known), row["id"]


def test_memory_comes_in_bytes_whatever_the_unit():
    assert measured_memory_bytes({"peak_mem_gb": "2"}) == 2e9
    assert measured_memory_bytes({"peak_mem_gb": "2", "mem_unit": "GiB"}) == 2 * 2**30
    assert math.isnan(measured_memory_bytes({"peak_mem_gb": ""}))
    with pytest.raises(ValueError, match="mem_unit 'TB'"):
        measured_memory_bytes({"id": "x", "peak_mem_gb": "2", "mem_unit": "TB"})


def test_a_cell_that_is_no_number_is_named():
    with pytest.raises(ValueError, match="row x: tokens_per_s_per_gpu_std holds 'fast'"):
        measured_speed({"id": "x", "tokens_per_s_per_gpu_std": "fast"})


@pytest.mark.parametrize(
    ("oom", "failed", "ended"),
    [
        ("1", "1", Outcome.OOM),
        ("", "1", Outcome.FAILED),
        ("0", "0", Outcome.RAN),
        ("", "0", Outcome.RAN),
        ("", "", Outcome.UNKNOWN),
    ],
)
def test_outcomes(oom, failed, ended):
    assert outcome({"oom": oom, "failed": failed}) is ended


@given(st.dictionaries(st.sampled_from(["oom", "failed", "model", "gbs", "source_id"]), st.text(max_size=8)))
def test_any_row_has_an_outcome_and_a_cell(row):
    assert outcome(row) in Outcome
    assert sweep_cell(row) == sweep_cell(dict(row))


def test_runs_that_failed_have_no_speed_unless_they_ran_first():
    assert all(math.isnan(measured_speed(row)) for row in ROWS if outcome(row) is Outcome.FAILED)


def test_lever_pairs_compare_rows_of_one_cell_or_say_what_differs():
    pairs = load_lever_pairs()
    assert len(pairs) >= 100
    for pair in pairs:
        before, after = BY_ID[pair.before], BY_ID[pair.after]
        assert before["source_id"] == after["source_id"]
        assert (before["model"], before["accelerator"]) == (after["model"], after["accelerator"])
        assert before["framework_version"] == after["framework_version"] or "releases" in pair.note


def test_lever_effects_are_what_the_rows_say():
    for pair in load_lever_pairs():
        measure = measured_speed if pair.kind == "speed" else measured_memory_bytes
        before, after = measure(BY_ID[pair.before]), measure(BY_ID[pair.after])
        if math.isfinite(before) and math.isfinite(after):
            assert pair.effect == pytest.approx(after / before - 1, abs=1e-4), pair


def test_no_memory_pair_has_a_run_that_ended_before_its_peak():
    pairs = [pair for pair in load_lever_pairs() if pair.kind == "memory"]
    assert not [pair for pair in pairs for row in (pair.before, pair.after) if outcome(BY_ID[row]) is Outcome.OOM]


def test_the_hash_names_the_data():
    assert re.fullmatch("[0-9a-f]{16}", data_hash())
