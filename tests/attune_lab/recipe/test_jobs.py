"""Every lever of a recipe arrives in its job."""

from __future__ import annotations

import numpy as np
import pytest

from attune_lab.contracts import UserError
from attune_lab.recipe.jobs import jobs_for
from simulator.job import Dispatcher, Graph, Offload, Precision, Recompute
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense, moe

AWARE = {"use_precision_aware_optimizer": True}


@pytest.mark.parametrize(
    ("edits", "column", "value"),
    [
        ({}, "vpp", 2),
        ({}, "dp", 8),
        ({}, "num_microbatches", 32),
        ({}, "zero_stage", 1),
        ({"use_distributed_optimizer": None}, "zero_stage", 0),
        ({"tp": 1}, "sequence_parallel", False),
        ({"etp": None}, "etp", 2),
        ({"fp8": "hybrid", "fp8_recipe": "blockwise"}, "precision", Precision.FP8_BLOCKWISE),
        ({"fp8": "hybrid"}, "precision", Precision.FP8_DELAYED),
        ({"fp4": "e2m1"}, "precision", Precision.NVFP4),
        ({"bf16": None, "fp16": True}, "precision", Precision.FP16),
        ({"recompute_granularity": "selective"}, "recompute", Recompute.CORE_ATTN),
        (
            {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "layernorm")},
            "recompute",
            Recompute.MOE_ACT | Recompute.LAYERNORM,
        ),
        ({"recompute_granularity": "full"}, "recompute", Recompute.FULL),
        (
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3},
            "recompute_layers",
            3,
        ),
        ({"dispatcher": "flex"}, "dispatcher", Dispatcher.DEEPEP),
        ({"dispatcher": "flex", "flex_backend": "hybridep"}, "dispatcher", Dispatcher.HYBRIDEP),
        ({"dispatcher": None}, "dispatcher", Dispatcher.ALLGATHER),
        (
            {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn", "moe_router")},
            "cuda_graph",
            Graph.ATTN | Graph.MOE_ROUTER,
        ),
        ({"cuda_graph_impl": "full_iteration"}, "cuda_graph", Graph.FULL_ITERATION),
        ({"fine_grained_offload": True, "offload_modules": ("moe_act",)}, "offload", Offload.MOE_ACT),
        ({"main_grads_dtype": "bf16", **AWARE}, "main_grad_bytes", 2),
        ({"grad_reduce_in_fp32": False}, "main_grad_bytes", 2),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", **AWARE}, "moment_bytes", 4),
        ({"exp_avg_dtype": "bf16"}, "moment_bytes", 8),
        (AWARE, "main_param_bytes", 2),
        ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}, "optimizer_offload", 0.5),
        ({"bucket_size": 40_000_000}, "bucket_bytes", 160_000_000),
        ({"moe_permute_fusion": True}, "permute_fusion", True),
        ({"manual_gc": True}, "host_tuned", 1),
    ],
)
def test_lever_arrives(edits, column, value) -> None:
    assert getattr(jobs_for([moe(**edits)], cluster()), column).tolist() == [value]


@pytest.mark.parametrize(
    ("name", "text", "column", "value"),
    [
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32", "max_connections", 32),
        ("CUDA_DEVICE_MAX_CONNECTIONS", None, "max_connections", 0),
        ("NCCL_NVLS_ENABLE", "0", "nvls", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "expandable_segments", True),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1", "avoid_record_streams", True),
        ("NVTE_FWD_LAYERNORM_SM_MARGIN", "16", "sm_margin", True),
    ],
)
def test_environment_arrives(name, text, column, value) -> None:
    recipe = moe().with_environment({name: text})
    assert getattr(jobs_for([recipe], cluster()), column).tolist() == [value]


def test_a_batch_pads_its_stages() -> None:
    jobs = jobs_for([moe(), moe(pp=2, vpp=None), moe(vpp=None, pp_layout="Et*7|t*9|t*9|t*7L")], cluster())
    np.testing.assert_array_equal(jobs.stage_layers, [[8, 8, 8, 8], [16, 16, 0, 0], [7, 9, 9, 7]])
    assert jobs.model.experts == 64


def test_one_model_per_batch() -> None:
    with pytest.raises(ValueError, match="one model"):
        jobs_for([moe(), dense()], cluster())
    with pytest.raises(ValueError, match="do not split"):
        jobs_for([moe(num_layers=31)], cluster())


def test_formats_without_figures_are_refused() -> None:
    with pytest.raises(UserError, match="custom"):
        jobs_for([moe(fp8="hybrid", fp8_recipe="custom")], cluster())
