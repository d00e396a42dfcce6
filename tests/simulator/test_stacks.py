from simulator.calibration.points import parse_point
from simulator.stacks import stack_of

ROW = {
    "model": "llama-3-8b", "accelerator": "H100-SXM5-80GB", "n_gpus": "64", "seq_len": "4096", "gbs": "256",
    "framework": "nanotron",
}  # fmt: skip


def test_an_unknown_framework_is_megatron_core():
    assert stack_of("a framework of one's own") is stack_of("")
    assert stack_of("megatron-bridge") is stack_of("Megatron-Bridge") is not stack_of("")


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


def test_nanotron_stalls_in_the_transfers_of_its_largest_pipelines():
    def stalled(**sizes):
        return bool(
            parse_point(ROW | {"gbs": "512"} | {k: str(v) for k, v in sizes.items()}).columns.get(
                "stalled_sends", False
            )
        )

    assert stalled(n_gpus=512, pp=2)
    assert stalled(tp=32, pp=2)
    assert not stalled(n_gpus=512)
    assert not stalled(n_gpus=256, tp=8, pp=4)
