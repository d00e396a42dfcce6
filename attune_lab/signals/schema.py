"""What a run tells the gate besides its loss: one record per observed step, one per probe, and the settings in force.

Producers are the trainer and the Megatron hooks (`attune_lab.signals.megatron`); the reader is the gate. Everything
is independent of the layout: gradients are summed over the shards that own them, samples are hashed without order.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FILE_NAME = "signals.json"
SKETCHES = 16
"""Random projections kept of each parameter's gradient."""

PLACED_MASKS = "dropout_masks_by_place"
"""Among the settings in force: dropout masks follow from places in the global batch, whatever the layout."""

GROUPS = ("embedding", "head", "norm", "attention", "router", "experts", "shared_experts", "mlp", "mtp")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class StepSignals(_Record):
    """One optimizer step as seen from the tensors. Maps named by parameter use the names of `group_of`."""

    step: int
    loss: float = Field(description="sum of the losses of all unmasked tokens / their number, in float64")
    tokens: int = Field(description="unmasked label tokens of the global batch")
    sequences: int = Field(description="sequences of the global batch")
    samples: str = Field(default="", description="hash of the multiset of input sequences, in hex")
    labels: str = Field(default="", description="hash of the multiset of (inputs, labels, loss mask)")
    positions: str = Field(default="", description="hash of the multiset of (inputs, position ids, document ids)")
    logged: Mapping[str, float] = Field(default={}, description="what the run itself printed, by the log's names")
    grad_norm: Mapping[str, float] = Field(default={}, description="by parameter, before clipping")
    grad_sketch: Mapping[str, tuple[float, ...]] = Field(default={}, description="`SKETCHES` projections each")
    update_norm: Mapping[str, float] = Field(default={}, description="norm of the change of the float32 weights")
    weight_norm: Mapping[str, float] = Field(default={}, description="before the update")
    unchanged: Mapping[str, float] = Field(default={}, description="share of the weights the update left as they were")
    clip_factor: float | None = Field(default=None, description="gradient given to the optimizer / gradient reduced")
    replicas: tuple[str, ...] = Field(default=(), description="'GROUP: parameter' where copies differ after the step")
    stale: tuple[str, ...] = Field(
        default=(), description="parameters whose value in the forward is not the stored one"
    )
    expert_load: Mapping[str, tuple[int, ...]] = Field(default={}, description="tokens per expert, by layer")
    dropped: int = Field(default=0, description="token-expert pairs routed and not computed")
    aux_loss: Mapping[str, float] = Field(default={}, description="auxiliary losses recomputed, by the log's names")
    skipped: bool = Field(default=False, description="the optimizer left the weights as they were")


class Probe(_Record):
    """One probe: a step under conditions chosen to show a fault, or figures that must be zero."""

    cost_steps: float = Field(description="in forward-backward steps of the run; 0 when it shares the run's own steps")
    step: StepSignals | None = None
    figures: Mapping[str, float] = {}


class Signals(_Record):
    """All a run recorded."""

    producer: str
    stack: Mapping[str, str] = Field(default={}, description="library versions")
    world_size: int
    effective: Mapping[str, Any] = Field(default={}, description="settings in force, read from the live objects")
    steps: tuple[StepSignals, ...] = ()
    probes: Mapping[str, Probe] = {}

    def at(self, step: int) -> StepSignals | None:
        """The record of a step, None where there is none."""
        return next((s for s in self.steps if s.step == step), None)

    def write(self, path: Path) -> None:
        """Writes what `read_signals` reads."""
        path.write_text(self.model_dump_json(), encoding="utf-8")


def read_signals(path: Path) -> Signals:
    """The signals in a file.

    Raises:
        UserError: no signals there.
    """
    from attune_lab.contracts import UserError
    from attune_lab.recipe.text_files import read_bytes

    try:
        return Signals.model_validate_json(read_bytes(path, "signals file", 512_000_000))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path}: is no signals file ({where}: {first['msg']}); write it with the hooks.") from error


def group_of(name: str) -> str:
    """The group of `GROUPS` a parameter belongs to, from its name.

    Names are those of the trainer: ``embedding``, ``head``, ``final_norm``, ``layers.N.PART`` and ``mtp.PART``, where
    PART is ``input_norm``, ``attention.*``, ``pre_mlp_norm``, ``mlp.*``, ``router.*``, ``experts.*``
    or ``shared_experts.*``.
    """
    parts = name.split(".")
    if parts[0] == "mtp":
        return "mtp"
    if any(part.endswith("norm") for part in parts):
        return "norm"
    for group in ("embedding", "head", "attention", "router", "shared_experts", "experts"):
        if group in parts:
            return group
    return "mlp"
