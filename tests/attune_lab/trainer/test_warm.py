"""Warm weights are trained once per model, and attention matters to them."""

import pytest
import torch

from attune_lab.trainer import data, state, warm
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.context import make_context
from attune_lab.trainer.injection import patched
from attune_lab.trainer.mesh import Mesh
from attune_lab.trainer.observer import Observer

SMALL = TrainerConfig(hidden=16, ffn=16, num_layers=2, vocab_size=32, seq_len=16)
DENSE = TrainerConfig(packed=True)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Of a dense model, warm for a third of the usual time."""
    return warm.warm_start(DENSE, tmp_path_factory.mktemp("warm"), steps=100)


def test_runs_of_one_model_share_a_file_that_is_trained_once(tmp_path):
    first = warm.warm_start(SMALL, tmp_path, steps=2)
    written = first.stat().st_mtime_ns
    others = {"mbs": 4, "bf16": False, "ragged": True, "seed": 3, "attention_backend": "chunked", "lr": 0.1, "dp": 2}
    for name, value in others.items():
        assert warm.warm_start(SMALL.model_copy(update={name: value}), tmp_path, steps=2) == first
    assert first.stat().st_mtime_ns == written
    assert warm.warm_start(SMALL.model_copy(update={"rotary_base": 5e3}), tmp_path, steps=2) != first
    assert warm.warm_start(SMALL, tmp_path, steps=3) != first


def test_it_is_a_start_and_not_a_resume(tmp_path):
    started = state.make_state(SMALL, Mesh.build(SMALL), state.load(warm.warm_start(SMALL, tmp_path, steps=2)))
    assert started.step == 0
    assert all(not own.mean.any() and not own.square.any() for own in started.optimizer.slices)


def losses(config, weights, faults=None):
    """Loss of each token of 32 sequences."""
    batch = data.assemble(config, range(32))
    started = state.make_state(config, Mesh.build(config), state.load(weights))
    with torch.no_grad(), patched(faults or {}):
        context = make_context(config, started.mesh, batch, Observer())
        return started.pipeline.chunks[0](None, context, (1.0, 1.0)).tokens.T * batch.mask


FAULTS = {
    "base": {"context.rotary": lambda original, x, c: original(x, c.model_copy(update={"rotary_base": 2e4}))},
    "scale": {"attention.softmax_scale": lambda original, head: 1.2 * original(head)},
    "future": {"context.visible": lambda original, q, k, d: torch.ones_like(original(q, k, d))},
    "documents": {"context.visible": lambda original, q, k, d: original(q, k, d * 0)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_attention_show_from_warm_weights(fault, weights):
    """In the losses token by token, three times what kernels and precisions change in them.

    The mean loss alone says less: training has put it at a minimum over the scale.
    """
    loss = losses(DENSE, weights)
    legitimate = [{"attention_backend": "unfused"}, {"attention_backend": "chunked"}, {"bf16": False}]
    noise = max((losses(DENSE.model_copy(update=change), weights) - loss).norm() for change in legitimate)
    assert (losses(DENSE, weights, FAULTS[fault]) - loss).norm() > 3 * noise
