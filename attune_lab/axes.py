"""The axes of a search space: what a point chooses on each, what that writes, and what it moves in the settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attune_lab.parameters import LAYOUT, Parameter, read, spelled, stated, write
from attune_lab.recipe.coupling import KEPT_WHILE, SPLIT_KEYS, account_flags, split_settings
from attune_lab.recipe.effective import effective
from attune_lab.recipe.expressions import Expression
from attune_lab.recipe.recipe import Recipe, Value
from simulator.hardware import ClusterSpec

SIZES = ("tp", "cp", "ep", "etp", "mbs")
"""Sizes that are an axis each, the first ones; the pipeline's come next, together."""

PIPELINE = ("pp", "vpp")
ACCOUNTS = ("account_embedding", "account_loss")
"""Parameters of the axis of the pipeline: its sizes, and what else counts as a layer."""

Accounts = tuple[bool, bool]


@dataclass(frozen=True)
class Option:
    """One option of an axis.

    Attributes:
        values: parameters as they stand in the point; one that does not apply is missing.
        writes: settings and ``env.NAME`` of the recipe; None leaves the stack's default.
        variables: the effective settings that the options of this axis move, of those anybody reads.
    """

    values: Mapping[str, Value]
    writes: Mapping[str, Value]
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Axis:
    """Options of which a point chooses one.

    Attributes:
        key: the parameter, ``pipeline``, or a setting that only the baseline decides.
        options: in the order of the parameter's choices.
        condition: over effective settings; where it is false the last option is chosen, not to apply, and only there.
    """

    key: str
    options: tuple[Option, ...]
    condition: Expression | None = None


class Axes:
    """Builds the axes around one baseline."""

    def __init__(
        self, baseline: Recipe, cluster: ClusterSpec, parameters: Mapping[str, Parameter], names: Sequence[str]
    ) -> None:
        """Take note.

        Args:
            names: effective settings that somebody reads.
        """
        self._baseline, self._cluster, self._parameters, self._names = baseline, cluster, parameters, names
        self._base = effective(baseline, cluster)
        self._own = {key: read(parameter, baseline, self._base) for key, parameter in parameters.items()}

    def build(self) -> list[Axis]:
        """`SIZES`, the pipeline, every other parameter, and what the baseline decides that something else may undo."""
        levers = [parameter for key, parameter in self._parameters.items() if key not in (*LAYOUT, *ACCOUNTS)]
        followers = [key for key in KEPT_WHILE if self._baseline.settings.get(key)]
        return [
            *map(self._size, SIZES),
            self._pipeline(),
            *map(self._lever, levers),
            *map(self._follower, followers),
        ]

    def _size(self, key: str) -> Axis:
        """A size; of one that is no parameter (experts of a dense model) there is nothing to choose."""
        if key not in self._parameters:
            return Axis(key, (Option({}, {}),))
        options = [Option({key: size}, self._size_writes(key, size)) for size in self._parameters[key].choices]
        inherited = {"etp": self._base["etp"]} if key == "tp" and "etp" in self._parameters else {}
        return Axis(key, self._observed(options, inherited))

    def _size_writes(self, key: str, size: Value) -> dict[str, Value]:
        """The size, and sequence parallelism where it comes and goes with tensor parallelism."""
        writes = {key: spelled(self._baseline, key, size)}
        if key == "tp" and "sequence_parallel" not in self._parameters:
            own = stated(self._baseline, "sequence_parallel")
            without = own if self._own["tp"] == 1 else None
            writes["sequence_parallel"] = without if size == 1 else own or True
        return writes

    def _pipeline(self) -> Axis:
        pairs = itertools.product(*(self._parameters[key].choices for key in PIPELINE))
        sizes = [(int(str(pp)), int(str(chunks))) for pp, chunks in pairs]
        options = [
            self._split(pp, chunks, accounts)
            for pp, chunks in sizes
            if pp > 1 or chunks == 1
            for accounts in self._accounts(pp, chunks)
        ]
        return Axis("pipeline", self._observed(options))

    def _accounts(self, pp: int, chunks: int) -> list[Accounts]:
        """What may count as a layer (embedding, loss) besides the layers; nothing where that makes no legal split."""
        legal = account_flags(self._base["num_layers"], pp * chunks) if pp > 1 else []
        own = [self._own_split[2:]] if (pp, chunks) == self._own_split[:2] else []
        return sorted({*legal, *own}) or [(False, False)]

    def _split(self, pp: int, chunks: int, accounts: Accounts) -> Option:
        """One split of the layers; the baseline's own where its sizes and accounts are chosen."""
        if (pp, chunks, *accounts) == self._own_split:
            writes: dict[str, Value] = {key: self._baseline.settings.get(key) for key in SPLIT_KEYS}
        else:
            mtp_layers = self._base["mtp_num_layers"] or 0
            writes = split_settings(self._base["num_layers"], pp, chunks, flags=accounts, mtp_layers=mtp_layers)
        values: dict[str, Value] = {"pp": pp}
        if pp > 1:
            values |= {"vpp": chunks, **dict(zip(ACCOUNTS, accounts, strict=True))}
        return Option(values, {"pp": spelled(self._baseline, "pp", pp), **writes})

    @property
    def _own_split(self) -> tuple[int, int, bool, bool]:
        base = self._base
        return base["pp"], base["vpp"] or 1, bool(base["account_embedding"]), bool(base["account_loss"])

    def _lever(self, parameter: Parameter) -> Axis:
        """The choices of a parameter and, where it applies only sometimes, that it does not.

        They are read with tensor parallelism and the last one without, as sequence parallelism has no effect there.
        """
        options = [
            Option(
                {parameter.key: choice}, {n: spelled(self._baseline, n, v) for n, v in parameter.writes(choice).items()}
            )
            for choice in parameter.choices
        ]
        read_options = self._observed(options, {"tp": max(self._base["tp"], 2)})
        if not parameter.applies_if.names:
            return Axis(parameter.key, read_options)
        applies = parameter.applies_if.evaluate(self._base)
        writes = {name: None if applies else stated(self._baseline, name) for name in parameter.settings}
        seen = self._seen({"tp": 1, **writes})
        last = Option({}, writes, {name: seen[name] for name in read_options[0].variables})
        return Axis(parameter.key, (*read_options, last), parameter.applies_if)

    def _follower(self, key: str) -> Axis:
        """No choice: the baseline's setting where it is kept and, last, where it is dropped."""
        options = [Option({}, {key: self._baseline.settings[key]}), Option({}, {key: None})]
        return Axis(key, self._observed(options), KEPT_WHILE[key])

    def _observed(self, options: Sequence[Option], beside: Mapping[str, Value] | None = None) -> tuple[Option, ...]:
        """The options with the variables they move, read while ``beside`` is written too."""
        seen = [self._seen({**(beside or {}), **option.writes}) for option in options]
        moved = [name for name in self._names if any(values[name] != seen[0][name] for values in seen)]
        pairs = zip(options, seen, strict=True)
        return tuple(replace(option, variables={name: values[name] for name in moved}) for option, values in pairs)

    def _seen(self, writes: Mapping[str, Value]) -> dict[str, Any]:
        values = effective(write(self._baseline, writes), self._cluster)
        return {name: values[name] for name in self._names}
