"""Model shapes, their parameters and their FLOPs."""

from simulator.models.flops import flops_by_part, flops_per_token, layer_flops, mean_context
from simulator.models.parameters import Parameters, counts_by, parameters
from simulator.models.registry import Published, identify, model, models, published
from simulator.models.shape import LayerKinds, ModelShape, layer_kinds

__all__ = [
    "LayerKinds",
    "ModelShape",
    "Parameters",
    "Published",
    "counts_by",
    "flops_by_part",
    "flops_per_token",
    "identify",
    "layer_flops",
    "layer_kinds",
    "mean_context",
    "model",
    "models",
    "parameters",
    "published",
]
