"""Which ranks work together: the process groups of a layout.

Ranks are numbered tp fastest, then cp, dp and pp; experts divide the ranks of one stage anew into etp, ep and edp.

**Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/core/parallel_state.py (order ``tp-cp-ep-dp-pp``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch.distributed as dist

from attune_lab.trainer.config import TrainerConfig


class Axis(NamedTuple):
    """The ranks that differ in one coordinate only, and this rank's place among them."""

    ranks: tuple[int, ...] = (0,)
    rank: int = 0
    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


@dataclass(frozen=True)
class Mesh:
    """The axes of one rank. ``replicas`` are dp x cp, ``tokens`` tp x cp, ``stage`` tp x cp x dp."""

    tp: Axis
    cp: Axis
    dp: Axis
    pp: Axis
    replicas: Axis
    tokens: Axis
    stage: Axis
    ep: Axis
    etp: Axis
    edp: Axis
    expert_parallel: Axis
    ends: Axis
    world: Axis

    @classmethod
    def build(cls, config: TrainerConfig) -> Mesh:
        """The axes of this process in the default process group, which has exactly ``config.world_size`` ranks.

        Collective: every rank makes every group, in the same order.
        """
        rank = dist.get_rank() if dist.is_initialized() else 0
        made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        own: dict[str, Axis] = {}
        for axis in fields(cls):
            for ranks in _rank_sets(config, axis.name):
                if ranks not in made:
                    made[ranks] = dist.new_group(list(ranks)) if len(ranks) > 1 else None
                if rank in ranks:
                    own[axis.name] = Axis(ranks, ranks.index(rank), made[ranks])
        return cls(**{axis.name: own.get(axis.name, Axis((rank,))) for axis in fields(cls)})

    def close(self) -> None:
        """Destroys the groups."""
        for group in {axis.group for axis in self._axes() if axis.group is not None}:
            dist.destroy_process_group(group)

    def _axes(self) -> Iterator[Axis]:
        return (getattr(self, axis.name) for axis in fields(self))


_AXES = {
    "tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp", "replicas": "cp dp", "tokens": "tp cp", "stage": "tp cp dp",
    "ep": "ep", "etp": "etp", "edp": "edp", "expert_parallel": "etp ep", "world": "tp cp dp pp",
}  # fmt: skip


def _rank_sets(config: TrainerConfig, axis: str) -> list[tuple[int, ...]]:
    """All groups of one axis; together they hold every rank once (``ends``: the outer stages only)."""
    if axis == "ends":
        last = config.world_size - config.world_size // config.pp
        return [tuple(sorted({r, last + r})) for r in range(config.world_size // config.pp)]
    names = _AXES[axis].split()
    dense = {"tp": config.tp, "cp": config.cp, "dp": config.dp, "pp": config.pp}
    experts = {"etp": config.etp, "ep": config.ep, "edp": config.edp, "pp": config.pp}
    sizes = dense if set(names) <= dense.keys() else experts
    sets: dict[tuple[int, ...], list[int]] = {}
    for rank in range(config.world_size):
        coordinates, rest = {}, rank
        for name, size in sizes.items():
            rest, coordinates[name] = divmod(rest, size)
        sets.setdefault(tuple(c for name, c in coordinates.items() if name not in names), []).append(rank)
    return [tuple(ranks) for ranks in sets.values()]
