"""Small learnt campaigns, as `attune lessons learn` would make them."""

from __future__ import annotations

import hashlib
from typing import Any

from attune_lab.lessons.records import LearntCampaign, Observation, Traits

TRAITS = Traits(
    build="gqa h4096 a32x128 kv8 e64x1024",
    dense=False,
    experts=64,
    parameters=30_000_000_000,
    seq_len=4096,
    accelerator="H100-SXM5-80GB",
    n_gpus=64,
    nodes=8,
    nvlink_domain=8,
    versions="",
)
ZEROS = "0" * 64


def seen(
    edits: dict[str, Any],
    surprise: float | None = 0.0,
    *,
    lesson: str | None = "L",
    outcome: str = "",
    se: float = 0.01,
) -> Observation:
    """A try of ``edits`` (parameter -> new value) whose gain was ``surprise`` where none was expected."""
    figures: dict[str, Any] = {"outcome": outcome}
    if not outcome:
        figures = {"measured": surprise, "se": se, "outcome": "gain" if surprise > 0.02 else "no-gain"}
    return Observation(
        label="003-search",
        lesson=lesson,
        edits={key: (None, value) for key, value in edits.items()},
        base=ZEROS,
        recipe=ZEROS,
        expected=0.0,
        **figures,
    )


def learnt(
    *observations: Observation, place: int = 0, model: str = "custom-moe", tag: str = "", **traits: Any
) -> LearntCampaign:
    """A campaign of these observations in world ``place``; ``traits`` differ from `TRAITS`."""
    changed = TRAITS.model_copy(update=traits)
    text = f"{tag} {place} {model} {changed} {observations}"
    return LearntCampaign(
        digest=hashlib.sha256(text.encode()).hexdigest(),
        name=f"{model} seed {place} {tag}".strip(),
        model=model,
        traits=changed,
        place=f"{changed.build} seed {place}",
        tuner="attune",
        seed=place,
        provenance="simulated",
        version="0",
        cost_model="0",
        observations=observations,
    )
