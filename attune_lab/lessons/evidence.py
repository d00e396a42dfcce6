"""What finished campaigns showed of a lesson: observations, kept one by one with where they come from."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from attune_lab.contracts import UserError
from attune_lab.lessons.cells import Cells, Effect, move_of
from attune_lab.lessons.context import Context
from attune_lab.lessons.records import LearntCampaign, Observation, Records, read_records

__all__ = ["Context", "Effect", "Evidence", "Experience", "pinned"]


class Experience(Protocol):
    """Past campaigns as the agent asks them."""

    def effect(self, lesson: str, edits: Mapping[str, Any], context: Context) -> Effect | None:
        """What is known of the lesson's move ``edits`` (parameter -> new value) in ``context``; None if nothing."""
        ...


class Evidence:
    """The campaigns of a file that count, as an `Experience`.

    Attributes:
        campaigns: those that are not retracted.
    """

    def __init__(self, campaigns: Iterable[LearntCampaign]) -> None:
        self.campaigns = tuple(campaign for campaign in campaigns if not campaign.standing.retracted)
        self._effects: dict[tuple[Any, ...], Effect | None] = {}

    @classmethod
    def load(cls, source: Path | str | Mapping[str, Any]) -> Evidence:
        """The evidence in a file of `attune lessons learn`, named by its path or by what `pinned` made of it.

        Raises:
            UserError: no such file, not such a file, or not the one that was pinned.
        """
        if isinstance(source, Mapping):
            records, digest = _read(str(source.get("file", "")))
            if digest != source.get("sha256"):
                raise UserError(f"{source.get('file')} has changed since it was chosen; choose it again, or restore it")
        elif isinstance(source, str | Path):
            records, _ = _read(str(source))
        else:
            raise UserError("option lessons must be the path of a file that attune lessons learn wrote")
        return cls(records.campaigns)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that speak, sorted."""
        return tuple(sorted({campaign.model for campaign in self.campaigns}))

    @property
    def builds(self) -> frozenset[str]:
        """What those models are, whatever they are called; see `attune_lab.lessons.context.build_of`."""
        return frozenset(campaign.traits.build for campaign in self.campaigns)

    def without_models(self, models: Collection[str]) -> Evidence:
        """The evidence without the campaigns of ``models``, each a name or a build.

        Every campaign of the same build goes with a name, whatever its recipe was called.
        """
        named = {c.traits.build for c in self.campaigns if c.model in models} | set(models)
        return Evidence(c for c in self.campaigns if c.model not in named and c.traits.build not in named)

    def observations(self) -> Iterator[tuple[LearntCampaign, Observation]]:
        """Every observation that counts, with its campaign."""
        return ((campaign, seen) for campaign in self.campaigns for seen in campaign.observations)

    def effect(self, lesson: str | None, edits: Mapping[str, Any], context: Context) -> Effect | None:
        """See `Experience.effect`; ``lesson`` None for a move that no lesson names.

        Tries of the same or a similar move count by how alike move and context are; see `attune_lab.lessons.cells`.
        """
        traits = json.dumps(dict(context.traits), sort_keys=True, default=str)
        key = (lesson, move_of(edits), traits)
        if key not in self._effects:
            self._effects[key] = self._cells.effect(lesson, key[1], context.traits)
        return self._effects[key]

    @cached_property
    def _cells(self) -> Cells:
        return Cells(self.observations())


def pinned(path: Path | str) -> dict[str, Any]:
    """What fixes the evidence in a file, JSON-ready: ``file``, ``sha256``, ``campaigns`` (a number), ``models``.

    `Evidence.load` takes it in place of the path, and refuses a file that has changed since.

    Raises:
        UserError: no such file, or not such a file.
    """
    records, digest = _read(str(path))
    evidence = Evidence(records.campaigns)
    counted = {"campaigns": len(evidence.campaigns), "models": list(evidence.models)}
    return {"file": str(path), "sha256": digest, **counted}


def _read(path: str) -> tuple[Records, str]:
    """See `read_records`; a file that has not changed is read once in a process."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return read_records(Path(path))  # which says what is wrong
    return _read_once(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=4)
def _read_once(path: str, *_: int) -> tuple[Records, str]:
    return read_records(Path(path))
