"""The hooks on Megatron-Core itself, several ranks of it on the CPU, and its names."""

import math

import pytest

from attune_lab.signals import group_of, read_signals
from attune_lab.signals.megatron_layout import renamed
from attune_lab.trainer.pool import RankPool
from tests.attune_lab.signals import megatron_on_cpu
from tests.attune_lab.signals.megatron_on_cpu import paired, sketch_error

LAYOUTS = {
    "alone": (1, {}),
    "alone, balanced": (1, {"aux": 0.1}),
    "alone, tied": (1, {"tied": True}),
    "data parallel": (2, {}),
    "not sharded": (2, {"sharded": False}),
    "experts over ranks": (2, {"ep": 2}),
    "expert tensor parallel": (2, {"tp": 2, "etp": 2}),
    "tied pipeline": (2, {"pp": 2, "tied": True}),
    "interleaved pipeline": (2, {"pp": 2, "vpp": 2}),
    "three ways": (4, {"tp": 2, "pp": 2, "ep": 2}),
    "tensor and data parallel": (4, {"tp": 2, "ep": 2, "sharded": False}),
    "overlapped": (2, {"bf16": True, "overlap": True}),
    "spoiled": (2, {"spoiled": True}),
    "attribute lost": (2, {"tp": 2}),
    "balanced": (2, {"tp": 2, "ep": 2, "aux": 0.1}),
}
"""Ranks and settings of the runs."""

EXACT = ("tokens", "sequences", "samples", "labels", "positions", "replicas", "stale", "dropped", "skipped")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The signals of every run, by its name."""
    pytest.importorskip("megatron.core")
    folder, found = tmp_path_factory.mktemp("megatron"), {}
    with RankPool(4) as pool:
        for name, (ranks, layout) in LAYOUTS.items():
            pool.run(megatron_on_cpu.train, layout, folder / name, world_size=ranks)
            found[name] = read_signals(folder / name)
    return found


@pytest.mark.parametrize(
    ("reference", "layout"),
    [
        ("alone", "data parallel"),
        ("alone", "not sharded"),
        ("alone", "experts over ranks"),
        ("alone", "expert tensor parallel"),
        ("alone", "interleaved pipeline"),
        ("alone", "three ways"),
        ("alone", "tensor and data parallel"),
        ("alone, tied", "tied pipeline"),
    ],
)
def test_every_layout_gives_the_signals_of_one_rank(runs, reference, layout):
    for one, other in paired(runs[reference], runs[layout]):
        assert [getattr(one, f) for f in EXACT] == [getattr(other, f) for f in EXACT]
        assert (one.replicas, one.stale, one.dropped, one.skipped) == ((), (), 0, False)
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        assert other.clip_factor == pytest.approx(one.clip_factor, rel=1e-5)
        assert other.logged == pytest.approx(one.logged, rel=1e-5)
        for field in ("grad_norm", "update_norm", "weight_norm"):
            assert getattr(other, field) == pytest.approx(getattr(one, field), rel=1e-4)
        assert max(sketch_error(one, other).values()) < 1e-3
    assert runs[layout].steps[0].expert_load == runs[reference].steps[0].expert_load


def test_norms_are_those_that_megatron_logs(runs):
    for layout in ("alone", "data parallel", "three ways"):
        for step in runs[layout].steps:
            norm = math.hypot(*step.grad_norm.values())
            assert norm == pytest.approx(step.logged["grad norm"], rel=1e-5)
            assert step.clip_factor == pytest.approx(min(1.0, 1.0 / norm), rel=1e-5)


def test_overlapped_gathers_leave_no_stale_weights_or_differing_copies(runs):
    assert [(s.stale, s.replicas) for s in runs["overlapped"].steps] == [((), ())] * 3


def test_a_weight_changed_on_one_rank_is_seen_as_differing_copy_and_as_stale(runs):
    first, second, _ = runs["spoiled"].steps
    assert first.replicas == ("dp: embedding.weight",)
    assert first.stale == ()
    assert second.stale == ("embedding.weight",)


def test_experts_whose_gradients_the_stack_leaves_in_parts_are_seen(runs):
    """With EP 1 and another tensor-parallel size for experts, release 0.16 reduces over the wrong ranks.

    The loss of the first step is that of one rank, and the fault shows in the experts alone.

    Source: NVIDIA/Megatron-LM#5916.
    """
    one, other = runs["alone"].steps[0], runs["attribute lost"].steps[0]
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    wrong = {group_of(name) for name, error in sketch_error(one, other).items() if error > 0.01}
    assert wrong == {"experts"}
    assert other.replicas
    assert all(text.startswith("edp: ") and ".experts." in text for text in other.replicas)


def test_a_balancing_loss_scaled_by_the_layout_is_seen_in_the_routers(runs):
    """Release 0.16 scales the auxiliary loss by local tokens when losses are per token.

    Source: NVIDIA/Megatron-LM#5047.
    """
    one, other = runs["alone, balanced"].steps[0], runs["balanced"].steps[0]
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    errors = sketch_error(one, other)
    assert group_of(max(errors, key=errors.__getitem__)) == "router"
    assert max(errors.values()) > 0.1


NAMES = """
module.module.decoder.layers.3.self_attention.linear_qkv.weight  layers.3.attention.linear_qkv.weight  attention
decoder.layers.3.self_attention.linear_qkv.layer_norm_weight  layers.3.input_norm.weight  norm
decoder.layers.3.input_layernorm.weight  layers.3.input_norm.weight  norm
decoder.layers.3.self_attention.q_layernorm.weight  layers.3.attention.q_norm.weight  norm
decoder.layers.3.self_attention.linear_q_down_proj.weight  layers.3.attention.linear_q_down_proj.weight  attention
decoder.layers.3.mlp.linear_fc1.layer_norm_weight  layers.3.pre_mlp_norm.weight  norm
decoder.layers.3.mlp.linear_fc2.weight  layers.3.mlp.linear_fc2.weight  mlp
decoder.layers.3.mlp.router.weight  layers.3.router.weight  router
decoder.layers.3.mlp.experts.local_experts.0.linear_fc1.weight  layers.3.experts.0.linear_fc1.weight  experts
decoder.layers.3.mlp.experts.linear_fc1.weight12  layers.3.experts.12.linear_fc1.weight  experts
decoder.layers.3.mlp.shared_experts.linear_fc1.weight  layers.3.shared_experts.linear_fc1.weight  shared_experts
decoder.layers.3.mlp.shared_experts.gate_weight  layers.3.shared_experts.gate_weight  shared_experts
decoder.final_layernorm.weight  final_norm.weight  norm
mtp.layers.0.enorm.weight  mtp.0.enorm.weight  mtp
mtp.layers.0.transformer_layer.mlp.router.weight  mtp.0.router.weight  mtp
embedding.word_embeddings.weight  embedding.weight  embedding
output_layer.weight  head.weight  head
"""
"""Of Megatron-Core and of the whole model, and the group of the gate."""


@pytest.mark.parametrize("line", NAMES.strip().splitlines())
def test_names_in_the_vocabulary_of_the_gate(line):
    name, whole, group = line.split()
    assert (renamed(name), group_of(whole)) == (whole, group)
