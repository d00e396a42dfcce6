"""Why a run ended: the vocabulary, and how the first cause is told from what follows it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from attune_lab.foreign import one_line
from attune_lab.logs.contract import Failure
from attune_lab.logs.lines import Line
from attune_lab.logs.out_of_memory import figures, place

KINDS: Mapping[str, str] = {
    "oom_first_step": "GPU memory ran out before the first step ended, and nothing says where in it.",
    "oom_model": "GPU memory ran out while the model was built: parameters, gradients or optimizer states.",
    "oom_forward": "GPU memory ran out in a forward pass: activations.",
    "oom_backward": "GPU memory ran out in a backward pass: activations, gradients or recomputation.",
    "oom_optimizer_step": "GPU memory ran out in the optimizer's step, or right after the first one.",
    "oom_last_stage": "GPU memory ran out at the logits or their cross-entropy, on the last pipeline stage.",
    "oom_graph_pools": "GPU memory ran out with the private pools of CUDA graphs, or while one was captured.",
    "oom_fragmentation": "GPU memory ran out although more than was asked for lay reserved but unallocated.",
    "oom_late": "GPU memory ran out after steps that fitted, and nothing says where in a step.",
    "oom_cuda": "CUDA or one of its libraries found no memory outside PyTorch's pool.",
    "oom_nccl": "NCCL, NVSHMEM or DeepEP found no memory: PyTorch's pool holds what they need.",
    "oom_host": "The host's memory ran out and the kernel or Slurm killed a process.",
    "hang": "A collective or a dispatch never completed until a watchdog ended the run.",
    "nan": "The loss or a gradient is not a number.",
    "hardware": "A GPU reported a hardware error.",
    "node_failure": "A node of the job failed.",
    "network": "The connection between nodes failed.",
    "preempted": "The scheduler took the nodes away.",
    "time_limit": "The job reached its time limit.",
    "cancelled": "Somebody cancelled the job.",
    "launch_error": "The run stopped before its first step over its arguments, an assertion or an exception.",
    "backend_missing": "A library or a symbol in it is missing.",
    "data_error": "The data could not be read.",
    "crash": "A process crashed for a reason that is none of the others.",
}
"""Every end of a run that a log can tell, with one sentence for a person."""


class Weight(IntEnum):
    """How much a line proves. The first line counts, but a root replaces an echo: what broke a peer is often printed
    after the time-out or the broken connection that it caused."""

    ECHO = 0
    PLAIN = 1
    ROOT = 2


@dataclass(frozen=True)
class Sign:
    """A text that tells a kind: all ``needles`` are in the line, and ``pattern``, if any, is found in it."""

    kind: str
    weight: Weight
    needles: tuple[str, ...]
    pattern: re.Pattern[str] | None = None

    def shows(self, text: str) -> bool:
        """Whether the line has it."""
        return all(needle in text for needle in self.needles) and (not self.pattern or bool(self.pattern.search(text)))


def _signs(kind: str, weight: Weight, *needles: str | tuple[str, ...], pattern: str | None = None) -> tuple[Sign, ...]:
    compiled = re.compile(pattern, re.ASCII) if pattern else None
    return tuple(Sign(kind, weight, (n,) if isinstance(n, str) else n, compiled) for n in needles)


_FATAL_XIDS = "48|61|62|63|64|74|79|92|94|95|119|120|140"
"""Codes of NVIDIA's list that are the device's fault; 13, 31 and 43 are mostly the program's, 45 follows others."""

SIGNS = (
    *_signs("oom_host", Weight.ROOT, "oom_kill", "oom-kill", ": Out Of Memory", "OUT_OF_MEMORY"),
    *_signs("oom_host", Weight.ROOT, ("DataLoader worker", "killed by signal"), pattern=r"signal: (Killed|Bus error)"),
    *_signs("oom_host", Weight.ECHO, "Killed", pattern=r"^Killed\s*$|: line \d{1,9}: +\d{1,9} Killed\b|task \d+: Kill"),
    *_signs("oom_host", Weight.ECHO, "exit code 137", "exitcode", pattern=r"(exit code|exitcode\s*:) (137|-9)\b"),
    *_signs("oom_nccl", Weight.ROOT, ("Cuda failure", "out of memory"), "Failed to CUDA calloc"),
    *_signs("oom_nccl", Weight.ROOT, "out of memory", "failed to allocate", pattern=r"(?i)nccl|nvshmem|deep_?ep\b"),
    *_signs("oom_cuda", Weight.ROOT, "CUDA error: out of memory", "cudaErrorMemoryAllocation", "_STATUS_ALLOC_FAILED"),
    *_signs("oom_cuda", Weight.ROOT, "CUDA driver error: out of memory"),
    *_signs("nan", Weight.ROOT, "found NaN in", "found Inf in", "Unexpected result nan", "Unexpected result inf"),
    *_signs("nan", Weight.ROOT, "Current loss scale already at minimum"),
    *_signs("hardware", Weight.ROOT, "NVRM: Xid", pattern=rf"Xid \([^)]{{0,80}}\): (?:{_FATAL_XIDS})\b"),
    *_signs("hardware", Weight.ROOT, "ncorrectable ECC", "ECCUncorrectable", "fallen off the bus"),
    *_signs("hardware", Weight.ROOT, "ncorrectable NVLink", "NvlinkUncorrectable"),
    *_signs("node_failure", Weight.ROOT, "Node failure", "NODE FAIL", "NODE_FAIL"),
    *_signs("preempted", Weight.PLAIN, "DUE TO PREEMPTION", "DUE TO JOB REQUEUE", "=PREEMPTED"),
    *_signs("time_limit", Weight.PLAIN, "DUE TO TIME LIMIT", "=TIMEOUT"),
    *_signs("cancelled", Weight.ECHO, "CANCELLED AT", "got signal: 15", "received SIGTERM", "Received SIGTERM"),
    *_signs("hang", Weight.ECHO, "Watchdog caught collective operation timeout", ("DeepEP", "timeout")),
    *_signs("hang", Weight.ECHO, "Heartbeat monitor timed out"),
    *_signs("network", Weight.ECHO, "ncclRemoteError", "ncclSystemError", "IBV_WC_RETRY_EXC_ERR"),
    *_signs("network", Weight.ECHO, "remote process exited or there was a network error", "unhandled system error"),
    *_signs("network", Weight.ECHO, "Connection reset by peer", "Connection closed by peer", "socket has timed out"),
    *_signs("data_error", Weight.ROOT, ("Caught ", "in DataLoader worker process")),
    *_signs("data_error", Weight.ROOT, "FileNotFoundError", pattern=r"^FileNotFoundError.{0,400}(\.bin|\.idx|data)"),
    *_signs("backend_missing", Weight.ROOT, "ModuleNotFoundError", pattern=r"^ModuleNotFoundError"),
    *_signs("backend_missing", Weight.ROOT, "ImportError", pattern=r"^ImportError"),
    *_signs("backend_missing", Weight.ROOT, ("Error", "undefined symbol"), ("Error", "cannot open shared object")),
    *_signs("launch_error", Weight.ROOT, "error: unrecognized arguments", "error: argument "),
    *_signs("launch_error", Weight.ROOT, "error: the following arguments are required"),
    *_signs("crash", Weight.ECHO, "unhandled cuda error", "ncclUnhandledCudaError", "ChildFailedError"),
    *_signs("crash", Weight.PLAIN, "CUDA error:", "Segmentation fault", "Fatal Python error", "core dumped"),
    *_signs("crash", Weight.PLAIN, "Bus error", pattern=r"^Bus error"),
)
"""Looked for in this order.

**Source:** pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp,
torch/utils/data/dataloader.py; deepspeedai/DeepSpeed deepspeed/runtime/fp16/loss_scaler.py;
NVIDIA/Megatron-LM megatron/core/rerun_state_machine.py; deepseek-ai/DeepEP csrc/kernels; Slurm's messages;
stas00/ml-engineering compute/accelerator/nvidia/debug.md for Xid 63, 64 and 94.
"""

_TORCH = ("CUDA out of memory. Tried to allocate", "OutOfMemoryError: CUDA out of memory")
_FOLLOW_UP = "more than 1EB memory"  # how a failed collective ends: its sizes are garbage
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,100}(?:Error|Exception|Interrupt|Failure))\b", re.ASCII)
_OWN_FAULTS = {
    "AssertionError", "AttributeError", "FileNotFoundError", "IndexError", "KeyError", "NameError",
    "NotImplementedError", "TypeError", "UnboundLocalError", "ValueError", "ZeroDivisionError",
}  # fmt: skip
"""Exceptions that no failure of a peer raises."""
_MAX_FRAMES, _MAX_TRACEBACKS, _MAX_EVIDENCE = 200, 64, 300


class Finder:
    """Finds the first cause of a log's end among its lines, fed one by one."""

    def __init__(self) -> None:
        self._found: Failure | None = None
        self._weight = Weight.ECHO
        self._since = 0
        self._tracebacks: dict[int | None, tuple[int, list[str]]] = {}
        self.overcome: list[Failure] = []
        """Failures after which training went on; the first few."""

    @property
    def found(self) -> Failure | None:
        """The cause, as far as read."""
        return self._found

    def stepped(self) -> None:
        """A new step was printed. One may still have been on its way when a rank failed; two mean that it goes on."""
        self._since += self._found is not None
        if self._found is not None and self._since > 1:
            if len(self.overcome) < 10:
                self.overcome.append(self._found)
            self._found = None

    def look(self, line: Line, steps: int, signs: Sequence[Sign]) -> None:
        """Look at a line that prints no step.

        Args:
            line: the line.
            steps: number of the last step printed.
            signs: those that the line may have.
        """
        above, text = self._traceback(line)
        if _FOLLOW_UP in text:
            return
        if any(sign in text for sign in _TORCH):
            said = figures(text)
            failure = evidence(place(above, said, steps), line)
            self._note(replace(failure, memory_bytes=said), Weight.ROOT)
            return
        for sign in signs:
            if sign.needles[0] in text and sign.shows(text):
                self._note(evidence(sign.kind, line), sign.weight)
                return
        if above and (match := _EXCEPTION.match(text)):
            if match[1] == "KeyboardInterrupt":
                self._note(evidence("cancelled", line), Weight.ECHO)
                return
            weight = Weight.ROOT if match[1] in _OWN_FAULTS else Weight.PLAIN
            self._note(evidence("crash" if steps else "launch_error", line), weight)

    def _note(self, failure: Failure, weight: Weight) -> None:
        """Keep the failure if it is the first, or tells what an echo was of."""
        found = self._found
        why = found is not None and found.kind == "cancelled" and failure.kind in ("preempted", "time_limit")
        if found is None or why or (self._weight == Weight.ECHO and weight == Weight.ROOT):
            self._found, self._weight, self._since = failure, weight, 0

    def _traceback(self, line: Line) -> tuple[list[str], str]:
        """The lines of the traceback that this line ends, empty where it ends none; and the line as it stands there.

        A logger may put something of the same length before each line, a time stamp for example.
        """
        text, rank = line.text, line.rank
        column = text.find(_TRACEBACK)
        if column >= 0:
            if rank in self._tracebacks or len(self._tracebacks) < _MAX_TRACEBACKS:
                self._tracebacks[rank] = (column, [])
            return [], text
        if rank not in self._tracebacks:
            return [], text
        column, frames = self._tracebacks[rank]
        inner = text[column:]
        if text.startswith("  ") or inner.startswith("  "):
            if len(frames) == _MAX_FRAMES:
                del frames[0]
            frames.append(inner[:_MAX_EVIDENCE])
            return [], text
        if not text.strip():
            return [], text
        del self._tracebacks[rank]
        return frames, inner if _EXCEPTION.match(inner) else text


def signs_in(text: str) -> list[Sign]:
    """The signs that lines of a text may have."""
    return [sign for sign in SIGNS if sign.needles[0] in text]


def evidence(kind: str, line: Line) -> Failure:
    """A failure of this kind, shown by this line."""
    shown = one_line(line.text, _MAX_EVIDENCE)
    return Failure(kind, "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown), line.number)
