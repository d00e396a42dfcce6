"""Rows of the measurement schema, understood or refused."""

from collections import defaultdict

import numpy as np
import pytest

from simulator.calibration.measurements import load_measurements
from simulator.calibration.points import MEASURED_COLUMNS, InvalidCell, Unsupported, parse_knobs, parse_point
from simulator.job import Dispatcher, Graph, Precision, Recompute
from simulator.models import models

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


def test_nemo_pretrains_in_single_layers_unless_a_row_says_otherwise():
    row = {**ROW, "model": "llama-2-70b", "tp": "1", "pp": "4", "vp": "", "ep": "", "framework": "NeMo", "knobs": ""}
    assert parse_point(row).columns["vpp"] == 20
    assert parse_point({**row, "vp": "5"}).columns["vpp"] == 5
    assert parse_point({**row, "pp": "1"}).columns["vpp"] == 1
    assert parse_point({**row, "knobs": "task=SFT"}).columns["vpp"] == 1
    assert parse_point({**row, "framework": "Megatron-LM"}).columns["vpp"] == 1


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


def test_stated_links_replace_the_accelerators():
    def accelerator(knobs):
        return parse_point({**ROW, "knobs": knobs}).cluster.accelerator

    assert accelerator("inter_node=800Gbps").nic_bytes_per_s == 800e9 / 8 / 8
    assert accelerator("inter_node=4x100Gb_RoCE").nic_bytes_per_s == 400e9 / 8 / 8
    assert accelerator("inter_node=400Gbps_RDMA_per_gpu").nic_bytes_per_s == 50e9
    assert accelerator("intra_node=150GB/s").link_bytes_per_s == 150e9
    assert accelerator("nvlink_domain=32").domain_gpus == 32


@pytest.mark.parametrize(("network", "sharing"), [("800Gbps", 2), ("4x100Gb_RoCE", 2), ("1600Gbps_RoCE", 1), ("", 1)])
def test_gpus_share_a_nic_where_a_node_has_fewer(network, sharing):
    row = {**ROW, "accelerator": "A100-SXM4-80GB", "knobs": f"inter_node={network}"}
    assert parse_point(row).cluster.gpus_per_nic == sharing


@pytest.mark.parametrize(
    "knobs",
    ["inter_node=fast", "inter_node=0Gbps", "inter_node=0.0000001Gbps", "intra_node=0GB/s", "intra_node=x",
     "intra_node=1e-300GB/s", "capacity_factor=1e308"],
)  # fmt: skip
def test_rates_that_cannot_be_read_name_their_knob(knobs):
    with pytest.raises(InvalidCell, match=knobs.partition("=")[0]):
        parse_point({**ROW, "knobs": knobs})


def test_gpus_follow_from_the_degrees_where_they_are_blank():
    row = {**ROW, "n_gpus": "", "cp": "1", "dp": "16"}
    assert parse_point(row).cluster.n_gpus == 2 * 8 * 16
    with pytest.raises(Unsupported, match="'n_gpus'"):
        parse_point({**row, "dp": ""})


def test_hosts_may_be_partly_used():
    cluster = parse_point(
        {**ROW, "n_gpus": "1040", "gpus_per_node": "16", "pp": "1", "vp": "", "ep": "4", "gbs": "520"}
    ).cluster
    assert (cluster.n_gpus, cluster.gpus_per_node, cluster.nodes) == (1040, 16, 65)


def test_blank_expert_tensor_parallelism_is_one_unless_experts_are_not_folded():
    row = {**ROW, "etp": "", "ep": "8"}
    assert parse_point({**row, "knobs": ""}).columns["etp"] == 1
    assert parse_point({**row, "knobs": "method=MCore"}).columns["etp"] == 2


def test_batches_come_from_whatever_the_row_gives():
    row = {**ROW, "gbs": "", "mbs": "", "pp": "1", "vp": "", "ep": "8", "knobs": ""}
    assert parse_point({**row, "knobs": "local_batch_size_per_dp=4"}).columns["mbs"] == 4
    assert parse_point({**row, "knobs": "local_batch_size_per_dp=4"}).columns["gbs"] == 4 * 128
    assert parse_point({**row, "mbs": "2", "knobs": "micro_num=3"}).columns["gbs"] == 2 * 3 * 128
    piped = parse_point({**row, "pp": "8", "knobs": "local_batch_size_per_dp=32"}).columns
    assert (piped["mbs"], piped["gbs"]) == (4, 32 * 16)


def test_shards_smaller_than_the_data_parallel_group_are_copies():
    row = {**ROW, "tp": "1", "pp": "1", "vp": "", "ep": "8"}
    for knobs, copies in [("zero1_shard_group=8", 32), ("zero1_shard_group=-1", 1), ("hsdp_domain=64", 4), ("", 1)]:
        assert parse_point({**row, "knobs": knobs}).columns["optimizer_instances"] == copies
    across_context = parse_point({**row, "cp": "4", "knobs": "fsdp_degree=64"}).columns
    assert across_context["optimizer_instances"] == 1


def test_sharding_is_read_from_the_knobs_where_the_column_is_blank():
    for knobs, stage in [("megatron_fsdp=1", 3), ("fsdp=megatron", 3), ("sharding_strategy=FULL_SHARD", 3), ("", 1)]:
        assert parse_point({**ROW, "knobs": knobs}).columns["zero_stage"] == stage
    assert parse_point({**ROW, "zero_stage": "2", "knobs": "fsdp2=1"}).columns["zero_stage"] == 2


def test_torchtitan_keeps_weights_whole_in_a_pipeline():
    row = {**ROW, "model": "llama-3-8b", "tp": "1", "vp": "", "ep": "", "framework": "torchtitan", "knobs": ""}
    assert parse_point({**row, "pp": "1"}).columns["zero_stage"] == 3
    assert parse_point({**row, "pp": "4", "zero_stage": "3"}).columns["zero_stage"] == 1


def test_half_of_the_layers_stand_for_torchtitans_modes():
    row = {**ROW, "model": "llama-3-8b", "pp": "1", "vp": "", "ep": "", "framework": "torchtitan", "knobs": ""}
    for asked in ("selective:per_op", "selective:every_other_layer", "unknown"):
        columns = parse_point({**row, "recompute": asked}).columns
        assert (columns["recompute"], columns["recompute_layers"]) == (Recompute.FULL, 16)
    assert parse_point({**row, "recompute": "none"}).columns["recompute"] == Recompute.NONE


def test_written_layouts_give_stages_and_chunks():
    row = {**ROW, "model": "deepseek-v3", "tp": "1", "pp": "2", "vp": "", "knobs": "pp_layout=Et*4|(t*4|)*14tmL;mtp=1"}
    columns = parse_point(row).columns
    assert (columns["vpp"], columns["stage_layers"]) == (8, (32, 29))
    with pytest.raises(InvalidCell, match="places 61 layers"):
        parse_point({**row, "model": "qwen3-30b-a3b"})


def test_mamba_hybrids_are_read_from_their_pattern():
    shape = {"model": "mine", "layers": "4", "hidden": "2048", "heads": "16", "pp": "1", "vp": "", "ep": "", "etp": ""}
    knobs = "activation=squared_relu;hybrid=mamba2;mamba_state_dim=256;hybrid_pattern=M-*-"
    found = parse_point({**ROW, **shape, "knobs": knobs}).shape
    assert (found.hybrid, found.mamba_heads, found.mamba_state) == ("M-*-", 64, 256)
    with pytest.raises(Unsupported, match="deltanet"):
        parse_point({**ROW, **shape, "knobs": "hybrid=gated_deltanet"})


def test_most_rows_of_the_data_set_can_be_priced():
    refused = [row for row in load_measurements() if not _readable(row)]
    unknown = [row for row in refused if row["model"] not in models() and not row["layers"]]
    assert (len(refused) - len(unknown)) / len(load_measurements()) < 0.03


def _readable(row):
    try:
        parse_point(row)
    except Unsupported:
        return False
    return True


def test_single_node_rows_of_vtrain_are_sums_of_parts():
    """Why those rows count as a trace: rows of one sliced layer are a layer's, a head's and a step's time, exactly."""
    groups = defaultdict(list)
    for row in load_measurements():
        if row["source_id"] == "vtrain_single" and row["n_gpus"] == str(int(row["tp"]) * int(row["pp"])):
            layers, count = float(row["layers"]), float(row["gbs"]) / float(row["mbs"])
            terms = (count * layers, count, layers, 1.0)
            groups[row["hidden"], row["tp"], row["pp"], row["mbs"]].append((*terms, float(row["step_time_s"])))
    tables = [np.array(table) for table in groups.values() if len(table) >= 8]
    assert sum(map(len, tables)) > 400
    for table in tables:
        scaled = table / table[:, -1:]
        found = np.linalg.lstsq(scaled[:, :-1], scaled[:, -1], rcond=None)[0]
        assert scaled[:, :-1] @ found == pytest.approx(1.0, abs=1e-5)


def test_what_a_source_states_wrongly_is_corrected():
    rows = {row["source_id"]: row for row in load_measurements()}
    trace, run = (parse_point(rows[name]) for name in ("vtrain_single", "vtrain_multi"))
    assert trace.stack.name == "vtrain-trace"
    assert (trace.columns["recompute"], trace.columns["traced"], trace.shape.vocab) == (Recompute.NONE, True, 50257)
    assert (run.stack.name, run.columns["recompute"]) == ("megatron-deepspeed", Recompute.FULL)
    assert (run.cluster.accelerator.link_bytes_per_s, run.cluster.accelerator.nic_bytes_per_s) == (300e9, 12.5e9)


@pytest.mark.parametrize("column", ["layers", "heads", "head_dim", "vocab", "ffn"])
def test_shapes_without_a_size_are_refused_by_column(column):
    shape = {"layers": "4", "hidden": "2048", "heads": "16", "head_dim": "128", "vocab": "50000", "ffn": "8192"}
    row = {**ROW, "model": "mine", **shape, "pp": "1", "vp": "", "ep": "", "etp": "", column: "0"}
    with pytest.raises(InvalidCell, match=column):
        parse_point(row)


@pytest.mark.parametrize(("column", "kind"), [("layers", InvalidCell), ("pp", Unsupported), ("n_gpus", InvalidCell)])
def test_absurd_sizes_are_refused_at_once(column, kind):
    row = {**ROW, "model": "mine", "layers": "4", "hidden": "2048", "heads": "16", "framework": "nanotron"}
    with pytest.raises(kind):
        parse_point({**row, "vp": "", "ep": "", "etp": "", column: "1e9"})


def test_a_token_has_at_most_as_many_experts_as_there_are():
    row = {"model": "own", "layers": "8", "hidden": "512", "heads": "8", "experts": "4", "moe_ffn": "512"}
    row |= {"accelerator": "H100-SXM5-80GB", "n_gpus": "8", "seq_len": "4096"}
    assert parse_point({**row, "top_k": "4"}).shape.top_k == 4
    assert parse_point({**row, "experts": "1"}).shape.top_k == 1
    for too_many in ("5", str(2**40)):
        with pytest.raises(InvalidCell, match="top_k"):
            parse_point({**row, "top_k": too_many})
