"""Declared injection points: functions of the trainer that a fault may stand in for during one run.

A fault is a function ``fault(original, *arguments)`` put at a point named ``module.function``. It usually calls the
original and spoils its arguments or its result, so that each fault reads as the one changed line it is in the wild.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Fault = Callable[..., Any]

_points: set[str] = set()
_active: dict[str, Fault] = {}


def injection_point(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, declared as a place where a fault may be injected."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    _points.add(name)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        fault = _active.get(name)
        if fault is None:
            return function(*args, **kwargs)
        result: R = fault(function, *args, **kwargs)
        return result

    return call


@contextmanager
def patched(faults: Mapping[str, Fault]) -> Iterator[None]:
    """The faults in place, by injection point, until the block ends.

    Raises:
        KeyError: no such injection point in the modules imported so far.
    """
    unknown = sorted(faults.keys() - _points)
    if unknown:
        raise KeyError(f"no injection point {unknown[0]}; there are {', '.join(sorted(_points))}")
    _active.update(faults)
    try:
        yield
    finally:
        _active.clear()
