"""Remembering how a price came about: the calls of the formulas, with what they were given and what they returned.

Nothing is kept, and almost no time spent, unless `recording` is open. An explanation is then built from the very
calls that priced a job (`simulator.explain`), so that no formula is written twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Call:
    """One call of a recorded function.

    Attributes:
        function: what was called.
        arguments: by parameter name, without defaults.
        result: what it returned.
        calls: recorded calls that it made itself, in order.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    result: Any
    calls: tuple[Call, ...]

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    def all(self, *names: str) -> Iterator[Call]:
        """The calls of functions of these names made on the way, at any depth; not those inside one another."""
        for call in self.calls:
            if call.name in names:
                yield call
            else:
                yield from call.all(*names)

    def last(self, name: str) -> Call:
        """The last such call.

        Raises:
            LookupError: there is none.
        """
        found = list(self.all(name))
        if not found:
            raise LookupError(f"{self.name} made no call of {name}")
        return found[-1]


_calls: ContextVar[list[Call] | None] = ContextVar("calls", default=None)


def recorded(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, whose calls are remembered while `recording` is open."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        outer = _calls.get()
        if outer is None:
            return function(*args, **kwargs)
        with recording() as inner:
            result = function(*args, **kwargs)
        arguments = _signature(function).bind(*args, **kwargs).arguments
        outer.append(Call(function, arguments, result, tuple(inner)))
        return result

    return called


@contextmanager
def recording() -> Iterator[list[Call]]:
    """The recorded calls made meanwhile, in order; those made by recorded functions are found inside them."""
    calls: list[Call] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)
