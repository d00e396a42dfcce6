"""Signals of a small model as a right trainer would record them, and ways to spoil them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from attune_lab.signals import SKETCHES, Signals, StepSignals

SETTINGS = {
    "tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 4, "mbs": 2, "gbs": 64, "seq_len": 32, "topk": 2, "num_experts": 4,
    "bf16": True, "fp8": False, "clip_grad": 1.0, "capacity_factor": None, "lr": 1e-3, "min_lr": 1e-4,
    "lr_decay_style": "cosine", "lr_decay_iters": 100, "lr_warmup_iters": 5,
}  # fmt: skip

SIZES = {
    "embedding": 400, "layers.0.input_norm": 16, "layers.0.attention.qkv": 300, "layers.0.router.weight": 64,
    "layers.0.experts.fc1": 500, "layers.1.mlp.fc1": 300, "final_norm": 16, "head": 400,
}  # fmt: skip

Gradients = Mapping[str, np.ndarray]


def weights(step: int = 0) -> Gradients:
    """Weights before a step."""
    rng = np.random.default_rng(7)
    return {name: rng.normal(0, 0.02, size) * (1 + 0.001 * step) for name, size in SIZES.items()}


def gradients(step: int) -> Gradients:
    """The true gradient of a step."""
    rng = np.random.default_rng(1000 + step)
    return {name: rng.normal(0, 0.03, size) for name, size in SIZES.items()}


def rounded(values: Gradients, seed: int, size: float = 2e-3) -> Gradients:
    """The same gradient with rounding of a relative size."""
    rng = np.random.default_rng(seed)
    return {name: v * (1 + rng.normal(0, size, v.size)) for name, v in values.items()}


def scaled(values: Gradients, factor: float, *names: str) -> Gradients:
    """The gradient with those parameters scaled whose name has one of the parts; all where none is given."""
    hit = {n for n in values if not names or any(part in n for part in names)}
    return {n: v * factor if n in hit else v for n, v in values.items()}


def sketch(name: str, values: np.ndarray) -> tuple[float, ...]:
    """Projections onto signs that depend on the name alone."""
    signs = np.random.default_rng(sum(map(ord, name))).choice([-1.0, 1.0], (SKETCHES, values.size))
    return tuple((signs @ values).tolist())


def record(step: int, values: Gradients, **changes: object) -> StepSignals:
    """A consistent record of a step with this gradient; ``changes`` overwrite fields."""
    norms = {name: float(np.linalg.norm(v)) for name, v in values.items()}
    total, loss, clip = math.hypot(*norms.values()), 6.2 - 0.05 * step, SETTINGS["clip_grad"]
    rate = SETTINGS["lr"] * step / 5 if step <= 5 else _cosine(step)
    fields: dict[str, object] = {
        "step": step, "loss": loss, "tokens": 2048, "sequences": 64,
        "samples": f"s{step}", "labels": f"l{step}", "positions": f"p{step}",
        "logged": {"lm loss": float(f"{loss:.6E}"), "grad norm": float(f"{total:.3f}"), "learning rate": rate},
        "grad_norm": norms, "grad_sketch": {name: sketch(name, v) for name, v in values.items()},
        "update_norm": {name: rate * math.sqrt(v.size) for name, v in values.items()},
        "weight_norm": {name: float(np.linalg.norm(w)) for name, w in weights(step).items()},
        "unchanged": dict.fromkeys(values, 0.0), "clip_factor": min(1.0, clip / (total + 1e-6)),
        "expert_load": {"layers.0": (1024, 1000, 1048, 1024)}, "aux_loss": {"load_balancing_loss": 0.0102},
    }  # fmt: skip
    return StepSignals(**{**fields, **changes})


def _cosine(step: int) -> float:
    low, high = SETTINGS["min_lr"], SETTINGS["lr"]
    return low + (high - low) * (1 + math.cos(math.pi * (step - 5) / 95)) / 2


def run(
    seed: int = 0,
    spoil: Callable[[Gradients], Gradients] = dict,
    *,
    settings: Mapping[str, object] | None = None,
    probes: Mapping[str, object] | None = None,
    **changes: object,
) -> Signals:
    """Three steps of a run whose gradients have the rounding of ``seed`` (none for 0) and are spoilt."""
    steps = []
    for step in (1, 2, 3):
        values = gradients(step) if seed == 0 else rounded(gradients(step), 10 * seed + step)
        steps.append(record(step, spoil(values), **changes))
    effective = {**SETTINGS, **(settings or {})}
    return Signals(producer="test", world_size=8, effective=effective, steps=tuple(steps), probes=probes or {})
