from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.models import (
    counts_by,
    flops_by_part,
    flops_per_token,
    identify,
    mean_context,
    model,
    models,
    parameters,
    published,
)


def test_every_shape_has_a_source_and_sane_widths() -> None:
    assert len(models()) == 38
    for name, shape in models().items():
        assert shape.name == name
        assert published(name).source.strip()
        assert shape.layers > 0
        assert shape.heads % shape.kv_heads == 0
        assert (shape.experts > 0) == (shape.top_k > 0) == (shape.moe_ffn > 0)
        assert shape.max_seq >= 2048


def test_unknown_model_names_near_misses() -> None:
    with pytest.raises(ValueError, match=r"glm-4.5-air"):
        model("glm-45-air")
    assert model("GLM-4.5") is models()["glm-4.5"]


@pytest.mark.parametrize("name", models())
def test_identify_finds_every_model(name: str) -> None:
    shape = models()[name]
    found = identify(replace(shape, name="custom", max_seq=0))
    assert found is not None
    assert replace(models()[found], name=name, max_seq=shape.max_seq) == shape  # some papers share a shape


def test_identify_allows_dropped_mtp_and_padded_vocabulary_only() -> None:
    shape = model("glm-4.5")
    assert identify(replace(shape, mtp_layers=0, vocab=shape.vocab + 128)) == "glm-4.5"
    assert identify(replace(shape, mtp_layers=2)) is None
    assert identify(replace(shape, vocab=shape.vocab - 1)) is None
    assert identify(replace(shape, vocab=2 * shape.vocab)) is None
    assert identify(replace(shape, layers=shape.layers - 1)) is None


@pytest.mark.parametrize("name", models())
def test_parameters_meet_the_published_count(name: str) -> None:
    printed = published(name)
    counts = counts_by(printed.convention, parameters(models()[name]))
    # One last digit covers rounding and cutting; a nominal count contradicts its own configuration (1.3 %).
    share = 0.015 if printed.nominal else 0.01
    for count, value, digit in zip(counts, (printed.total_b, printed.active_b), printed.digit_b, strict=True):
        assert abs(count / 1e9 - value) <= max(share * value, digit)


def test_only_one_count_is_nominal() -> None:
    assert [name for name in models() if published(name).nominal] == ["kimi-k2"]


@pytest.mark.parametrize(
    ("name", "exact"),
    [("llama-2-7b", 6_738_415_616), ("llama-3-8b", 8_030_261_248), ("mixtral-8x7b", 46_702_792_704)],
)
def test_exact_counts_of_released_weights(name: str, exact: int) -> None:
    """Tensor sizes summed over the released safetensors files."""
    assert parameters(models()[name]).total == exact


# GFLOP per trained token that NVIDIA's performance pages imply (printed TFLOP/s/GPU over printed tokens/s/GPU),
# NVIDIA-NeMo/Megatron-Bridge docs/performance-summary.md, container 26.06 where they differ.
PRINTED_GFLOP = [
    ("llama-3-8b", 8192, True, 51.5),
    ("llama-3-70b", 8192, True, 449.2),
    ("llama-3.1-405b", 8192, True, 2524.3),
    ("qwen3-30b-a3b", 4096, True, 23.0),
    ("qwen3-235b-a22b", 4096, True, 148.0),
    ("deepseek-v3", 4096, True, 260.0),
    ("deepseek-v3", 4096, False, 249.6),
    ("kimi-k2", 4096, True, 204.5),
    ("gpt-oss-120b", 4096, True, 32.6),
]


@pytest.mark.parametrize(("name", "seq_len", "mtp", "gflop"), PRINTED_GFLOP)
def test_flops_per_token_as_printed(name: str, seq_len: int, mtp: bool, gflop: float) -> None:
    flops = flops_per_token(models()[name], np.array([seq_len]), mtp=mtp)
    assert flops == pytest.approx(gflop * 1e9, rel=2e-3)


def test_hybrid_flops_under_the_printed_convention() -> None:
    """NVIDIA prints 22.28 (Nano) and 84.8 (Super) with a Mamba width of 2h and, for Super, two MTP layers."""
    nano, large = model("nemotron-3-nano-30b-a3b"), model("nemotron-3-super-120b-a12b")
    wide = replace(nano, mamba_heads=2 * nano.hidden // nano.mamba_head_dim)
    assert flops_per_token(wide, 8192) == pytest.approx(22.28e9, rel=5e-3)
    assert flops_per_token(replace(large, mtp_layers=2), 8192) == pytest.approx(84.8e9, rel=5e-3)


@given(st.sampled_from(sorted(models())), st.integers(1, 20), st.booleans())
def test_flops_are_the_sum_of_their_parts_and_grow_with_the_sequence(name: str, log_seq: int, mtp: bool) -> None:
    shape, seq = models()[name], np.array([2**log_seq, 2 ** (log_seq + 1)])
    parts = flops_by_part(shape, seq, mtp=mtp)
    total = flops_per_token(shape, seq, mtp=mtp)
    assert np.allclose(total, 3 * (sum(parts.values()) - parts["router"]))
    assert all(np.all(value >= 0) for value in parts.values())
    assert total[1] >= total[0]
    # Six FLOPs per active weight that multiplies the token, attention's square apart.
    weights = parameters(shape).active - (0 if shape.tied_embeddings else parameters(shape).embedding)
    dense = 3 * (sum(parts.values()) - parts["core_attention"] - parts["mtp"])
    assert dense == pytest.approx(6 * weights, rel=0.02)


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_mean_context_against_counting(seq_len: int, window: int) -> None:
    """Token i attends to min(i, window) tokens; the closed form leaves out half of the diagonal."""
    counted = np.minimum(np.arange(1, seq_len + 1), window).mean()
    assert mean_context(np.array(float(seq_len)), window) == pytest.approx(counted, abs=0.5)


def test_flops_of_one_dense_layer_against_torch() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    shape = replace(model("llama-3-8b"), layers=1, hidden=64, ffn=160, heads=4, kv_heads=2, head_dim=16, vocab=96)
    seq = 32
    sizes = [(64, 128), (64, 64), (64, 160), (64, 160), (160, 64), (64, 96)]  # qkv, out, gate, up, down, head
    with FlopCounterMode(display=False) as counter:
        for rows, columns in sizes:
            torch.ones(seq, rows, requires_grad=True) @ torch.ones(rows, columns, requires_grad=True)
        q, k, v = (torch.ones(4, seq, 16) for _ in range(3))
        _ = (q @ k.transpose(1, 2)) @ v  # the whole square
    square = 2 * 4 * seq * seq * 32
    forward = counter.get_total_flops() - square / 2
    assert flops_per_token(shape, seq) * seq == pytest.approx(3 * forward)
