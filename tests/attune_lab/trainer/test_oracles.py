"""The trainer's arithmetic against other implementations: torch's own, and brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.trainer import attention, loss, optimizer, router
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.context import Context, make_context, own_positions, visible
from attune_lab.trainer.data import load
from attune_lab.trainer.injection import patched
from attune_lab.trainer.linear import quantised
from attune_lab.trainer.mesh import Axis, Mesh
from attune_lab.trainer.moe import Moe
from attune_lab.trainer.observer import Observer
from attune_lab.trainer.state import State, make_state
from attune_lab.trainer.step import compute_gradients, finish_step
from attune_lab.trainer.weights import Builder

SMALL: dict[str, Any] = {
    "hidden": 32, "heads": 4, "kv_groups": 2, "ffn": 64, "moe_ffn": 16, "vocab_size": 96, "seq_len": 32, "gbs": 4,
    "bf16": False, "num_layers": 2,
}  # fmt: skip


def state_of(**changed: Any) -> State:
    config = TrainerConfig(**{**SMALL, **changed})
    return make_state(config, Mesh.build(config))


def context_of(state: State) -> Context:
    return make_context(state.config, state.mesh, load(state.config, 1, 0, 0), Observer())


@pytest.mark.parametrize("kernel", ["unfused", "chunked"])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_attention_kernels_agree_with_torchs(kernel: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 3, 20, 8, generator=generator) for _ in range(3))
    documents = torch.randint(0, 3, (2, 20), generator=generator).sort(-1).values
    allowed = visible(torch.arange(20), torch.arange(20), documents)
    compute = {"unfused": attention._unfused, "chunked": attention._chunked}[kernel]
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=0.3)
    torch.testing.assert_close(compute(q, k, v, allowed, 0.3, None), expected)


@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_cross_entropies_agree_with_torchs(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, 2, 13, generator=generator, requires_grad=True)
    labels = torch.randint(0, 13, (5, 2), generator=generator)
    weights = torch.rand(5, 2, generator=generator)
    truth = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(5, 2)
    (expected,) = torch.autograd.grad((truth * weights).sum(), logits)
    for entropy in (loss.cross_entropy, loss.fused_cross_entropy):
        found = entropy(logits, labels, Axis())
        torch.testing.assert_close(found, truth)
        torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), logits)[0], expected)


def test_rotary_turns_pairs_by_relative_position() -> None:
    context = context_of(state_of())
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    turned_q, turned_k = (attention.rotated(x.expand(32, 2, 1, 8), context)[:, 0, 0] for x in (q, k))
    scores = turned_q @ turned_k.T
    torch.testing.assert_close(scores[5, 3], scores[20, 18])
    assert not torch.isclose(scores[5, 3], scores[5, 2])


def test_a_moe_agrees_with_all_experts_computed_for_all_tokens() -> None:
    state = state_of(num_experts=4, topk=2, shared_expert_size=16)
    moe = next(m for m in state.pipeline.chunks[0].modules() if isinstance(m, Moe))
    context = context_of(state)
    x = torch.randn(*context.shape)
    routing = moe.router(x, context)
    gate, up, down = moe.experts.gate, moe.experts.up, moe.experts.down
    inner = F.silu(torch.einsum("sbh,efh->sbef", x, gate)) * torch.einsum("sbh,efh->sbef", x, up)
    every = torch.einsum("sbef,ehf->sbeh", inner, down).flatten(0, 1)
    chosen = every.gather(1, routing.experts[..., None].expand(-1, -1, x.shape[-1]))
    assert moe.shared_experts is not None
    expected = (chosen * routing.weights[..., None]).sum(1).view_as(x) + moe.shared_experts(x, context)
    torch.testing.assert_close(moe(x, context), expected)


def test_the_balance_loss_is_one_when_experts_are_used_alike() -> None:
    """Equal scores and equal counts give E sum (1 / E) (1 / E) = 1 per sequence."""
    state = state_of(num_experts=4, topk=2)
    context = context_of(state)
    scores = torch.full((32, 2, 4), 0.25)
    experts = torch.stack([torch.arange(32) % 4, (torch.arange(32) + 2) % 4], -1)[:, None].expand(-1, 2, -1)
    assert float(router.load_balancing(scores, experts, "layers.0", context)) == pytest.approx(2.0)


@pytest.mark.parametrize("kind", ["aux_loss", "seq_aux_loss", "global_aux_loss"])
def test_the_gradient_of_the_balance_loss_is_its_slope(kind: str) -> None:
    """Along the gradient, with the choice of experts held, against a central difference."""
    name, aux = "layers.1.router.weight", {"num_experts": 4, "lb_type": kind, "aux_loss_coeff": 0.3}
    choices: list[torch.Tensor] = []

    def remember(original: Any, *arguments: Any) -> torch.Tensor:
        choices.append(original(*arguments))
        return choices[-1]

    plain, balanced = state_of(**{**aux, "aux_loss_coeff": 0.0}), state_of(**aux)
    compute_gradients(plain)
    with patched({"router.choose": remember}):
        compute_gradients(balanced)
    slope = gradient_of(balanced, name) - gradient_of(plain, name)
    values = []
    for sign in (1, -1):
        nudged = state_of(**aux)
        weight = parameter(nudged, name)
        weight.data += sign * 1e-2 * (slope / slope.norm()).view_as(weight)
        held = iter(choices)
        with patched({"router.choose": lambda original, *arguments, held=held: next(held)}):
            metrics = compute_gradients(nudged).observer.metrics
        values.append(sum(value for (_, layer, _), value in metrics.items() if layer == "layers.1"))
    assert (values[0] - values[1]) / 2e-2 == pytest.approx(float(slope.norm()), rel=1e-2)


def parameter(state: State, name: str) -> torch.nn.Parameter:
    return next(m.parameter for b in state.optimizer.buckets for m in b.members if m.spec.name == name)


def gradient_of(state: State, name: str) -> torch.Tensor:
    for bucket in state.optimizer.buckets:
        for member in bucket.members:
            if member.spec.name == name:
                return bucket.reduced[member.start : member.end].clone()
    raise AssertionError(name)


def test_updates_agree_with_torchs_adamw_and_clipping() -> None:
    state = state_of(weight_decay=0.1, clip_grad=0.5, lr_warmup_iters=0, lr_decay_style="constant")
    specs = {m.spec.name: m.spec for b in state.optimizer.buckets for m in b.members}
    copies = {name: parameter(state, name).detach().clone().requires_grad_() for name in specs}
    settings = {"lr": state.config.lr, "betas": (0.9, 0.95), "eps": 1e-8}
    groups = [
        {"params": [copies[n] for n, s in specs.items() if s.decays == decays], "weight_decay": 0.1 * decays}
        for decays in (True, False)
    ]
    torchs = torch.optim.AdamW(groups, **settings)  # type: ignore[arg-type]
    for _ in range(3):
        gradients = compute_gradients(state)
        for name, copy in copies.items():
            copy.grad = gradient_of(state, name).view_as(copy)
        norm = torch.nn.utils.clip_grad_norm_(copies.values(), 0.5)
        assert gradients.norm == pytest.approx(float(norm), rel=1e-6)
        finish_step(state, gradients)
        torchs.step()
    for name, copy in copies.items():
        torch.testing.assert_close(parameter(state, name).detach(), copy.detach(), rtol=2e-6, atol=2e-7)


@given(cp=st.sampled_from([1, 2, 4]), length=st.sampled_from([16, 32, 64]))
def test_context_parallel_ranks_divide_the_sequence_and_its_causal_work(cp: int, length: int) -> None:
    shares = [own_positions(length, Axis(tuple(range(cp)), rank)) for rank in range(cp)]
    assert sorted(torch.cat(shares).tolist()) == list(range(length))
    assert len({int((share + 1).sum()) for share in shares}) == 1


@given(step=st.integers(1, 200), warmup=st.integers(0, 20))
def test_the_learning_rate_rises_then_falls_between_its_limits(step: int, warmup: int) -> None:
    config = TrainerConfig(lr_warmup_iters=warmup, lr=1e-3, min_lr=1e-4)
    now, then = (optimizer.learning_rate(s, config) for s in (step, step + 1))
    assert 0 < now <= 1e-3
    assert then >= now if step < warmup else then <= now
    assert step <= warmup or now >= 1e-4


@given(seed=st.integers(0, 2**31))
def test_rounding_to_e4m3_is_within_half_a_step_of_three_mantissa_bits(seed: int) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(seed))
    rounded = quantised(x, x.abs().max())
    large = x.abs() > x.abs().max() / 2**10
    assert ((rounded - x).abs()[large] <= x.abs()[large] * 2**-4 * 1.001).all()


def test_a_builder_divides_what_the_seed_draws() -> None:
    config = TrainerConfig(**SMALL)
    whole = Builder(config, Mesh.build(config)).matrix("layers.0.mlp.up", 8, 6)
    halves = [
        Builder(config, Mesh.build(config)).matrix("layers.0.mlp.up", 8, 6, ((0, Axis((0, 1), rank)),))
        for rank in (0, 1)
    ]
    assert torch.equal(torch.cat([h.detach() for h in halves]), whole.detach())
