"""Figures of live tensors that do not depend on the layout: norms, sketches, hashes and checksums, summed over ranks.

Sums are taken in float64 over the ranks of a process group by one all-reduce; ``group=None`` is a single process.
Every function with a group is collective: all its ranks call it, in the same order. Integer arithmetic is modulo 2**64,
which is how int64 tensors wrap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attune_lab.signals.schema import SKETCHES

CHUNK = 1 << 22
"""Elements treated at a time, which bounds the memory of temporaries (about 200 MB)."""

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_SIGNS = (1 - 2 * ((torch.arange(256)[:, None] >> torch.arange(8)) & 1)).double()
"""Row c: the signs in the 8 bits of a byte c."""

_codes: MutableMapping[Tensor, dict[str, Tensor]] = (
    WeakTensorKeyDictionary()
)  # index -> {name: codes}; an entry dies with its index


@dataclass(frozen=True, eq=False)
class Piece:
    """The elements of one parameter's gradient or weight that this rank owns and no other does."""

    name: str
    values: Tensor
    """Flat, of any float dtype."""
    index: Tensor
    """Flat int64 positions in the full parameter. Kept by the caller between steps, its signs are computed once."""


class Change(NamedTuple):
    """What an update did to one parameter."""

    update_norm: float
    weight_norm: float
    """Before the update."""
    unchanged: float
    """Share of the elements left as they were."""


def sketch(name: str, values: Tensor, index: Tensor) -> Tensor:
    """Projections of the values onto `SKETCHES` random directions of +-1: float64, shape (SKETCHES,).

    The signs depend on the name and the position alone, so sketches of shards add up to the sketch of the whole, and
    for two tensors each (s_a - s_b)^2 has the mean ||a - b||^2; the mean of all over it is about chi^2_16 / 16.

    Source: Alon, Matias, Szegedy 1999 (doi 10.1006/jcss.1997.1545); signs from splitmix64 (Steele, Lea, Flood 2014).
    """
    total = torch.zeros(SKETCHES, dtype=torch.float64, device=values.device)
    for start in range(0, len(values), CHUNK):
        part = slice(start, start + CHUNK)
        codes = _cached_codes(name, index)[:, part] if len(index) <= CHUNK else _sign_codes(name, index[part])
        total += torch.cat([_projected(code, values[part].double()) for code in codes])
    return total


def totals(
    pieces: Iterable[Piece], names: Sequence[str], group: dist.ProcessGroup | None
) -> dict[str, tuple[float, tuple[float, ...]]]:
    """Norm and sketch of every name, over the pieces of all ranks. A rank may have several pieces of a name, or none.

    Args:
        pieces: this rank's; together with those of the other ranks, each element once.
        names: the same ordered list on all ranks.
        group: the ranks that hold the pieces.

    Raises:
        KeyError: a piece has a name that is not in the list.
    """
    rows: dict[str, Tensor] = {}
    for piece in pieces:
        values = piece.values.detach()
        _add(rows, piece.name, torch.cat([square_sum(values)[None], sketch(piece.name, values, piece.index)]))
    summed = additive(rows, names, 1 + SKETCHES, group)
    return {name: (math.sqrt(square), tuple(signs)) for name, (square, *signs) in summed.items()}


def changes(
    before: Iterable[Piece], after: Iterable[Piece], names: Sequence[str], group: dist.ProcessGroup | None
) -> dict[str, Change]:
    """What an update did to every name, over the pieces of all ranks.

    ``before`` must hold copies, in the order of ``after``. A name without elements has the share 0.

    Raises:
        KeyError: a piece has a name that is not in the list.
        ValueError: the two do not have the same pieces.
    """
    rows: dict[str, Tensor] = {}
    for old, new in zip(before, after, strict=True):
        if old.name != new.name:
            raise ValueError(f"the pieces of {old.name} and {new.name} stand at the same place")
        was, now = old.values.detach(), new.values.detach()
        equal, number = (was == now).sum(dtype=torch.float64), was.new_tensor(len(was), dtype=torch.float64)
        _add(rows, old.name, torch.stack([square_sum(now, was), square_sum(was), equal, number]))
    return {
        name: Change(math.sqrt(update), math.sqrt(weight), equal / number if number else 0.0)
        for name, (update, weight, equal, number) in additive(rows, names, 4, group).items()
    }


def additive(
    rows: Mapping[str, Tensor], names: Sequence[str], width: int, group: dist.ProcessGroup | None
) -> dict[str, list[float]]:
    """For each name, the sum over all ranks of its row of ``width`` figures; zeros where no rank has one.

    Raises:
        KeyError: a row has a name that is not in the list.
    """
    position = {name: number for number, name in enumerate(names)}
    table = torch.zeros(len(names), width, dtype=torch.float64, device=device_of(group))
    if rows:
        table[[position[name] for name in rows]] = torch.stack(list(rows.values())).to(table)
    if group is not None:
        dist.all_reduce(table, group=group)
    return dict(zip(names, table.tolist(), strict=True))


def square_sum(values: Tensor, minus: Tensor | None = None) -> Tensor:
    """The sum of squares of the values, or of their differences, in float64."""
    total = torch.zeros((), dtype=torch.float64, device=values.device)
    for start in range(0, len(values), CHUNK):
        part = slice(start, start + CHUNK)
        difference = values[part].double() if minus is None else values[part].double() - minus[part].double()
        total += difference @ difference
    return total


def row_hashes(*tensors: Tensor) -> list[int]:
    """A 64-bit hash of each sequence: of all rows [i] of the tensors together, which have a first dimension in common.

    Integers (and truth values) are hashed by value, floats as float64, so the width of a dtype does not matter.
    """
    total = torch.zeros(len(tensors[0]), dtype=torch.int64, device=tensors[0].device)
    for salt, tensor in enumerate(tensors):
        rows = tensor.detach().reshape(len(tensor), -1)
        words = rows.double().view(torch.int64) if rows.is_floating_point() else rows.long()
        places = torch.arange(words.shape[1], device=words.device) * _GOLDEN + _seed(f"tensor {salt}")
        total += _mixed(words + places).sum(1)
    return [word % 2**64 for word in _mixed(total).tolist()]


def multiset_hash(hashes: Iterable[int], group: dist.ProcessGroup | None) -> str:
    """The sum of the hashes of all ranks modulo 2**64, as 16 hexadecimal digits: independent of their order."""
    total = torch.tensor([_signed(sum(hashes))], dtype=torch.int64, device=device_of(group))
    if group is not None:
        dist.all_reduce(total, group=group)
    return f"{int(total) % 2**64:016x}"


def checksum(tensor: Tensor) -> int:
    """A 64-bit hash of the bits of a tensor and their places: one flipped bit always changes it."""
    raw = tensor.detach().reshape(-1).view(torch.uint8)
    total = _seed(f"{len(raw)} bytes")
    for start in range(0, len(raw), 8 * CHUNK):
        part = raw[start : start + 8 * CHUNK]
        words = torch.zeros(-(-len(part) // 8), dtype=torch.int64, device=raw.device)
        words.view(torch.uint8)[: len(part)] = part
        first = start // 8
        places = torch.arange(first, first + len(words), device=raw.device)
        total += int(_mixed(words + places * _GOLDEN).sum())
    return total % 2**64


def placed_hash(values: Tensor, first: int = 0) -> Tensor:
    """A 64-bit hash of the bits of flat values and their places: an int64 scalar on the values' device.

    Hashes of consecutive parts, each with the place of its first element, add up to the hash of the whole, so ranks
    that hold a part each find together what the whole should be. `checksum` is faster where that is not needed.
    """
    bits = values.detach().view(_INTEGERS[values.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for start in range(0, len(bits), CHUNK):
        words = bits[start : start + CHUNK].long()
        places = torch.arange(first + start, first + start + len(words), device=values.device)
        total += _mixed(words + places * _GOLDEN).sum()
    return total


def replica_differences(tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None, label: str) -> tuple[str, ...]:
    """The tensors that are not bit-equal on all ranks of the group, as ``label: name``; the same on all its ranks.

    The ranks must hold the same names in the same order.
    """
    if group is None or dist.get_world_size(group) == 1 or not tensors:
        return ()
    sums = torch.tensor([_signed(checksum(t)) for t in tensors.values()], dtype=torch.int64, device=device_of(group))
    least = torch.cat([sums, ~sums])  # ~x falls as x grows: the least ~x belongs to the greatest x
    dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
    differ = least[: len(sums)] != ~least[len(sums) :]
    return tuple(f"{label}: {name}" for name, different in zip(tensors, differ.tolist(), strict=True) if different)


def _add(rows: dict[str, Tensor], name: str, row: Tensor) -> None:
    rows[name] = rows[name] + row if name in rows else row


def _projected(code: Tensor, values: Tensor) -> Tensor:
    """The 8 signed sums of the values whose signs are the bits of the codes."""
    if values.is_cuda:  # a weighted bincount on CUDA has no deterministic form
        return values @ _SIGNS.to(values.device)[code.int()]
    return torch.bincount(code, weights=values, minlength=256) @ _SIGNS


def _cached_codes(name: str, index: Tensor) -> Tensor:
    known = _codes.setdefault(index, {})
    if name not in known:
        known[name] = _sign_codes(name, index)
    return known[name]


def _sign_codes(name: str, index: Tensor) -> Tensor:
    """The signs of the elements as bits: uint8, shape (SKETCHES / 8, len(index))."""
    mixed = _mixed(index * _GOLDEN + _seed(name))
    return torch.stack([(mixed >> shift) & 255 for shift in range(0, SKETCHES, 8)]).to(torch.uint8)


def _mixed(words: Tensor) -> Tensor:
    """The finaliser of splitmix64, a bijection. A right shift of int64 copies the sign, which the masks take away."""
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * _MIX[0]
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * _MIX[1]
    return words ^ ((words >> 31) & ((1 << 33) - 1))


def _seed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _signed(word: int) -> int:
    return (word + 2**63) % 2**64 - 2**63


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where tensors must lie for the collectives of a group."""
    return torch.device("cuda" if group is not None and dist.get_backend(group) == "nccl" else "cpu")
