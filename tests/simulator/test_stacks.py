from simulator.calibration.points import parse_point
from simulator.stacks import stack_of

ROW = {
    "model": "llama-3-8b", "accelerator": "H100-SXM5-80GB", "n_gpus": "64", "seq_len": "4096", "gbs": "256",
    "framework": "nanotron",
}  # fmt: skip


def test_an_unknown_framework_is_megatron_core():
    assert stack_of("a framework of one's own") is stack_of("")


def test_nanotron_overlaps_gradients_only_without_zero():
    """huggingface/nanotron src/nanotron/trainer.py, `make_ddp`."""
    plain, sharded = (parse_point(ROW | {"zero_stage": stage}).columns for stage in ("0", "1"))
    assert plain.get("overlap_grad_reduce", True)
    assert not sharded["overlap_grad_reduce"]


def test_nanotron_checks_collectives_with_a_pipeline():
    single, piped = (parse_point(ROW | {"pp": pp}).columns for pp in ("1", "4"))
    assert not single.get("checked_collectives", False)
    assert piped["checked_collectives"]


def test_the_network_is_that_of_the_stacks_cluster():
    assert parse_point(ROW).cluster.interconnect == "efa"
    assert parse_point(ROW | {"framework": "Megatron-Core"}).cluster.interconnect == "ib"
