"""The bytes of memory against other programs that count them: megatron-core, DeepSpeed, torch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.activations import MLP, MOE, kept_fully_recomputed, part_activations
from simulator.hardware import parse_cluster
from simulator.job import Jobs, make_jobs
from simulator.memory_physics import DEFAULT_MEMORY_PHYSICS, memory_physics_of
from simulator.model_state import StageContents, model_state
from simulator.models import ModelShape, parameters

DENSE = ModelShape(name="custom", layers=4, hidden=64, ffn=160, heads=8, kv_heads=4, head_dim=8, vocab=768)
EXPERTS = replace(DENSE, experts=8, top_k=2, moe_ffn=96)
STATE = ("weights", "gradients", "optimizer")


def jobs(shape: ModelShape, gpus: int, **columns: Any) -> Jobs:
    return make_jobs(shape, parse_cluster(f"{gpus}xH100"), **{"gbs": gpus, "seq_len": 128} | columns)


def state(one: Jobs, stack: str) -> dict[str, Any]:
    return model_state(one, StageContents.of(one), memory_physics_of(stack))


def megatron_parameters(shape: ModelShape, gpus: int, rank: int, tp: int, pp: int, ep: int, etp: int) -> int:
    """Parameters that megatron-core puts on ``rank``, its process groups made without other processes."""
    torch = pytest.importorskip("torch")
    core = pytest.importorskip("megatron.core")
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=gpus)
    sizes = {
        "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": etp,
    }  # fmt: skip
    core.parallel_state.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
    try:
        experts = {"num_moe_experts": shape.experts, "moe_ffn_hidden_size": shape.moe_ffn, "moe_router_topk": 2}
        config = TransformerConfig(
            num_layers=shape.layers, hidden_size=shape.hidden, ffn_hidden_size=shape.ffn, normalization="RMSNorm",
            num_attention_heads=shape.heads, num_query_groups=shape.kv_heads, gated_linear_unit=True,
            activation_func=torch.nn.functional.silu, add_bias_linear=False, use_cpu_initialization=True,
            perform_initialization=False, pipeline_dtype=torch.bfloat16, **sizes,
            **(experts if shape.experts else {}),
        )  # fmt: skip
        built = GPTModel(
            config, get_gpt_layer_local_spec(num_experts=shape.experts or None, normalization="RMSNorm"),
            vocab_size=shape.vocab, max_sequence_length=128, position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
            pre_process=core.parallel_state.is_pipeline_first_stage(),
            post_process=core.parallel_state.is_pipeline_last_stage(),
        )  # fmt: skip
        return sum(weight.numel() for weight in built.parameters())
    finally:
        core.parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("shape", "gpus", "tp", "pp", "ep", "etp"),
    [
        (DENSE, 1, 1, 1, 1, 1),
        (DENSE, 8, 4, 2, 1, 1),
        (EXPERTS, 8, 2, 2, 2, 1),
        (EXPERTS, 8, 2, 1, 4, 2),
        (EXPERTS, 16, 2, 4, 2, 2),
    ],
)
def test_parameters_of_a_rank_against_megatron_core(
    shape: ModelShape, gpus: int, tp: int, pp: int, ep: int, etp: int
) -> None:
    one = jobs(shape, gpus, tp=tp, pp=pp, ep=ep, etp=etp)
    ours = state(one, "megatron")["weights"][0] / 2
    for stage in {0, pp - 1}:
        assert ours[stage] == megatron_parameters(shape, gpus, stage * gpus // pp, tp, pp, ep, etp)


# Parameters, largest layer, GPUs; bytes on a GPU with ZeRO-2 and with ZeRO-3, the latter's largest layer apart.
# deepspeed 0.19.8, estimate_zero2_model_states_mem_needs(parameters, 8, gpus // 8, cpu_offload=False) and
# estimate_zero3_model_states_mem_needs(parameters, layer, 8, gpus // 8, cpu_offload=False, cpu_offload_params=False).
DEEPSPEED = [
    (7e9, 4e8, 8, 29_750_000_000, 17_350_000_000 - 1_600_000_000),
    (7e9, 4e8, 64, 15_968_750_000, 3_568_750_000 - 1_600_000_000),
    (70e9, 1.7e9, 128, 149_843_750_000, 16_643_750_000 - 6_800_000_000),
]


@pytest.mark.parametrize(("count", "layer", "gpus", "zero2", "zero3"), DEEPSPEED)
def test_model_state_against_the_estimators_of_deepspeed(
    count: float, layer: float, gpus: int, zero2: float, zero3: float
) -> None:
    """Bytes a parameter are compared, as the estimators know no shape."""
    for stage, bytes_on_a_gpu in ((2, zero2), (3, zero3)):
        parts = state(jobs(DENSE, gpus, zero_stage=stage), "deepspeed")
        ours = sum(parts[name][0, 0] for name in STATE) / parameters(DENSE).total
        assert ours == pytest.approx(bytes_on_a_gpu / count)


def test_model_state_against_fsdp2() -> None:
    """FP32 weights, gradients and moments of rank 0 of 8, sharded by torch without other processes."""
    torch = pytest.importorskip("torch")
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (8,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        built = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3)))
        for part in (*built, built):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(built.parameters())
        built(torch.ones(16, 64)).float().sum().backward()
        optimizer.step()
        weights = [weight.to_local() for weight in built.parameters()]
        gradients = [weight.grad.to_local() for weight in built.parameters()]
        moments = [m.to_local() for held in optimizer.state.values() for m in held.values() if m.dim()]
    finally:
        torch.distributed.destroy_process_group()
    measured = sum(t.numel() * t.element_size() for t in weights + gradients + moments) / (3 * 64 * 64)
    parts = state(jobs(DENSE, 8, zero_stage=3), "torchtitan")
    assert sum(parts[name][0, 0] for name in STATE) / parameters(DENSE).total == pytest.approx(measured)


def saved_bytes(run: Callable[[Any], Any], tokens: int, hidden: int) -> float:
    """Bytes per token that autograd keeps of a function of (tokens, hidden), storages counted once, no weights."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    held: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        if tokens in tensor.shape or 2 * tokens in tensor.shape:
            held[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with FakeTensorMode(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(torch.ones(tokens, hidden, dtype=torch.bfloat16, requires_grad=True))
    return float(sum(t.untyped_storage().nbytes() for t in held.values())) / tokens


def fused_swiglu() -> Any:
    """silu(gate) * up that keeps its input alone, as Transformer Engine's does."""
    torch = pytest.importorskip("torch")

    class SwiGlu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, both: Any) -> Any:
            ctx.save_for_backward(both)
            gate, up = both.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * up

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise NotImplementedError

    return SwiGlu.apply


def gated_mlp(x: Any, ffn: int, activation: Any) -> Any:
    up = x.new_ones(x.shape[1], 2 * ffn, requires_grad=True)
    down = x.new_ones(ffn, x.shape[1], requires_grad=True)
    return activation(x @ up) @ down


@pytest.mark.parametrize("stack", ["megatron", "nanotron"])
def test_saved_tensors_of_an_mlp_against_torch(stack: str) -> None:
    """A gated MLP after its norm; nanotron's activation is two operations, of which the first is kept as well."""
    torch = pytest.importorskip("torch")

    def two_operations(both: Any) -> Any:
        gate, up = both.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    activation = fused_swiglu() if stack == "megatron" else two_operations
    measured = saved_bytes(lambda x: gated_mlp(x, DENSE.ffn, activation), 128, DENSE.hidden)
    norm_input = 2 * DENSE.hidden
    layer = part_activations(jobs(DENSE, 1), memory_physics_of(stack))
    assert layer.kept[MLP][0] - norm_input == pytest.approx(measured, rel=0.01)


def test_saved_tensors_of_experts_against_torch() -> None:
    """Two experts of every token, balanced, after a router: inputs and activations of each copy."""

    def run(x: Any) -> Any:
        copies = x.repeat_interleave(EXPERTS.top_k, dim=0)
        return gated_mlp(copies, EXPERTS.moe_ffn, fused_swiglu())

    measured = saved_bytes(run, 128, EXPERTS.hidden)
    layer = part_activations(jobs(EXPERTS, 1, force_balance=True), DEFAULT_MEMORY_PHYSICS)
    norm, router = 4 * EXPERTS.hidden, 4 * EXPERTS.experts
    assert layer.kept[MOE][0] - norm - router == pytest.approx(measured, rel=0.01)


def test_saved_tensors_of_a_checkpointed_layer_against_torch() -> None:
    """Checkpointing keeps the input of a layer alone."""
    checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint

    def run(x: Any) -> Any:
        return checkpoint(lambda y: gated_mlp(y, DENSE.ffn, fused_swiglu()), x * 1, use_reentrant=False)

    measured = saved_bytes(run, 128, DENSE.hidden)
    assert np.isclose(kept_fully_recomputed(jobs(DENSE, 1))[0], measured)
