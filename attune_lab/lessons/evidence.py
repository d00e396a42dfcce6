"""What finished campaigns showed of a lesson: observations, kept one by one with where they come from."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from attune_lab.contracts import UserError
from attune_lab.lessons.cells import Cells, Effect, move_of
from attune_lab.lessons.context import Context
from attune_lab.lessons.records import LARGEST_FILE, LearntCampaign, Observation, parse_records, read_records
from attune_lab.recipe.text_files import read_bytes

__all__ = ["KEPT", "Context", "Effect", "Evidence", "Experience", "kept", "pinned", "pinned_options", "takes_evidence"]


KEPT = "kept"
"""Key beside those of `pinned`: the file itself, compressed, as text."""


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

    @staticmethod
    def load(source: object) -> Evidence:
        """The evidence in a file of `attune lessons learn`, named by its path or by what `pinned` or `kept` made of it.

        Raises:
            UserError: no such file, not such a file, or not the one that was pinned.
        """
        if isinstance(source, Mapping):
            file, text = str(source.get("file", "")), source.get(KEPT)
            evidence, digest = _read(file) if text is None else _unpacked(str(text), file)
            if digest != source.get("sha256"):
                raise UserError(f"{source.get('file')} has changed since it was chosen; choose it again, or restore it")
        elif isinstance(source, str | Path):
            evidence, _ = _read(str(source))
        else:
            raise UserError("option lessons must be the path of a file that attune lessons learn wrote")
        return evidence

    @property
    def models(self) -> tuple[str, ...]:
        """The models that speak, sorted."""
        return tuple(sorted({campaign.model for campaign in self.campaigns}))

    def name_of(self, build: str) -> str | None:
        """What the model of this build (see `attune_lab.lessons.context.build_of`) is called; None if it is silent."""
        return next((campaign.model for campaign in self.campaigns if campaign.traits.build == build), None)

    def without_models(self, models: Collection[str]) -> Evidence:
        """The evidence without the campaigns of ``models``, each a name or a build.

        Every campaign of the same build goes with a name, whatever its recipe was called.
        """
        left_out = in_models(self.campaigns, models)
        return Evidence(campaign for campaign in self.campaigns if campaign.digest not in left_out)

    def without_worlds(self, seeds: Container[int]) -> Evidence:
        """The evidence without campaigns in the simulated worlds of ``seeds``.

        What is particular to a world, its physics, versions and defects, is so for every model and on every cluster.
        """
        return Evidence(c for c in self.campaigns if c.provenance == "measured" or c.seed not in seeds)

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
        return Cells(self.campaigns)


def in_models(campaigns: Collection[LearntCampaign], models: Collection[str]) -> frozenset[str]:
    """Digests of the campaigns of ``models``, each a name or a build; whatever has the build of a name goes with it."""
    builds = {campaign.traits.build for campaign in campaigns if {campaign.model, campaign.traits.build} & {*models}}
    return frozenset(campaign.digest for campaign in campaigns if campaign.traits.build in builds)


def pinned(path: Path | str) -> dict[str, Any]:
    """What fixes the evidence in a file, JSON-ready: ``file``, ``sha256``, ``campaigns`` (a number), ``models``.

    `Evidence.load` takes it in place of the path, and refuses a file that has changed since.

    Raises:
        UserError: no such file, or not such a file.
    """
    evidence, digest = _read(str(path))
    counted = {"campaigns": len(evidence.campaigns), "models": list(evidence.models)}
    return {"file": str(path), "sha256": digest, **counted}


def kept(pin: Mapping[str, Any]) -> dict[str, Any]:
    """A pin with the file itself, from which `Evidence.load` reads it whatever becomes of the file.

    Raises:
        UserError: the file is gone, or has changed since it was pinned.
    """
    Evidence.load(pin)
    if KEPT in pin:
        return dict(pin)
    data = read_bytes(Path(pin["file"]), "file of attune lessons learn", LARGEST_FILE)
    return {**pin, KEPT: base64.b85encode(zlib.compress(data)).decode()}


def takes_evidence(tuner: str, options: Mapping[str, Any]) -> bool:
    """Whether a tuner (its name, wrappers after it) is given a file of evidence by its options."""
    return tuner.partition("+")[0] == "attune" and options.get("lessons") is not None


def pinned_options(tuner: str, options: Mapping[str, Any], folder: Path = Path()) -> dict[str, Any]:
    """The options of a tuner with its evidence `pinned`, so that a campaign says what it knew and never knows more.

    Args:
        tuner, options: as in a request to tune.
        folder: where a relative path is looked for.

    Raises:
        UserError: the file is missing, not such a file, or has changed since it was pinned.
    """
    if not takes_evidence(tuner, options):
        return dict(options)
    source = options["lessons"]
    if isinstance(source, str):
        return {**options, "lessons": pinned(folder / source)}
    Evidence.load(source)
    return dict(options)


def _read(path: str) -> tuple[Evidence, str]:
    """The evidence in a file and its SHA-256; a file that has not changed is read once in a process."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return _read_once(path)  # which says what is wrong
    return _read_once(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=4)
def _unpacked(text: str, file: str) -> tuple[Evidence, str]:
    """The evidence in the text that `kept` made of ``file``, and its SHA-256."""
    try:
        data = zlib.decompressobj().decompress(base64.b85decode(text), LARGEST_FILE)
    except (ValueError, zlib.error) as error:
        raise UserError(f"what was kept of {file} with the campaign is damaged; restore the campaign") from error
    return Evidence(parse_records(data, file).campaigns), hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=4)
def _read_once(path: str, *_: int) -> tuple[Evidence, str]:
    records, digest = read_records(Path(path))
    return Evidence(records.campaigns), digest
