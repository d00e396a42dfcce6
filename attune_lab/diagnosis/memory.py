"""What ran out of memory: from the line that says so, the step it happened in, and what the stage should hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attune_lab.contracts import Estimate
from attune_lab.diagnosis.signs import Symptom
from attune_lab.logs import KINDS, Failure

GIB = 2.0**30

LIKELY, POSSIBLE = 1.0, 0.5
"""At stake where the evidence names the kind, and where it only leaves it open: without memory there is no step."""

LATE = 2
"""Good steps after which memory has grown: weights, gradients and moments are all there after the first."""

WORTH_A_WORD = 0.25
"""Share of a stage's need from which a part that is not the largest is still worth naming."""

NAMED: Mapping[str, str] = {
    "oom_host": "oom_host",
    "oom_nccl": "oom_nccl",
    "oom_cuda": "oom_nccl",
    "oom_graph_pools": "oom_graph_pools",
    "oom_fragmentation": "fragmentation",
    "oom_optimizer_step": "oom_optimizer_step",
    "oom_last_stage": "oom_last_stage",
    "oom_backward": "oom_backward",
    "oom_forward": "oom_forward",
    "oom_model": "oom_first_step",
}
"""Kinds of `attune_lab.logs.KINDS` that say what ran out, and their symptoms. The others say only when."""

STATES = ("weights", "gradients", "optimizer")
"""Parts of the memory that are there whatever the batch."""

IN_PASSES = frozenset({"oom_forward", "oom_backward"})
"""What the line after the first step says of the place, where the optimizer's state is the cause."""


def out_of_memory(
    failure: Failure | None, steps_done: int, settings: Mapping[str, Any], estimate: Estimate | None = None
) -> Iterator[Symptom]:
    """The kinds of exhaustion that the evidence names, the likeliest first.

    What a line says comes before the step it happened in, and both before what the cost model expects to be large.

    Args:
        failure: the line that ended the run, as read.
        steps_done: optimizer steps that were finished.
        settings: the effective settings of the recipe that ran.
        estimate: the cost model's, for what a stage should hold.
    """
    dated, named = list(_dated(steps_done)), list(_named(failure))
    if steps_done == 1 and any(symptom.name in IN_PASSES for symptom in named):
        named = []
    yield from [*named, *dated] or list(_weighed(failure, settings, estimate)) or _unknown()


def _named(failure: Failure | None) -> Iterator[Symptom]:
    if failure is not None and failure.kind in NAMED:
        sentence = KINDS[failure.kind].rstrip(".")
        yield Symptom(NAMED[failure.kind], f'{sentence}: "{short(failure.evidence)}"', LIKELY)


def _dated(steps_done: int) -> Iterator[Symptom]:
    """What the step says. Moments are allocated in the first optimizer step: what ends the second step is they.

    **Source:** marin-community/marin#7668; torch.optim and Transformer Engine allocate state lazily.
    """
    if steps_done == 1:
        why = "memory ends right after the first optimizer step, which makes the optimizer's state resident"
        yield Symptom("oom_optimizer_step", why, LIKELY)
    elif steps_done >= LATE:
        yield Symptom("oom_late", f"memory ends after {steps_done} good steps", LIKELY)


def _weighed(failure: Failure | None, settings: Mapping[str, Any], estimate: Estimate | None) -> Iterator[Symptom]:
    """What the largest part of the stage's memory says, by the cost model and by the size of the logits."""
    held = dict(estimate.memory_parts_bytes) if estimate is not None else {}
    stage = stage_of(failure.evidence) if failure else None
    if stage is None and estimate is not None and estimate.stage_memory_bytes:
        stage = estimate.stage_memory_bytes.index(max(estimate.stage_memory_bytes))
    parts = kinds_of(held, settings, stage)
    need = sum(parts.values())
    if not need > 0:
        return
    where = "the fullest stage" if stage is None else f"stage {stage}"
    for rank, (name, size) in enumerate(sorted(parts.items(), key=lambda part: -part[1])):
        if rank == 0 or size > WORTH_A_WORD * need:
            why = f"{_PARTS[name]} are {size / need:.0%} of what {where} should hold ({size / GIB:.1f} GiB)"
            yield Symptom(name, f"{why}, by the cost model", LIKELY if rank == 0 else POSSIBLE)
            if name == "oom_forward":
                yield Symptom("oom_backward", f"{why}, by the cost model", POSSIBLE)


_PARTS = {
    "oom_first_step": "weights, gradients and optimizer state",
    "oom_forward": "activations",
    "oom_last_stage": "logits",
}


def kinds_of(held: Mapping[str, float], settings: Mapping[str, Any], stage: int | None) -> dict[str, float]:
    """Bytes by kind of exhaustion of a stage that holds ``held`` (keys of `Estimate.memory_parts_bytes`).

    Logits are counted from the settings, where the stage is the last one, and taken out of what is temporary.
    """
    held = {name: size for name, size in held.items() if math.isfinite(size) and size > 0}
    if not held:
        return {}
    states = sum(size for name, size in held.items() if name in STATES)
    rest = sum(size for name, size in held.items() if name not in STATES)
    last = stage is not None and stage == (settings.get("pp") or 1) - 1
    logits = min(logit_bytes(settings), held.get("temporary", 0.0)) if last else 0.0
    return {"oom_first_step": states, "oom_forward": rest - logits, "oom_last_stage": logits}


def logit_bytes(settings: Mapping[str, Any]) -> float:
    """Bytes of the logits of one micro-batch on a rank of the last stage; 0 where the settings do not tell.

    BF16, an FP32 copy and the FP32 softmax; fused, BF16 and its gradient. **Source:** counted in
    NVIDIA/Megatron-LM@d98e8a64 megatron/core/tensor_parallel/cross_entropy.py.
    """
    try:
        tokens = float(settings["mbs"]) * settings["seq_len"] / settings["cp"]
        width = 4.0 if settings.get("cross_entropy_fusion") else 10.0
        return float(width * tokens * settings["vocab_padded"] / settings["tp"])
    except (KeyError, TypeError, ZeroDivisionError):
        return 0.0


def stage_of(line: str) -> int | None:
    """The pipeline stage that a line names, None without one."""
    found = re.search(r"pipeline stage (\d{1,4})\b", line)
    return int(found[1]) if found else None


def single_rank(memory_bytes: Mapping[int, float], settings: Mapping[str, Any]) -> Iterator[Symptom]:
    """One rank far above the others, where all hold the same part of the model (no pipeline).

    A tenth above the median: routing moves the peak by several per cent, not more, unless one rank gets the tokens.
    """
    peaks = {rank: peak for rank, peak in memory_bytes.items() if math.isfinite(peak) and peak > 0}
    if len(peaks) < 3 or (settings.get("pp") or 1) > 1:
        return
    fullest = max(peaks, key=lambda rank: peaks[rank])
    middle = sorted(peaks.values())[len(peaks) // 2]
    if peaks[fullest] > 1.1 * middle:
        why = f"rank {fullest} holds {peaks[fullest] / GIB:.1f} GiB where the median rank holds {middle / GIB:.1f} GiB"
        yield Symptom("oom_single_rank", why, LIKELY)


def _unknown() -> list[Symptom]:
    names = ("oom_first_step", "oom_forward", "oom_backward", "oom_optimizer_step")
    return [Symptom(name, "the run is out of memory, and nothing says in what", POSSIBLE) for name in names]


def short(line: str) -> str:
    """A readable piece of a line: printable, at most 120 characters."""
    clean = "".join(c if c.isprintable() else " " for c in line).strip()
    return clean if len(clean) <= 120 else clean[:117] + "..."
