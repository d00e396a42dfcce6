"""What an explanation is made of: a tree of terms, each the sum of its children."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Path = tuple[tuple[str, int], ...]
"""Names from the root to a term, each with its number among siblings of that name."""


@dataclass(frozen=True)
class Influence:
    """What a constant means to a term.

    Attributes:
        constant: its name.
        elasticity: relative change of the term over that of the constant, both small.
        value: of the constant.  prior: before any training step was looked at.
        sd: relative standard deviation that the calibration left.
        what: the effect it stands for.  source: where the prior comes from.
    """

    constant: str
    elasticity: float
    value: float
    prior: float
    sd: float
    what: str
    source: str


@dataclass(frozen=True)
class Term:
    """A number with everything that it consists of.

    Attributes:
        name: what it is.
        value: in ``unit``, seconds (``s``) or bytes (``B``).
        formula: how it comes about, numbers in place.
        source: where formula and constants come from; blank where the children say.
        children: terms that add up to the value; none where the formula says it all.
        inputs: numbers that went into the formula, which do not add up to the value.
        influences: the constants that move the value, the strongest first.
    """

    name: str
    value: float
    unit: str
    formula: str = ""
    source: str = ""
    children: tuple[Term, ...] = ()
    inputs: tuple[Term, ...] = ()
    influences: tuple[Influence, ...] = ()

    def walk(self, at: Path = ()) -> Iterator[tuple[Path, Term]]:
        """This term and all below it but inputs, with their paths."""
        yield at, self
        seen: Counter[str] = Counter()
        for child in self.children:
            yield from child.walk((*at, (child.name, seen[child.name])))
            seen[child.name] += 1


def number(value: Any) -> float:
    """The number in an array of one element, shape (1,) or ()."""
    return float(np.asarray(value).reshape(()))


def seconds(value: float) -> str:
    """A time for reading: ``1.23 ms``."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(value) < 1000 * size else f"{value / size:,.0f} {unit}"
    return f"{value * 1e9:.3g} ns" if value else "0 s"


def quantity(value: float, unit: str = "B") -> str:
    """An amount for reading, in powers of a thousand: ``67.1 MB``, ``1.2 TFLOP``."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def source_of(function: Callable[..., Any]) -> str:
    """What the docstring of a formula names as its source, in one line; blank without."""
    _, marker, text = (inspect.getdoc(function) or "").partition("**Source:**")
    return " ".join(text.split("\n\n")[0].split()) if marker else ""


def as_data(term: Term) -> dict[str, Any]:
    """A term as plain data, for JSON; what is empty is left out."""
    data: dict[str, Any] = {"name": term.name, "value": term.value, "unit": term.unit}
    data |= {key: text for key in ("formula", "source") if (text := getattr(term, key))}
    data |= {key: [as_data(t) for t in terms] for key in ("children", "inputs") if (terms := getattr(term, key))}
    if term.influences:
        data["elasticities"] = {one.constant: one.elasticity for one in term.influences}
    return data


def constants_data(terms: Iterable[Term]) -> dict[str, Any]:
    """The constants that move any of these terms, by name, as plain data."""
    found = {one.constant: one for term in terms for one in term.influences}
    keys = ("value", "prior", "sd", "what", "source")
    return {name: {key: getattr(one, key) for key in keys} for name, one in sorted(found.items())}
