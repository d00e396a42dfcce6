"""Rows of the measurement schema, understood or refused."""

import pytest

from simulator.calibration.points import MEASURED_COLUMNS, InvalidCell, Unsupported, parse_knobs, parse_point
from simulator.job import Dispatcher, Graph, Precision, Recompute

ROW = {
    "model": "qwen3-235b-a22b",
    "accelerator": "H100-SXM5-80GB",
    "n_gpus": "256",
    "seq_len": "4096",
    "gbs": "2048",
    "mbs": "1",
    "tp": "2",
    "pp": "8",
    "vp": "4",
    "ep": "32",
    "etp": "1",
    "precision": "bf16",
    "recompute": "selective:moe_act+layernorm",
    "knobs": "dispatcher=deepep;ep_a2a_overlap=1;cuda_graph=transformer_engine;cuda_graph_scope=attn+moe_router",
    "routing": "forced_balance",
}


def test_a_full_row_becomes_the_columns_of_a_job():
    columns = parse_point(ROW).columns
    assert (columns["tp"], columns["pp"], columns["vpp"], columns["ep"], columns["etp"]) == (2, 8, 4, 32, 1)
    assert columns["recompute"] == Recompute.MOE_ACT | Recompute.LAYERNORM
    assert columns["dispatcher"] == Dispatcher.DEEPEP
    assert columns["cuda_graph"] == Graph.ATTN | Graph.MOE_ROUTER
    assert columns["ep_overlap"]
    assert columns["force_balance"]


def test_blank_cells_mean_the_stacks_default():
    point = parse_point({"model": "llama-3-8b", "accelerator": "H100-SXM5-80GB", "n_gpus": "8", "seq_len": "8192"})
    assert point.columns["precision"] == Precision.BF16
    assert point.columns["gbs"] == 8  # one micro-batch of one sequence on each of 8 data-parallel ranks
    assert point.columns["recompute"] == Recompute.NONE


def test_frameworks_differ_where_the_row_does_not_say():
    row = {"model": "llama-3-8b", "accelerator": "H100-SXM5-80GB", "n_gpus": "8", "seq_len": "8192"}
    maxtext = parse_point({**row, "framework": "MaxText", "recompute": "unknown"}).columns
    assert (maxtext["zero_stage"], maxtext["recompute"]) == (3, Recompute.FULL)
    assert parse_point({**row, "framework": "MaxText", "recompute": "none"}).columns["recompute"] == Recompute.NONE
    assert parse_point({**row, "framework": "torchtitan"}).columns["portable_attention"]


def test_fine_tuning_packs_samples_and_lora_freezes_the_rest():
    columns = {task: parse_point({**ROW, "knobs": f"task={task}"}).columns for task in ("SFT", "LoRA", "pretrain")}
    assert [task for task in columns if columns[task].get("frozen")] == ["LoRA"]
    assert columns["SFT"]["sample_len"] == columns["LoRA"]["sample_len"] > 0
    assert "sample_len" not in columns["pretrain"]


@pytest.mark.parametrize("column", sorted(MEASURED_COLUMNS))
def test_measured_columns_change_nothing(column):
    assert parse_point({**ROW, column: "1"}) == parse_point({**ROW, column: "not even a number"})


def test_shape_columns_stand_in_for_a_model_outside_the_registry():
    row = {**ROW, "model": "mine", "layers": "24", "hidden": "2048", "heads": "16", "vp": "", "ep": "", "etp": ""}
    shape = parse_point({**row, "knobs": "activation=gelu", "recompute": "full"}).shape
    assert (shape.ffn, shape.kv_heads, shape.head_dim, shape.gated_mlp) == (8192, 16, 128, False)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"model": "gpt-9"}, "gpt-9"),
        ({"accelerator": "H1000"}, "H1000"),
        ({"tp": "3"}, "does not divide"),
        ({"ep": "48"}, "ep"),
        ({"precision": "int3"}, "int3"),
        ({"recompute": "selective:everything"}, "everything"),
        ({"gbs": "8"}, "gbs"),
        ({"seq_len": ""}, "seq_len"),
    ],
)
def test_rows_outside_the_simulator_say_what_is_not_supported(edit, words):
    with pytest.raises(Unsupported, match=words):
        parse_point({**ROW, **edit})


@pytest.mark.parametrize("text", ["two", "1.5", "-4", "nan", "inf", "1e99"])
def test_unreadable_numbers_name_their_column(text):
    with pytest.raises(InvalidCell, match="column 'tp'"):
        parse_point({**ROW, "tp": text})


def test_knobs_are_split_at_semicolons():
    assert parse_knobs("a=1; b=x=y ;c;;") == {"a": "1", "b": "x=y", "c": ""}
