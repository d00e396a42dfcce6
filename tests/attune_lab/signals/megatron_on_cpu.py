"""Runs Megatron-Core on CPU ranks: its model, DDP, optimizers and schedules, with CUDA's calls answered by the CPU.

It trains a small MoE model for a few steps under the hooks, from weights and batches that do not depend on the layout.
"""

import contextlib
import hashlib
import itertools
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from attune_lab.signals import Signals
from attune_lab.signals.megatron import recording
from attune_lab.signals.megatron_layout import megatron_groups, shares_of

STEPS, SEQUENCES, LENGTH, VOCABULARY = 3, 8, 16, 64


class _OnCpu(TorchFunctionMode):
    """Tensors asked for on a GPU are made on the CPU and say that they are on a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.")
        return args[0] if function is torch.Tensor.cuda else function(*args, **kwargs)


class _Norm(torch.nn.LayerNorm):
    """A norm whose gradient is summed over tensor-parallel ranks, as Megatron's fused one."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


def train(rank: int, world_size: int, layout: dict, out: Path) -> None:
    """Trains on this rank of a process group and writes the signals to ``out``.

    Args:
        rank, world_size: of the group.
        layout: sizes by axis (``tp``, ``pp``, ``vpp``, ``ep``, ``etp``); ``sharded``: by the distributed optimizer;
            ``overlap``: of reductions and gathers; ``bf16``; ``tied``: head and embedding; ``aux``: coefficient of the
            balancing loss; ``spoiled``: one weight of the last rank changes after the first step.
        out: path of the signals file.
    """
    with _cuda_on_cpu():
        from megatron.core import parallel_state

        parallel_state.initialize_model_parallel(
            layout.get("tp", 1),
            layout.get("pp", 1),
            virtual_pipeline_model_parallel_size=layout.get("vpp"),
            expert_model_parallel_size=layout.get("ep", 1),
            expert_tensor_parallel_size=layout.get("etp", 1),
        )
        try:
            _train(layout, out, last=rank == world_size - 1)
        finally:
            parallel_state.destroy_model_parallel()


@contextlib.contextmanager
def _cuda_on_cpu():
    from megatron.core.models import backends
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer.moe import moe_utils

    with contextlib.ExitStack() as stack:
        for name in ("Stream", "Event", "current_stream", "synchronize"):
            stack.enter_context(mock.patch.object(torch.cuda, name, mock.MagicMock()))
        stack.enter_context(mock.patch.object(torch.cuda, "stream", return_value=contextlib.nullcontext()))
        stack.enter_context(mock.patch.object(torch.cuda, "current_device", return_value=torch.device("cpu")))
        stack.enter_context(mock.patch.object(CudaRNGStatesTracker, "fork", return_value=contextlib.nullcontext()))
        stack.enter_context(mock.patch.object(moe_utils, "te_general_gemm", None, create=True))
        for module in (backends, gpt_layer_specs):
            stack.enter_context(mock.patch.object(module, "LNImpl", _Norm))
        stack.enter_context(_OnCpu())
        yield


def _train(layout: dict, out: Path, *, last: bool) -> None:
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    model, optimizer = _build(layout)
    _set_weights(model, optimizer)
    replicas = parallel_state.get_data_parallel_world_size()
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)

    def forward_step(batches, chunk):
        batch = next(batches)
        losses = chunk(batch["tokens"], batch["position_ids"], mask, labels=batch["labels"])
        return losses, partial(_loss, batch["loss_mask"])

    with recording(model, optimizer, out, last=STEPS) as recorder:
        batches = [_batches(parallel_state.get_data_parallel_rank(), replicas) for _ in model]
        for step in range(1, STEPS + 1):
            for chunk in model:
                chunk.zero_grad_buffer()
            optimizer.zero_grad()
            get_forward_backward_func()(
                forward_step_func=recorder.forward_step(forward_step), model=model,
                data_iterator=batches if len(model) > 1 else batches[0],
                num_microbatches=SEQUENCES // 2 // replicas, seq_length=LENGTH, micro_batch_size=2, forward_only=False,
            )  # fmt: skip
            optimizer.step()
            if layout.get("spoiled") and last and step == 1:
                next(model[0].parameters()).data[0] += 1.0


def _build(layout: dict):
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    tp, bf16 = layout.get("tp", 1), layout.get("bf16", False)
    dtype = torch.bfloat16 if bf16 else torch.float32
    config = TransformerConfig(
        num_layers=4, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=64,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=32, moe_shared_expert_intermediate_size=32,
        moe_layer_freq=[0, 1, 1, 1], moe_aux_loss_coeff=layout.get("aux", 0.0),
        moe_router_load_balancing_type="seq_aux_loss", moe_token_dispatcher_type="allgather",
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=layout.get("pp", 1),
        virtual_pipeline_model_parallel_size=layout.get("vpp"), expert_model_parallel_size=layout.get("ep", 1),
        expert_tensor_parallel_size=layout.get("etp", 1), sequence_parallel=tp > 1, bf16=bf16, params_dtype=dtype,
        pipeline_dtype=dtype, hidden_dropout=0.0, attention_dropout=0.0, calculate_per_token_loss=True,
        batch_p2p_comm=False,  # gloo matches batched messages of two ranks in another order than NCCL
        use_cpu_initialization=True, gradient_accumulation_fusion=False, bias_dropout_fusion=False,
        masked_softmax_fusion=False, persist_layer_norm=False,
    )  # fmt: skip
    chunks = [
        GPTModel(
            config=config, vocab_size=VOCABULARY, max_sequence_length=LENGTH, position_embedding_type="rope",
            transformer_layer_spec=get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=stage),
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
            share_embeddings_and_output_weights=layout.get("tied", False), vp_stage=stage,
        )
        for stage in (range(layout["vpp"]) if "vpp" in layout else [None])
    ]  # fmt: skip
    for chunk in chunks:
        for parameter in chunk.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    sharded, overlap = layout.get("sharded", True), layout.get("overlap", False)
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=sharded, overlap_grad_reduce=overlap, overlap_param_gather=overlap,
        grad_reduce_in_fp32=True, bucket_size=20_000 if overlap else None,
    )  # fmt: skip
    model = [
        DistributedDataParallel(config=config, ddp_config=ddp, module=Float16Module(config, chunk) if bf16 else chunk)
        for chunk in chunks
    ]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=1e-2, clip_grad=1.0, bf16=bf16, params_dtype=dtype, weight_decay=0.1,
            use_distributed_optimizer=sharded, overlap_param_gather=overlap,
        ),
        model,
    )  # fmt: skip
    config.finalize_model_grads_func, config.grad_scale_func = finalize_model_grads, optimizer.scale_loss
    config.no_sync_func = model[0].no_sync if overlap else None
    return model, optimizer


@torch.no_grad()
def _set_weights(model, optimizer) -> None:
    """Weights that are a function of the name alone."""
    for share in shares_of(model, optimizer, megatron_groups()):
        size = share.parameter.numel()
        seed = int.from_bytes(hashlib.sha256(share.name.encode()).digest()[:4], "big")
        whole = torch.randn(size * share.parts, generator=torch.Generator().manual_seed(seed)) * 0.1
        whole += share.name.endswith("norm.weight")
        share.parameter.copy_(whole[share.places(0, size)].view(share.parameter.shape))
    optimizer.reload_model_params()


def _batches(rank: int, replicas: int):
    """Micro-batches of two sequences; of each global batch a rank takes every ``replicas``-th sequence."""
    generator = torch.Generator().manual_seed(5)
    while True:
        tokens = torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH + 1), generator=generator)
        kept = torch.rand(SEQUENCES, LENGTH, generator=generator) < 0.8
        for part in torch.arange(SEQUENCES)[rank::replicas].split(2):
            yield {
                "tokens": tokens[part, :-1],
                "labels": tokens[part, 1:],
                "loss_mask": kept[part].float(),
                "position_ids": torch.arange(LENGTH).expand(2, LENGTH),
            }


def _loss(mask, losses):
    total, count = (losses.float() * mask).sum(), mask.sum().to(torch.int)
    return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}


def sketch_error(one, other) -> dict[str, float]:
    """Relative difference of two steps' gradients by parameter, estimated from the sketches."""
    return {
        name: (sum((a - b) ** 2 for a, b in zip(signs, other.grad_sketch[name], strict=True)) / len(signs)) ** 0.5
        / one.grad_norm[name]
        for name, signs in one.grad_sketch.items()
    }  # fmt: skip


def paired(one: Signals, other: Signals):
    """Records of the same step of two runs."""
    return itertools.zip_longest(one.steps, other.steps)
