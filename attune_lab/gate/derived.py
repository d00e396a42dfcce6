"""What has to be equal between two runs whatever their settings are called: batch, tokens, schedule, weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attune_lab.gate.verdict import Check
from attune_lab.recipe.remembered import remembered

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe


def batch_and_schedule(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Check]:
    """A rejection for each quantity that differs; where a run does not tell enough, nothing.

    Args:
        before, after: effective settings by registry key, with ``dp`` and ``num_microbatches`` where known.
    """
    quantities = {
        "global_batch": (samples_per_step, "A step trains {new:g} sequences instead of {old:g}: restore gbs."),
        "tokens_per_step": (
            tokens_per_step,
            "A step trains {new:g} tokens instead of {old:g}: restore gbs and seq_len.",
        ),
        "lr_horizon": (
            lr_horizon,
            "The learning rate decays over {new:g} tokens instead of {old:g}: restore lr_decay_iters and the batch.",
        ),
        "lr_warmup": (
            lr_warmup,
            "The learning rate warms up over {new:g} tokens instead of {old:g}: restore lr_warmup_iters and the batch.",
        ),
    }
    for name, (quantity, sentence) in quantities.items():
        old, new = quantity(before), quantity(after)
        if old is not None and new is not None and old != new:
            yield Check(f"configuration.{name}", "reject", sentence.format(old=old, new=new))


def samples_per_step(values: Mapping[str, Any]) -> float | None:
    """Sequences of one optimizer step: of all micro-batches and ranks where they are known, else ``gbs``."""
    mbs, dp, passes = (values.get(name) for name in ("mbs", "dp", "num_microbatches"))
    if mbs and dp and passes:
        return float(mbs * dp * passes)
    return float(values["gbs"]) if values.get("gbs") else None


def tokens_per_step(values: Mapping[str, Any]) -> float | None:
    """Tokens of one optimizer step, padding counted."""
    samples, length = samples_per_step(values), values.get("seq_len")
    return samples * length if samples and length else None


def lr_horizon(values: Mapping[str, Any]) -> float | None:
    """Tokens over which the learning rate decays.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/training.py ``get_optimizer_param_scheduler``: given in
    samples, or in iterations of the global batch, which default to the length of the run.
    """
    return _in_tokens(values, values.get("lr_decay_samples"), values.get("lr_decay_iters")) or _in_tokens(
        values, values.get("train_samples"), values.get("train_iters")
    )


def lr_warmup(values: Mapping[str, Any]) -> float | None:
    """Tokens over which the learning rate warms up; see `lr_horizon`."""
    if values.get("lr_warmup_fraction"):
        horizon = lr_horizon(values)
        return None if horizon is None else values["lr_warmup_fraction"] * horizon
    return _in_tokens(values, values.get("lr_warmup_samples"), values.get("lr_warmup_iters"))


def _in_tokens(values: Mapping[str, Any], samples: float | None, iterations: float | None) -> float | None:
    """Tokens of so many samples, or of so many steps."""
    if samples:
        length = values.get("seq_len")
        return samples * length if length else None
    step = tokens_per_step(values)
    return iterations * step if iterations and step else None


def weights_trained(
    baseline: Recipe, candidate: Recipe, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Check]:
    """A rejection where the candidate's pipeline holds other layers, or other weights, than the baseline's."""
    held = layers_held(before), layers_held(after)
    for name, kind, old, new in zip(("layers", "mtp_layers"), ("layers", "MTP layers"), *held, strict=True):
        if new != old:
            reason = f"The pipeline trains {new} {kind} instead of {old}: choose a layout that keeps every layer."
            yield Check(f"configuration.{name}", "reject", reason)
    old, new = parameters_trained(baseline, *held[0]), parameters_trained(candidate, *held[1])
    if new != old:
        reason = f"The run trains {new:,} parameters instead of {old:,}: restore the model and keep every layer."
        yield Check("configuration.parameters", "reject", reason)


def layers_held(values: Mapping[str, Any]) -> tuple[int, int]:
    """Decoder layers and MTP layers that the pipeline holds."""
    from attune_lab.recipe.layouts import layout_count

    layout = values["pp_layout"]
    mtp = (values["mtp_num_layers"] or 0) if layout is None else layout_count(layout, "m")
    return sum(values["stage_layers"]), mtp


@remembered(last=32)
def parameters_trained(recipe: Recipe, layers: int, mtp_layers: int) -> int:
    """Weights that the optimizer updates in a pipeline of so many layers; rows that only pad the vocabulary apart."""
    from attune_lab.recipe.effective import shape_of
    from simulator.models import parameters

    if recipe.get("freeze_all_layers"):
        return 0
    counts = parameters(replace(shape_of(recipe), name="custom", layers=layers, mtp_layers=mtp_layers))
    return counts.total + counts.mtp
