"""What ran out of memory: from the line that says so, the step it happened in, and what the stage should hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attune_lab.contracts import Estimate
from attune_lab.diagnosis.signs import Symptom

GIB = 2.0**30
_UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": GIB, "TiB": 2.0**40}

LIKELY, POSSIBLE = 1.0, 0.5
"""At stake where the evidence names the kind, and where it only leaves it open: without memory there is no step."""

POOLED = 0.2
"""Share of the memory from which private pools of CUDA graphs are a cause of their own: the largest single part that
recomputation can free, one kind of activation, is of that order (NVIDIA/TransformerEngine#2543)."""

LATE = 2
"""Good steps after which memory has grown: weights, gradients and moments are all there after the first."""

WORTH_A_WORD = 0.25
"""Share of a stage's need from which a part that is not the largest is still worth naming."""

_WORDS: Sequence[tuple[str, str]] = (
    ("oom_host", r"oom_kill|oom-kill|killed by signal: Killed|^\s*Killed\s*$|exit(?:ed with)? code:? 137|"
                 r"(?:signal 9|SIGKILL)|task \d+: Out Of Memory|\bOUT_OF_MEMORY\b"),
    ("oom_nccl", r"NCCL WARN.*out of memory|Failed to CUDA calloc|ncclUnhandledCudaError|DeepEP.*out of memory"),
    ("oom_graph_pools", r"(?:during|while|in)\s+(?:graph\s+)?captur|capture_begin|make_graphed_callables"),
    ("oom_optimizer_step", r"optimizer\.step|_init_group|exp_avg|multi_tensor_adam|initialize_state"),
    ("oom_last_stage", r"cross_entropy|logits|vocab_parallel|output_layer"),
    ("oom_backward", r"\bbackward\b|run_backward"),
    ("oom_forward", r"\bforward\b"),
    ("oom_first_step", r"get_model|model_provider|build_model|_ParamAndGradBuffer|param_and_grad_buffer"),
)  # fmt: skip
"""What a line or its traceback says of the place, the most telling first."""

_SAYS = {
    "oom_host": "the host's memory is exhausted, not an accelerator's",
    "oom_nccl": "the communication library finds no memory outside the allocator's pool",
    "oom_graph_pools": "memory ends while graphs are captured",
    "oom_optimizer_step": "memory ends in the optimizer step",
    "oom_last_stage": "memory ends at the logits",
    "oom_backward": "memory ends in the backward pass",
    "oom_forward": "memory ends in the forward pass",
    "oom_first_step": "memory ends while the model is built",
}


def out_of_memory(
    lines: Sequence[str], steps_done: int, settings: Mapping[str, Any], estimate: Estimate | None = None
) -> Iterator[Symptom]:
    """The kinds of exhaustion that the evidence names, the likeliest first.

    What a line says comes before the step it happened in, and both before what the cost model expects to be large.

    Args:
        lines: the line that ended the run and any around it.
        steps_done: optimizer steps that were finished.
        settings: the effective settings of the recipe that ran.
        estimate: the cost model's, for what a stage should hold.
    """
    found = [*_named(lines), *_numbered(lines), *_dated(steps_done)] or list(_weighed(lines, settings, estimate))
    seen: set[str] = set()
    for symptom in found or _unknown():
        if symptom.name not in seen:
            seen.add(symptom.name)
            yield symptom


def _named(lines: Sequence[str]) -> Iterator[Symptom]:
    """What the words of a line say; only the first kind of the table that any line names."""
    for name, pattern in _WORDS:
        line = next((line for line in lines if re.search(pattern, line, re.MULTILINE)), None)
        if line is not None:
            yield Symptom(name, f'{_SAYS[name]}: "{_short(line)}"', LIKELY)
            return


def _numbered(lines: Sequence[str]) -> Iterator[Symptom]:
    """What the figures of PyTorch's own message say: pools of graphs, and memory that is reserved but not in use."""
    text = "\n".join(lines)
    capacity, asked = _bytes(text, r"total capacity of {x}"), _bytes(text, r"Tried to allocate {x}")
    pooled = _bytes(text, r"{x} allocated in private pools")
    idle = _bytes(text, r"{x} is reserved by PyTorch but unallocated")
    if pooled and capacity and pooled > POOLED * capacity:
        yield Symptom("oom_graph_pools", f"private pools of graphs hold {pooled / GIB:.1f} GiB", LIKELY)
    if idle and asked and idle > asked:
        why = f"{idle / GIB:.1f} GiB are reserved but unallocated where {asked / GIB:.1f} GiB were asked for"
        yield Symptom("fragmentation", why, LIKELY)


def _bytes(text: str, pattern: str) -> float | None:
    found = re.search(pattern.replace("{x}", r"([\d.]{1,20}) ([KMGT]iB)"), text)
    try:
        return float(found[1]) * _UNITS[found[2]] if found else None
    except ValueError:
        return None


def _dated(steps_done: int) -> Iterator[Symptom]:
    """What the step says. Moments are allocated in the first optimizer step: what ends the second step is they.

    **Source:** marin-community/marin#7668; torch.optim and Transformer Engine allocate state lazily.
    """
    if steps_done == 1:
        why = "memory ends right after the first optimizer step, which makes the optimizer's state resident"
        yield Symptom("oom_optimizer_step", why, LIKELY)
    elif steps_done >= LATE:
        yield Symptom("oom_late", f"memory ends after {steps_done} good steps", LIKELY)


def _weighed(lines: Sequence[str], settings: Mapping[str, Any], estimate: Estimate | None) -> Iterator[Symptom]:
    """What the largest part of the stage's memory says, by the cost model and by the size of the logits."""
    held = dict(estimate.memory_parts_bytes) if estimate is not None else {}
    stage = stage_of(lines)
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
    states = sum(held.get(name, 0.0) for name in ("weights", "gradients", "optimizer"))
    rest = sum(held.values()) - states
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


def stage_of(lines: Sequence[str]) -> int | None:
    """The pipeline stage that a line names, None without one."""
    found = next((m for line in lines if (m := re.search(r"pipeline stage (\d{1,4})\b", line))), None)
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


def _short(line: str) -> str:
    """A readable piece of a line: printable, at most 120 characters."""
    clean = "".join(c if c.isprintable() else " " for c in line).strip()
    return clean if len(clean) <= 120 else clean[:117] + "..."
