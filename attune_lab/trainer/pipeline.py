"""One step's forward and backward passes on one pipeline stage, in the order of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from attune_lab.trainer.context import Context
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.model import Chunk, Losses
from simulator.events.orders import Kind, Task, order
from simulator.job import Schedule

_SCHEDULES = {"1f1b": Schedule.ONE_F_ONE_B, "gpipe": Schedule.GPIPE}


@dataclass
class Pipeline:
    """The chunks of one stage and the stages around it."""

    chunks: Sequence[Chunk]
    axis: Axis
    schedule: str
    _sent: list[tuple[dist.Work, Tensor]] = field(default_factory=list)

    def run(self, contexts: Sequence[Context], totals: tuple[float, float]) -> list[Losses]:
        """Runs all micro-batches forward and backward; the losses by micro-batch on the last stage, else none.

        Args:
            contexts: of the micro-batches, in order.
            totals: unmasked tokens of the global batch, for the language model and for MTP.
        """
        losses: dict[int, Losses] = {}
        kept: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}
        groups = order(_SCHEDULES[self.schedule], self.axis.rank, self.axis.size, len(self.chunks), len(contexts))
        for task in (task for group in groups for task in group):
            key, context = (task.chunk, task.microbatch), contexts[task.microbatch]
            if task.kind == Kind.FORWARD:
                x = self._receive_input(task, context)
                out = self.chunks[task.chunk](x, context, totals)
                if isinstance(out, Losses):
                    losses[task.microbatch] = out
                    kept[key] = x, out.objective
                else:
                    kept[key] = x, out
                    self._send(out.detach(), self._position(task) + 1, task)
            else:
                self._backward(*kept.pop(key), task)
        self._flush()
        return [losses[i] for i in sorted(losses)]

    def losses(self, contexts: Sequence[Context], totals: tuple[float, float]) -> list[Losses]:
        """Runs all micro-batches forward only; arguments and result as in `run`."""
        found = []
        with torch.no_grad():
            for microbatch, context in enumerate(contexts):
                for chunk in range(len(self.chunks)):
                    task = Task(Kind.FORWARD, chunk, microbatch)
                    out = self.chunks[chunk](self._receive_input(task, context), context, totals)
                    if isinstance(out, Losses):
                        found.append(out)
                    else:
                        self._send(out, self._position(task) + 1, task)
        self._flush()
        return found

    def _flush(self) -> None:
        """Waits until everything sent has left."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _backward(self, x: Tensor | None, out: Tensor, task: Task) -> None:
        """Backward pass of one task; sends the gradient of its input to the stage before."""
        grad = None
        if out.dim():  # hidden states, not the objective
            grad = self._receive(torch.empty_like(out), self._position(task) + 1, task)
        backward(out, grad)
        if x is not None:
            assert x.grad is not None
            self._send(x.grad, self._position(task) - 1, task)

    def _position(self, task: Task) -> int:
        """How many chunks a micro-batch has crossed before this task's."""
        return task.chunk * self.axis.size + self.axis.rank

    def _receive_input(self, task: Task, context: Context) -> Tensor | None:
        position = self._position(task)
        if position == 0:
            return None
        dtype = torch.bfloat16 if context.config.bf16 else torch.float32
        x = self._receive(torch.empty(context.shape, dtype=dtype), position - 1, task)
        return stage_input(x, context).requires_grad_()

    def _send(self, x: Tensor, position: int, task: Task) -> None:
        to = self.axis.ranks[position % self.axis.size]
        x = x.contiguous().cpu()  # tags, by which messages find their task, are gloo's
        work = dist.isend(x, to, tag=_tag(task, max(position, self._position(task))))
        assert work is not None
        self._sent.append((work, x))

    def _receive(self, x: Tensor, position: int, task: Task) -> Tensor:
        came = torch.empty_like(x, device="cpu")
        dist.recv(came, self.axis.ranks[position % self.axis.size], tag=_tag(task, max(position, self._position(task))))
        return came.to(x.device)


def _tag(task: Task, border: int) -> int:
    """Names a message by its micro-batch, the border between chunks it crosses, and the direction."""
    return (task.microbatch * 64 + border) * 2 + (task.kind == Kind.BACKWARD)


@injection_point
def stage_input(x: Tensor, context: Context) -> Tensor:
    """Hidden states as they came from the stage before."""
    return x


@injection_point
def backward(out: Tensor, grad: Tensor | None) -> None:
    """Backpropagates from a chunk's output."""
    torch.autograd.backward(out, grad)
