"""Parameters: their full shapes, which part a rank holds, and the weights every layout starts from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn

from attune_lab.contracts import UserError
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.mesh import Axis, Mesh


@dataclass(frozen=True)
class Spec:
    """How one parameter is laid out.

    Attributes:
        name: the same in every layout, e.g. ``layers.3.experts.gate``.
        shape: of the full parameter.
        shards: (dimension, axis) along which ranks hold parts.
        std: of the normal distribution it starts from; None starts from ``fill``.
        fill: constant it starts from.
        expert: its replicas are the ``edp`` axis, not dp x cp.
        summed_over_tp: its gradient is a part on every tensor-parallel rank, since each sees some tokens or heads.
        decays: weight decay applies.
    """

    name: str
    shape: tuple[int, ...]
    shards: tuple[tuple[int, Axis], ...] = ()
    std: float | None = None
    fill: float = 0.0
    expert: bool = False
    summed_over_tp: bool = False
    decays: bool = True

    def local(self, full: Tensor) -> Tensor:
        """This rank's part of a tensor of the full shape."""
        for dimension, axis in self.shards:
            full = full.chunk(axis.size, dimension)[axis.rank]
        return full

    def index(self) -> Tensor:
        """Flat positions of this rank's elements in the full parameter, int64."""
        full = torch.arange(torch.Size(self.shape).numel()).view(self.shape)
        return self.local(full).flatten()


@dataclass
class Builder:
    """Makes the parameters of one rank's layers.

    Attributes:
        weights: full tensors by parameter name to start from; without any they are drawn from the seed.
    """

    config: TrainerConfig
    mesh: Mesh
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    def parameter(self, spec: Spec) -> nn.Parameter:
        """The rank's part of a parameter, in the dtype of computation.

        Raises:
            UserError: the weights to start from are of another model.
        """
        full = self.weights.get(spec.name) if self.weights else initial(spec, self.config.seed)
        if full is None or full.shape != spec.shape:
            shape = "lacks" if full is None else f"has the shape {tuple(full.shape)} of"
            raise UserError(f"the checkpoint {shape} {spec.name} {spec.shape}: start from one of the same model.")
        dtype = torch.bfloat16 if self.config.bf16 else torch.float32
        parameter = nn.Parameter(spec.local(full).to(torch.get_default_device(), dtype).contiguous())
        parameter.spec = spec  # type: ignore[attr-defined]
        return parameter

    def matrix(self, name: str, rows: int, columns: int, shards: tuple[tuple[int, Axis], ...] = ()) -> nn.Parameter:
        """A weight matrix [rows, columns]; the one that ends a residual branch starts smaller."""
        ends_branch = name.endswith((".output", ".down"))
        std = self.config.init_method_std / ((2 * self.config.num_layers) ** 0.5 if ends_branch else 1.0)
        return self.parameter(Spec(name, (rows, columns), shards, std=std))

    def norm(self, name: str, size: int, *, summed_over_tp: bool | None = None) -> nn.Parameter:
        """The scale of a norm; it sees a part of the tokens under sequence parallelism."""
        summed = self.config.sequence_parallel if summed_over_tp is None else summed_over_tp
        return self.parameter(Spec(name, (size,), fill=1.0, summed_over_tp=summed, decays=False))

    def bias(self, name: str, size: int, shards: tuple[tuple[int, Axis], ...] = ()) -> nn.Parameter:
        """A bias; a replicated one is added to the tokens this rank holds."""
        summed = self.config.sequence_parallel and not shards
        return self.parameter(Spec(name, (size,), shards, summed_over_tp=summed, decays=False))


def spec_of(parameter: Tensor) -> Spec:
    """The spec of a parameter made by a `Builder`."""
    spec: Spec = parameter.spec  # type: ignore[attr-defined]
    return spec


@injection_point
def initial(spec: Spec, seed: int) -> Tensor:
    """The full parameter a run starts from: a function of its name and the seed, not of the layout."""
    return _drawn(spec.name, spec.shape, spec.std, spec.fill, seed)


@lru_cache(maxsize=512)
def _drawn(name: str, shape: tuple[int, ...], std: float | None, fill: float, seed: int) -> Tensor:
    if std is None:
        return torch.full(shape, fill, device="cpu")
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(shape, generator=generator, device="cpu") * std


@injection_point
def in_forward(parameter: Tensor) -> Tensor:
    """The values of a parameter that the forward pass computes with."""
    return parameter
