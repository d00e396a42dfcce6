"""Where a lever was tried, and how much that says of another place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec
    from simulator.models import ModelShape

SCALES: Mapping[str, float] = {"parameters": 6.0, "experts": 8.0, "n_gpus": 4.0, "nvlink_domain": 4.0, "seq_len": 4.0}
"""Doublings of a trait over which an observation loses all but 1/e of its say. Planning priors of this project."""

STEPS: Mapping[str, float] = {"build": 0.25, "dense": 1.0, "accelerator": 0.5, "versions": 0.1}
"""What another value of a trait adds to the distance: another model of the same size on the same machine still says
78 % (exp -0.25), a dense model says 37 % of that about a mixture of experts."""


@dataclass(frozen=True)
class Context:
    """Where a lesson was tried: what decides whether an observation speaks for another place.

    Attributes:
        model: key of the known model, else its build; observations of held-out models are never used.
        traits: what else is known, plain values: ``build``, ``dense``, ``experts``, ``parameters``, ``seq_len``,
            ``accelerator``, ``n_gpus``, ``nodes``, ``nvlink_domain``, ``versions``.
    """

    model: str
    traits: Mapping[str, Any] = field(default_factory=dict)


def context_of(recipe: Recipe, cluster: ClusterSpec) -> Context:
    """The context of every lever tried on ``recipe`` on ``cluster``.

    Raises:
        UserError: the recipe does not say what it trains.
    """
    from attune_lab.recipe.effective import effective
    from attune_lab.recipe.shape import shape_of
    from simulator.models import parameters

    shape, settings = shape_of(recipe), effective(recipe, cluster)
    build = build_of(shape)
    traits = {
        "build": build,
        "dense": shape.experts == 0,
        "experts": shape.experts,
        "parameters": parameters(shape).total,
        "seq_len": settings["seq_len"],
        "accelerator": cluster.accelerator.name,
        "n_gpus": cluster.n_gpus,
        "nodes": cluster.nodes,
        "nvlink_domain": settings["nvlink_domain"],
        "versions": " ".join(f"{name} {version}" for name, version in recipe.versions.items()),
    }
    return Context(build if shape.name == "custom" else shape.name, traits)


def build_of(shape: ModelShape) -> str:
    """What makes two recipes the same model whatever they are called, e.g. ``gqa h5120 a96x128 kv8 e160x1536``.

    Widths, heads and experts. Layers, vocabulary, context length and prediction layers are left out: a model cut to
    fewer layers, or with a padded vocabulary, is still that model.
    """
    mlp = f"e{shape.experts}x{shape.moe_ffn}" if shape.experts else f"f{shape.ffn}"
    heads = f"a{shape.heads}x{shape.head_dim} kv{shape.kv_heads}"
    if shape.attention == "mla":
        heads = f"a{shape.heads} q{shape.q_lora_rank} kv{shape.kv_lora_rank}"
    return f"{shape.attention} h{shape.hidden} {heads} {mlp}"


def likeness(here: Mapping[str, Any], there: Mapping[str, Any]) -> float:
    """How much what was seen ``there`` counts ``here``, between 0 and 1; 1 for equal traits, symmetric.

    A trait that only one side knows counts as another value.
    """
    apart = sum(step for name, step in STEPS.items() if here.get(name) != there.get(name))
    for name, scale in SCALES.items():
        one, other = here.get(name) or 0, there.get(name) or 0
        apart += abs(math.log2((1 + one) / (1 + other))) / scale
    return math.exp(-apart)
