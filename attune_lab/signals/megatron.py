"""Signals from a real run of Megatron-LM, Megatron-Bridge or any trainer on Megatron-Core: what the gate reads.

In a pretraining script of Megatron-LM, one import and one line around the call that trains::

    from attune_lab.signals.megatron import recorded_training

    with recorded_training("signals.json"):
        pretrain(...)

In a loop of one's own (Megatron-Bridge), around the loop, with the forward step replaced::

    with recording(model, optimizer, "signals.json", last=train_iters) as recorder:
        forward_step = recorder.forward_step(forward_step)

Nothing here imports Megatron before it is used. The settings of the run stay as they are, and no collective is added
to its forward or backward pass: the hooks hash what passes by and compare at the optimizer step.

Gradients are read when ``optimizer.step`` is called: reduced, normalised and not yet clipped. With the distributed
optimizer a rank's buffer then holds valid sums in its own shard alone, so each rank takes just the range that its
optimizer steps, which is where the run itself takes gradients from. To record before the reduce-scatter and reduce a
second time would double the communication, and hide a fault in the run's own reduction.

Cost on an observed step, by the passes over memory that it takes: gradients and float32 weights of a rank's shard are
read some 30 times in all, its float32 weights are held twice for the length of the optimizer step (4 bytes per weight
that the rank steps), and the weights of a rank are hashed twice in the first forward and once after. That is some
tenths of a second per 10^9 weights of a rank at 3 TB/s. Other steps cost a counter. Default: steps 1, 2, 3 and last.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attune_lab.signals import record
from attune_lab.signals.megatron_batches import Batches
from attune_lab.signals.megatron_layout import (
    Groups,
    Share,
    check_cover,
    megatron_groups,
    owned_pieces,
    rank_in,
    shares_of,
    size_of,
    union,
)
from attune_lab.signals.megatron_settings import megatron_settings
from attune_lab.signals.record import Piece
from attune_lab.signals.schema import Signals, StepSignals
from attune_lab.writing import refuse_unwritable


@contextmanager
def recorded_training(out: str | Path, steps: Sequence[int] = ()) -> Iterator[None]:
    """Records every training that Megatron-LM's ``pretrain`` starts inside; rank 0 writes the signals to ``out``.

    Args:
        out: path of the signals file.
        steps: iterations to observe; by default the first three of the run and its last.

    **Source:** NVIDIA/Megatron-LM megatron/training/training.py: ``pretrain`` calls ``train`` of its module with the
    forward step, the model, the optimizer, the scheduler and the data, in this order.
    """
    training: Any = import_module("megatron.training.training")
    train = training.train

    @wraps(train)
    def recorded(forward_step: Any, model: Any, optimizer: Any, *rest: Any, **named: Any) -> Any:
        args = import_module("megatron.training").get_args()
        parser = import_module("megatron.training.arguments").add_megatron_arguments(ArgumentParser(allow_abbrev=False))
        settings, first = megatron_settings(vars(args), parser), int(args.iteration) + 1
        with recording(
            model, optimizer, out, steps=steps, first=first, last=args.train_iters, effective=settings
        ) as recorder:
            return train(recorder.forward_step(forward_step), model, optimizer, *rest, **named)

    training.train = recorded
    try:
        yield
    finally:
        training.train = train


@contextmanager
def recording(
    model: Sequence[nn.Module],
    optimizer: Any,
    out: str | Path,
    *,
    steps: Sequence[int] = (),
    first: int = 1,
    last: int | None = None,
    groups: Groups | None = None,
    effective: Mapping[str, Any] | None = None,
) -> Iterator[Recorder]:
    """Records the optimizer steps made inside; rank 0 writes the signals to ``out``. Collective over all ranks.

    Args:
        model: the model chunks of this rank.
        optimizer: Megatron's optimizer, chained or not.
        out: path of the signals file.
        steps: iterations to observe; by default ``first`` and the two after it, and ``last``.
        first: number of the first iteration made inside.
        last: number of the last one, None where it is not known.
        groups: process groups; by default those of ``megatron.core.parallel_state``.
        effective: settings in force, by the keys of the registry.

    Raises:
        UserError: the model holds parameters whose place in the whole model the hooks cannot tell.
        EnvironmentFault: ``out`` cannot be written; its folder is made when missing.
    """
    chosen = steps or (first, first + 1, first + 2, *(() if last is None else (last,)))
    groups = groups or megatron_groups()
    if rank_in(groups.world) == 0:
        refuse_unwritable(Path(out))  # before a step is trained
    recorder = Recorder(model, optimizer, Path(out), frozenset(chosen), first, groups, effective or {})
    try:
        yield recorder
    except SystemExit:  # how Megatron-LM ends at --exit-interval and --exit-duration-in-mins, on every rank alike
        recorder.finish()
        raise
    else:
        recorder.finish()
    finally:
        recorder.detach()


class Recorder:
    """Watches one run; made by `recording`."""

    def __init__(
        self,
        model: Sequence[nn.Module],
        optimizer: Any,
        out: Path,
        steps: frozenset[int],
        first: int,
        groups: Groups,
        effective: Mapping[str, Any],
    ) -> None:
        self._model, self._optimizer, self._out, self._steps, self._groups = model, optimizer, out, steps, groups
        self._step, self._effective = first, effective
        self._records: list[StepSignals] = []
        self._shares = shares_of(model, optimizer, groups)
        self._names = union({share.name for share in self._shares}, (groups.ep, groups.pp))
        check_cover(self._shares, self._names, groups)
        self._batches = Batches(model, groups)
        self._forward = _ForwardWeights(model, self._shares)
        self._given: dict[str, Tensor] = {}
        self._observing, self._unsettled = False, False
        self._wrapped = [name for name in ("zero_grad", "step", "step_with_ready_grads") if hasattr(optimizer, name)]
        for name in self._wrapped:
            setattr(optimizer, name, partial(getattr(self, f"_on_{name}"), getattr(optimizer, name)))

    def forward_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The forward step to train with: the same, its batches and losses noted on observed steps."""
        return self._batches.forward_step(function)

    def finish(self) -> None:
        """Settles the last step, after gathering the weights that an overlapped gather has left for later."""
        for chunk in self._model:
            if getattr(getattr(chunk, "ddp_config", None), "overlap_param_gather", False):
                chunk.start_param_sync(force_sync=True)  # type: ignore[operator]
        self._settle()

    def detach(self) -> None:
        """Takes all hooks away."""
        self._batches.detach()
        self._forward.release()
        for name in self._wrapped:
            delattr(self._optimizer, name)
        self._wrapped = []

    def _on_zero_grad(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Begins a step. A step that Megatron runs a second time to check itself begins anew."""
        result = original(*arguments, **named)
        if self._step in self._steps:
            self._observing = True
            self._batches.watch()
            self._forward.watch()
        return result

    def _on_step(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._settle()
        if self._observing:
            result = self._observed(partial(original, *arguments, **named))
        else:
            result = original(*arguments, **named)
        self._step += 1
        return result

    def _on_step_with_ready_grads(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Between clipping and the update."""
        if self._observing:
            for piece in owned_pieces(self._shares, _given_gradient):
                square = record.square_sum(piece.values)[None]
                self._given[piece.name] = self._given.get(piece.name, 0.0) + square
        return original(*arguments, **named)

    def _observed(self, step: Callable[[], Any]) -> Any:
        """Runs the optimizer step and notes what it was given and what it did."""
        self._batches.stop()
        stale = self._forward.differences(self._groups)
        world = self._groups.world
        scale = _loss_scale(self._optimizer)
        reduced = record.totals(owned_pieces(self._shares, partial(_reduced_gradient, scale)), self._names, world)
        before = [Piece(p.name, p.values.clone(), torch.empty(0)) for p in owned_pieces(self._shares, _weights)]
        self._given = {}
        result = step()
        changes = record.changes(before, owned_pieces(self._shares, _weights), self._names, world)
        success, logged_norm = (result[0], result[1]) if isinstance(result, tuple) else (True, None)
        logged = {} if logged_norm is None else {"grad norm": float(logged_norm)}
        learning_rates = [group["lr"] for group in self._optimizer.param_groups]
        self._records.append(
            StepSignals(
                step=self._step,
                **self._batches.summed(),
                logged=logged | ({"learning rate": float(learning_rates[0])} if learning_rates else {}),
                grad_norm={name: norm for name, (norm, _) in reduced.items()},
                grad_sketch={name: signs for name, (_, signs) in reduced.items()},
                update_norm={name: change.update_norm for name, change in changes.items()},
                weight_norm={name: change.weight_norm for name, change in changes.items()},
                unchanged={name: change.unchanged for name, change in changes.items()},
                clip_factor=self._clip_factor([norm for norm, _ in reduced.values()]) if success else None,
                stale=stale,
                skipped=not success,
            )
        )
        self._observing, self._unsettled = False, True
        return result

    def _clip_factor(self, norms: Sequence[float]) -> float | None:
        """Norm of the gradient given to the inner optimizer over the norm of the one reduced. Collective."""
        given = record.additive(self._given, self._names, 1, self._groups.world)
        reduced = math.sqrt(math.fsum(norm * norm for norm in norms))
        if not reduced or "step_with_ready_grads" not in self._wrapped:
            return None
        return math.sqrt(math.fsum(square for (square,) in given.values())) / reduced

    def _settle(self) -> None:
        """Compares the copies of the weights that the last observed step left, and writes what there is.

        Due when the weights have been gathered: at the next optimizer step, or at the end of the run.
        """
        if not self._unsettled:
            return
        self._unsettled = False
        replicas = union(_replica_differences(self._shares, self._groups), (self._groups.world,))
        self._records[-1] = self._records[-1].model_copy(update={"replicas": replicas})
        if rank_in(self._groups.world) == 0:
            Signals(
                producer="Megatron-Core hooks",
                stack=_versions(),
                world_size=size_of(self._groups.world),
                effective=self._effective,
                steps=tuple(self._records),
            ).write(self._out)


class _ForwardWeights:
    """Compares the weights that the first forward of a step uses with those the optimizer keeps.

    Hooks go in at the start of each observed step, so behind those with which Megatron waits for gathered weights.
    """

    def __init__(self, model: Sequence[nn.Module], shares: Sequence[Share]) -> None:
        self._model = model
        self._shares = {id(share.parameter): share for share in shares if share.plain}
        self._used: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def watch(self) -> None:
        """Puts the hooks in."""
        self.release()
        self._used = {}
        for chunk in self._model:
            for module in chunk.modules():
                if any(id(p) in self._shares for p in module.parameters(recurse=False)):
                    self._handles.append(module.register_forward_pre_hook(self._on_forward))

    def release(self) -> None:
        """Takes the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def differences(self, groups: Groups) -> tuple[str, ...]:
        """Names of the parameters whose value in the forward was not the stored one, over all ranks. Collective.

        Each rank hashes the range it steps, where it is the first to; the hashes add up to that of the whole.
        """
        self.release()
        differ = set[str]()
        for expert, group in ((False, groups.dp), (True, groups.edp)):
            shares = [s for s in self._shares.values() if s.expert == expert]
            for share, stored in zip(shares, _stored_hashes(shares, group), strict=True):
                used = self._used.get(id(share.parameter))
                if used is not None and int(used) != stored:
                    differ.add(share.name)
        return union(differ, (groups.world,))

    def _on_forward(self, module: nn.Module, arguments: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if id(parameter) in self._shares and id(parameter) not in self._used:
                self._used[id(parameter)] = record.placed_hash(parameter.data.reshape(-1))


def _stored_hashes(shares: Sequence[Share], group: dist.ProcessGroup | None) -> list[int]:
    """Hashes of the optimizer's weights in the type of the forward: this rank's own, or added up over the ranks."""
    own = [record.placed_hash(s.master.to(s.parameter.dtype), s.start) for s in shares]
    if not own:
        return []
    sums = torch.stack([value * share.first for value, share in zip(own, shares, strict=True)])
    sums = sums.to(record.device_of(group))
    if group is not None:
        dist.all_reduce(sums, group=group)
    whole = [share.stop - share.start == share.parameter.numel() for share in shares]
    return [int(a if alone else b) for a, alone, b in zip(own, whole, sums.tolist(), strict=True)]


def _replica_differences(shares: Sequence[Share], groups: Groups) -> set[str]:
    """'GROUP: parameter' of the weights of this rank whose copies differ. Collective."""
    found: set[str] = set()
    for expert, tp, dp in ((False, "tp", "dp"), (True, "etp", "edp")):
        some = {s.name: s.parameter.data for s in shares if s.plain and s.expert == expert}
        whole = {s.name: s.parameter.data for s in shares if s.plain and s.expert == expert and s.dim is None}
        found |= set(record.replica_differences(whole, getattr(groups, tp), tp))
        found |= set(record.replica_differences(some, getattr(groups, dp), dp))
    shared = dict.fromkeys(
        ["embedding.weight"], next((s.parameter.data for s in shares if s.plain and s.shared), torch.empty(0))
    )
    return found | set(record.replica_differences(shared, groups.embedding, "ends"))


def _weights(share: Share) -> Tensor:
    return share.master


def _reduced_gradient(scale: float, share: Share) -> Tensor | None:
    """The gradient of a share's range as reduced over all ranks, without a loss scale."""
    gradient = getattr(share.parameter, "main_grad", None)
    gradient = share.parameter.grad if gradient is None else gradient
    if gradient is None:
        return None
    values = gradient.detach().reshape(-1)[share.start : share.stop]
    return values if scale == 1.0 else values.double() / scale


def _given_gradient(share: Share) -> Tensor | None:
    """The gradient that the inner optimizer reads."""
    gradient = getattr(share.holder, "decoupled_grad", None)
    gradient = share.holder.grad if gradient is None else gradient
    return None if gradient is None else gradient.detach().reshape(-1)


def _loss_scale(optimizer: Any) -> float:
    return float(optimizer.get_loss_scale()) if hasattr(optimizer, "get_loss_scale") else 1.0


def _versions() -> dict[str, str]:
    """Versions of the installed libraries that the gate's predicates ask for."""
    packages = {"mcore": "megatron-core", "torch": "torch", "te": "transformer-engine", "bridge": "megatron-bridge"}
    found = {}
    for key, package in packages.items():
        with suppress(PackageNotFoundError):
            found[key] = version(package)
    return found
