"""The steps of a log as training went on: restarts resolved, memory bounded."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace

from attune_lab.logs.contract import LoggedStep

KEPT = 20_000
"""So many steps are kept from the start of a log, and as many from its end."""


class Track:
    """Steps in the order printed."""

    def __init__(self) -> None:
        self._head: list[LoggedStep] = []
        self._tail: deque[LoggedStep] = deque()
        self._left_out = False
        self._rank: int | None = None
        self.figures = 0
        """Losses, times, norms and rates printed."""
        self.restarts = 0
        self.copies = 0
        """Steps left out because another rank had printed them."""

    def add(self, step: LoggedStep, rank: int | None) -> bool:
        """Add what a line says of a step; whether it is one that was not known.

        A step that goes back is a restart: what was printed from there on before is dropped. One that another rank
        prints once more is left out.
        """
        last = self.last
        if last is not None and step.step <= last.step:
            if rank != self._rank:
                self.copies += 1
                return False
            if step.step == last.step:
                self._append(_merged(self._pop(), step))
                return False
            self.restarts += 1
            while (last := self.last) is not None and last.step >= step.step:
                self._pop()
        self._rank = rank
        self._append(step)
        return True

    @property
    def last(self) -> LoggedStep | None:
        """The newest step."""
        if self._tail:
            return self._tail[-1]
        return self._head[-1] if self._head else None

    def __len__(self) -> int:
        return len(self._head) + len(self._tail)

    def steps(self) -> tuple[LoggedStep, ...]:
        """Those kept, counted from 1: some trainers count from 0."""
        kept = (*self._head, *self._tail)
        return tuple(replace(step, step=step.step + 1) for step in kept) if kept and kept[0].step == 0 else kept

    def gap(self) -> tuple[int, int] | None:
        """The steps between which others are left out, None where all are kept."""
        return (self._head[-1].step, self._tail[0].step) if self._left_out and self._head and self._tail else None

    def _append(self, step: LoggedStep) -> None:
        self.figures += _figures(step)
        if len(self._head) < KEPT and not self._tail and not self._left_out:
            self._head.append(step)
            return
        self._tail.append(step)
        if len(self._tail) > KEPT:
            self._tail.popleft()
            self._left_out = True

    def _pop(self) -> LoggedStep:
        self._left_out = self._left_out and bool(self._tail)
        step = self._tail.pop() if self._tail else self._head.pop()
        self.figures -= _figures(step)
        return step


_COLUMNS = tuple(column.name for column in fields(LoggedStep) if column.name not in ("step", "other"))


def _figures(step: LoggedStep) -> int:
    return sum(getattr(step, column) is not None for column in _COLUMNS)


def _merged(old: LoggedStep, new: LoggedStep) -> LoggedStep:
    """What two lines say of one step; the second where both say it."""
    said = {name: value for name in _COLUMNS if (value := getattr(new, name)) is not None}
    return replace(old, **said, other={**old.other, **new.other})
