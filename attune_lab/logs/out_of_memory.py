"""What an out-of-memory message of PyTorch says, and where in a step it was raised."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SIZE = r"(\d+(?:\.\d+)?) ?(bytes|KiB|MiB|GiB|TiB)"
_UNITS = {"bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_FIGURES = {
    "requested": (rf"Tried to allocate {_SIZE}",),
    "capacity": (rf"total capac(?:i)?ty of {_SIZE}", rf"{_SIZE} total capacity"),
    "free": (rf"of which {_SIZE} is free", rf"; {_SIZE} free"),
    "in_use": (rf"this process has {_SIZE} memory in use",),
    "allocated": (rf"allocated memory {_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated"),
    "private_pools": (rf"{_SIZE} allocated in private pools",),
    "unallocated": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "reserved": (rf"{_SIZE} reserved in total by PyTorch",),
}
_PATTERNS = {name: [re.compile(text, re.ASCII) for text in texts] for name, texts in _FIGURES.items()}

_FRAME = re.compile(r'File "[^"]{0,400}", line \d{1,9}, in (<?\w{1,100}>?)')
_GRAPHS = ("cuda_graph", "cudagraph", "CUDAGraph", "capture_begin", "torch.cuda.graph(")
_LOGITS = ("cross_entropy", "output_layer(", "lm_head", "compute_language_model_loss", "shift_logits", "logits.float()")
_BACKWARD = {"backward", "backward_step", "custom_backward", "_engine_run_backward", "run_backward"}
_FORWARD = {"forward", "forward_step"}
_OPTIMIZER = {"step", "optimizer_step", "step_with_ready_grads", "_take_model_step", "_init_group", "prepare_grads"}
_BUILD = {
    "setup_model_and_optimizer", "get_model", "get_megatron_optimizer", "model_provider", "build_model", "init_weights",
    "to_empty", "configure_model", "configure_optimizers", "from_pretrained", "__init__",
}  # fmt: skip
_GRAPH_SHARE = 0.25
"""Graph pools that hold less of what is allocated are not what filled the memory."""
_LOOSE_SHARE = 0.01
"""Less of the GPU than this lies unallocated in every pool, and is more than many a request."""


def figures(text: str) -> dict[str, float]:
    """Bytes by name as in `Failure.memory_bytes`; those that the message prints.

    **Source:** pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp, messages of releases 1.x, 2.0 to 2.4 (2.1 has
    "capacty") and later.
    """
    found = {}
    for name, patterns in _PATTERNS.items():
        for pattern in patterns:
            if match := pattern.search(text):
                found[name] = float(match[1]) * _UNITS[match[2]]
                break
    if "reserved" in found:  # releases 1.x
        found.setdefault("unallocated", max(found.pop("reserved") - found.get("allocated", 0.0), 0.0))
    return found


def place(traceback: Sequence[str], said: Mapping[str, float], steps: int) -> str:
    """The kind of an out-of-memory error of PyTorch's allocator.

    Args:
        traceback: the lines above the message.
        said: its figures.
        steps: steps printed before. After exactly one, the optimizer's states have just become resident: that is
            no matter of activations (marin-community/marin#7668).
    """
    text = "\n".join(traceback)
    pools = said.get("private_pools", 0.0)
    if any(sign in text for sign in _GRAPHS) or pools > _GRAPH_SHARE * said.get("allocated", float("inf")):
        return "oom_graph_pools"
    loose = said.get("unallocated", 0.0)
    if loose > said.get("requested", float("inf")) and loose > _LOOSE_SHARE * said.get("capacity", 0.0):
        return "oom_fragmentation"
    if any(sign in text for sign in _LOGITS):
        return "oom_last_stage"
    names = set(_FRAME.findall(text))
    phases = (
        (_BACKWARD, "oom_backward"),  # before forward: recomputation runs it within; both run in Lightning's step
        (_FORWARD, "oom_forward"),
        (_OPTIMIZER, "oom_optimizer_step"),
        (_BUILD, "oom_model"),
    )
    phase = next((kind for frames, kind in phases if names & frames), None)
    if steps == 1 and phase in (None, "oom_forward", "oom_backward"):
        return "oom_optimizer_step"
    return phase or ("oom_late" if steps else "oom_first_step")
