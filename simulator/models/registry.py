"""The known models: shapes, printed parameter counts and where both come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from simulator.hardware import load_yaml, nearest
from simulator.models.shape import ModelShape


@dataclass(frozen=True)
class Published:
    """A model's printed parameter counts.

    Attributes:
        total_b, active_b: counts in 1e9, all parameters and those one token uses.
        convention: what they count.
        digit_b: value of the last printed digit of total and active, in 1e9.
        nominal: the source contradicts its own configuration; good for order of magnitude.
        source: where counts and shape come from.  note: what a reader should know.
    """

    total_b: float
    active_b: float
    convention: str
    digit_b: tuple[float, float]
    source: str
    note: str = ""
    nominal: bool = False


@cache
def _registry() -> Mapping[str, tuple[ModelShape, Published]]:
    registry = {}
    for name, entry in load_yaml("models.yaml").items():
        facts = entry.pop("published")
        digits = tuple(facts.pop("digit_b"))
        printed = Published(**facts, digit_b=digits, source=entry.pop("source"), note=entry.pop("note", ""))
        registry[name] = (ModelShape(name=name, **entry), printed)
    return MappingProxyType(registry)


@cache
def models() -> Mapping[str, ModelShape]:
    """Every known model shape by name, read-only; facts and sources are in ``data/models.yaml``."""
    return MappingProxyType({name: shape for name, (shape, _) in _registry().items()})


def model(name: str) -> ModelShape:
    """The shape called ``name`` (case does not matter).

    Raises:
        ValueError: not known; the message names the nearest ones.
    """
    known = models()
    if name.lower() in known:
        return known[name.lower()]
    raise ValueError(f"model {name!r} is not known: did you mean {nearest(name, known)}?")


def published(name: str) -> Published:
    """The printed parameter counts of the model called ``name``, with their source.

    Raises:
        ValueError: not known.
    """
    return _registry()[model(name).name][1]


def identify(shape: ModelShape) -> str | None:
    """Name of the registered model that ``shape`` is, or None.

    The name and the longest sequence may differ, the MTP layers may have been dropped and the vocabulary may
    have been padded up (by at most 1 % and 1,024, which covers the multiples frameworks pad to).
    """
    for name, known in models().items():
        mtp_layers = 0 if shape.mtp_layers == 0 else known.mtp_layers
        padded = known.vocab <= shape.vocab <= 1.01 * known.vocab + 1024
        vocab = shape.vocab if padded else known.vocab
        if replace(known, name=shape.name, max_seq=shape.max_seq, mtp_layers=mtp_layers, vocab=vocab) == shape:
            return name
    return None
