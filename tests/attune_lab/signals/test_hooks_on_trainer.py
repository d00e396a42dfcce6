"""The Megatron hooks on the trainer, whose own recorder finds the same signals by another way.

The trainer's parameters and optimizer are given the attributes and calls of Megatron-Core's distributed optimizer.
"""

import math
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from attune_lab.signals import Signals, read_signals
from attune_lab.signals.megatron import recording
from attune_lab.signals.megatron_layout import Groups
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.loop import train
from attune_lab.trainer.mesh import Mesh
from attune_lab.trainer.optimizer import clip_factor
from attune_lab.trainer.pool import RankPool
from attune_lab.trainer.state import make_state
from attune_lab.trainer.step import compute_gradients, finish_step

SMALL = {"num_layers": 2, "train_iters": 3, "gbs": 8, "mbs": 1, "seq_len": 32, "clip_grad": 0.5}
MOE = SMALL | {"num_experts": 4, "shared_expert_size": 32}
LAYOUTS = {
    "alone": MOE,
    "data parallel, sharded": MOE | {"dp": 2, "use_distributed_optimizer": True, "overlap_param_gather": True},
    "tensor parallel": MOE | {"tp": 2, "sequence_parallel": True},
    "tied pipeline": SMALL | {"pp": 2, "untie_embeddings": False},
    "four ranks": SMALL | {"tp": 2, "dp": 2, "use_distributed_optimizer": True},
}


class AsMegatron:
    """The trainer's optimizer, seen as a distributed optimizer of Megatron-Core."""

    def __init__(self, state):
        self.state = state
        optimizer = state.optimizer
        owned = [
            (member, own.master[inside], part)
            for bucket, own in zip(optimizer.buckets, optimizer.slices, strict=True)
            for member, inside, part in bucket.owned()
        ]
        members = [member for bucket in optimizer.buckets for member in bucket.members]
        self.masters = [master for _, master, _ in owned]
        self.parameters = [member.parameter for member, _, _ in owned]
        ranges = {m.parameter: {"param": SimpleNamespace(start=p.start, end=p.stop)} for m, _, p in owned}
        self.buffers = [SimpleNamespace(param_index_map=dict.fromkeys(m.parameter for m in members))]
        self.gbuf_ranges = [{torch.float32: [{"param_map": ranges}]}]
        self.model_float16_groups, self.shard_fp32_from_float16_groups = [self.parameters], [self.masters]
        self.shard_float16_groups = [self.masters]
        self.model_fp32_groups, self.shard_fp32_groups = [], []
        self.param_groups = [{"lr": state.config.lr}]
        self.model = [self._modules(members)]

    def _modules(self, members):
        """The parameters by the trainer's names, with the attributes Megatron gives them."""
        root, mesh = nn.Module(), self.state.mesh
        for member in members:
            parameter, spec = member.parameter, member.spec
            split = [dimension for dimension, axis in spec.shards if axis is mesh.tp]
            parameter.tensor_model_parallel = bool(split)
            parameter.partition_dim, parameter.partition_stride = (split or [-1])[0], 1
            parameter.shared = spec.name == "embedding" and mesh.pp.size > 1 and mesh.pp.rank == mesh.pp.size - 1
            *path, leaf = spec.name.split(".")
            module = root
            for part in path:
                if not hasattr(module, part):
                    module.add_module(part, nn.Module())
                module = getattr(module, part)
            module.register_parameter(leaf, parameter)
        return root

    def zero_grad(self):
        """Begins a step."""
        self.gradients = None

    def backward(self):
        """Runs the passes of a step and leaves its gradients where Megatron does."""
        self.gradients = compute_gradients(self.state, watching=True)
        for bucket in self.state.optimizer.buckets:
            for member, inside, part in bucket.owned():
                member.parameter.main_grad = torch.zeros(member.parameter.numel())
                member.parameter.main_grad[part] = bucket.reduced[inside]

    def step(self):
        """Clips and updates."""
        factor = clip_factor(self.gradients.norm, self.state.config)
        reduced = (b.reduced[inside] for b in self.state.optimizer.buckets for _, inside, _ in b.owned())
        for master, gradient in zip(self.masters, reduced, strict=True):
            master.grad = gradient * factor
        self.step_with_ready_grads()
        for bucket in self.state.optimizer.buckets:
            bucket.finish_gather()
        return True, self.gradients.norm, None

    def step_with_ready_grads(self):
        """Updates."""
        finish_step(self.state, self.gradients)


def hooked(rank, world_size, settings, out, leave=False):
    """A run under the hooks, left as Megatron-LM leaves it at ``--exit-interval`` if asked to."""
    config = TrainerConfig(**settings)
    mesh = Mesh.build(config)
    optimizer = AsMegatron(make_state(config, mesh))
    axes = {"world": "world", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "etp": "etp", "edp": "edp"}
    axes |= {"dp": "replicas", "embedding": "ends"}
    groups = Groups(**{name: getattr(mesh, axis).group for name, axis in axes.items()})
    with suppress(SystemExit), recording(optimizer.model, optimizer, out, groups=groups):
        for _ in range(config.train_iters):
            optimizer.zero_grad()
            optimizer.backward()
            optimizer.step()
        if leave:
            raise SystemExit(0)
    mesh.close()


def own(rank, world_size, settings) -> Signals:
    """The same run with the trainer's recorder."""
    return train(TrainerConfig(**settings)).signals


@pytest.fixture(scope="module")
def pool():
    with RankPool(4) as ranks:
        yield ranks


@pytest.mark.parametrize("name", LAYOUTS)
def test_hooks_find_what_the_trainer_finds(pool, tmp_path, name):
    settings, ranks = LAYOUTS[name], TrainerConfig(**LAYOUTS[name]).world_size
    pool.run(hooked, settings, tmp_path / "signals.json", world_size=ranks)
    expected, found = pool.run(own, settings, world_size=ranks), read_signals(tmp_path / "signals.json")
    assert [step.step for step in found.steps] == [1, 2, 3]
    for one, other in zip(expected.steps, found.steps, strict=True):
        assert other.logged["grad norm"] == pytest.approx(one.logged["grad norm"], rel=1e-12)
        assert other.clip_factor == pytest.approx(one.clip_factor, rel=1e-6)
        assert (other.replicas, other.stale, other.skipped) == (one.replicas, one.stale, one.skipped)
        assert other.unchanged == one.unchanged
        for field in ("grad_norm", "update_norm", "weight_norm"):
            assert getattr(other, field) == pytest.approx(getattr(one, field), rel=1e-9)
        for parameter, signs in one.grad_sketch.items():
            assert other.grad_sketch[parameter] == pytest.approx(signs, abs=1e-9 * one.grad_norm[parameter])
        assert math.hypot(*other.grad_norm.values()) == pytest.approx(other.logged["grad norm"], rel=1e-6)


def test_a_run_that_exits_on_its_own_keeps_its_last_step(pool, tmp_path):
    for name, leave in (("returned", False), ("left", True)):
        pool.run(hooked, LAYOUTS["data parallel, sharded"], tmp_path / "runs" / name, leave, world_size=2)
    assert len(read_signals(tmp_path / "runs" / "left").steps) == SMALL["train_iters"]
    assert (tmp_path / "runs" / "left").read_text() == (tmp_path / "runs" / "returned").read_text()
