"""A campaign made again from what it left behind: no cluster, no network, no model; it must come out the same.

The campaign's own program runs once more, in a folder of its own, from the stored spec and recipe file. Its cluster
answers every run from the stored reports, by label; its tuner's language model answers from the transcript alone. Then
everything that the campaign left is compared with everything that came out.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.campaign.database import Damaged, understood
from attune_lab.campaign.seals import ORIGIN, broken_seal
from attune_lab.campaign.spec import CampaignSpec
from attune_lab.campaign.store import DATABASE, CampaignRecord, RunRow, read_campaign
from attune_lab.contracts import EnvironmentFault, RunReport, UserError
from attune_lab.llm.opening import TRANSCRIPT, replaying
from attune_lab.llm.transcript import Transcript
from attune_lab.origin import options_again, transcript_named, versions
from attune_lab.replay_differences import NotRecorded, Replayed, differences
from attune_lab.tuning import conduct, with_options
from attune_lab.workbench import TunerFactory, Workbench, tuner_factory

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec

LARGEST_LOG = 2**30
"""Bytes of a log that is copied for a replay."""


@dataclass(frozen=True)
class Replay:
    """What came of making a campaign again.

    Attributes:
        out: the campaign's folder.
        state: ``finished``; ``open`` for one that was cut off: then what there is was made again; ``damaged`` where
            what is stored contradicts itself: then nothing was.
        runs: how many runs are stored.
        differences: where what came out is not what is stored, one sentence each, the first place first.
        versions: package -> (version then, version now), where they differ.
    """

    out: str
    state: str
    runs: int
    differences: tuple[str, ...]
    versions: Mapping[str, tuple[str | None, str | None]]

    @property
    def reproduced(self) -> bool:
        """Nothing differs."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `attune replay`."""
        return {"reproduced": self.reproduced, **vars(self)}


def replay_campaign(out: Path, factory: TunerFactory | None = None) -> Replay:
    """What comes of making the campaign in ``out`` again. Nothing in ``out`` is written to.

    Args:
        out: the campaign's folder.
        factory: of its tuner; None for the one registered under the campaign's tuner name.

    Raises:
        UserError: no campaign there, one that did not keep what it came from, or a file it needs is gone.
        EnvironmentFault: the disk or the database fails.
    """
    with tempfile.TemporaryDirectory(prefix="attune-replay-") as scratch:
        try:
            record = _read(out, Path(scratch))
            kept = _Kept.of(out, record)
        except Damaged as damage:
            return Replay(str(out), "damaged", 0, (str(damage),), {})
        if edited := broken_seal(record):
            found = [edited]
        else:
            again = _make_again(kept, factory or tuner_factory(kept.spec.tuner), Path(scratch) / "again")
            if isinstance(again.ended, EnvironmentFault) and record.state == "finished":  # so it is not the campaign's
                raise again.ended
            found = differences(out, record, again)
    return Replay(str(out), record.state, len(record.runs), tuple(found), kept.versions())


def _read(out: Path, scratch: Path) -> CampaignRecord:
    """The record of the campaign, read from a copy: beside one that was cut off SQLite keeps files of its own."""
    if not (out / DATABASE).is_file():
        return read_campaign(out)  # which says what is wrong
    for name in (DATABASE, f"{DATABASE}-wal"):
        if (out / name).is_file():
            _copy(out / name, scratch / name)
    try:
        return read_campaign(scratch)
    except (UserError, EnvironmentFault) as error:
        raise type(error)(str(error).replace(str(scratch), str(out))) from error


@dataclass(frozen=True)
class _Kept:
    """What a campaign keeps of itself, understood."""

    out: Path
    record: CampaignRecord
    spec: CampaignSpec
    bench: Workbench
    origin: Mapping[str, Any]
    startup_bounds_s: Mapping[str, float]

    @classmethod
    def of(cls, out: Path, record: CampaignRecord) -> _Kept:
        from attune_lab.cost_model import SimulatedCostModel
        from attune_lab.recipe.carry import Change
        from attune_lab.recipe.files import kept
        from simulator.hardware import parse_cluster

        origin = record.last_event(ORIGIN)
        if origin is None:
            raise UserError(
                f"the campaign in {out} did not keep the recipe file that it came from (an earlier version of attune "
                "made it, or nothing ran yet); make it anew to have one that can be replayed"
            )
        with understood(str(out / DATABASE)):
            _refuse_ended_from_outside(out, record)
            spec = CampaignSpec.from_json(record.spec)
            cluster = parse_cluster(spec.cluster)
            changes = tuple(Change(**change) for change in spec.carried_over)
            bench = Workbench(kept(origin["file"]), spec.baseline, cluster, SimulatedCostModel(cluster), changes)
            origin = {**origin, "versions": dict(origin["versions"]), "folder": str(origin["folder"])}
            return cls(out, record, spec, bench, origin, record.startup_bounds_s)

    def versions(self) -> dict[str, tuple[str | None, str | None]]:
        """Package -> (version then, version now), where they differ."""
        then, now = self.origin["versions"], versions(self.spec.tuner)
        return {name: (then.get(name), now.get(name)) for name in {**then, **now} if then.get(name) != now.get(name)}

    def transcript(self) -> Path | None:
        """Where the transcript is, None when there is none."""
        usual = self.out / TRANSCRIPT
        return transcript_named(self.origin, self.spec.options) or (usual if usual.is_file() else None)


def _refuse_ended_from_outside(out: Path, record: CampaignRecord) -> None:
    """Raise `UserError` where a study ended the search, as of a tuner that hung: nothing repeats that moment."""
    end = record.last_event("search_ended")
    if end is not None and "decisions" not in end and not end["failed"]:
        raise UserError(
            f"the search of the campaign in {out} was ended from outside ({end['reason']}), at a moment that nothing "
            "repeats; a campaign that came to its own end can be replayed"
        )


def _make_again(kept: _Kept, factory: TunerFactory, scratch: Path) -> Replayed:
    """What comes out of the campaign's program, and what ended it if not its own end."""
    scratch.mkdir()
    transcript, copy = kept.transcript(), scratch / TRANSCRIPT
    if transcript is not None:
        _copy(transcript, copy)
    as_then = with_options(factory, options_again(kept.origin, kept.spec.options))
    ended: Exception | None = None
    cluster = RecordedCluster(
        kept.bench.cluster,
        {row.label: row for row in kept.record.runs},
        kept.startup_bounds_s,
        kept.out / "logs",
        scratch / "logs",
    )
    try:
        Transcript(copy, writable=False)  # an edited one is named even where the campaign would not come to the line
        with replaying(copy):
            conduct(kept.spec, kept.bench, scratch, cluster=cluster, factory=as_then, origin=kept.origin)
    except NotRecorded as stop:
        ended = stop
    except (UserError, EnvironmentFault) as error:
        ended = type(error)(str(error).replace(str(copy), str(transcript or kept.out / TRANSCRIPT)))
    return Replayed(scratch, read_campaign(scratch) if (scratch / DATABASE).is_file() else None, ended)


@dataclass(frozen=True)
class RecordedCluster:
    """A cluster that answers each run from the stored report of the same label and recipe.

    Attributes:
        runs: by label.
        startup_bounds_s: seconds that the start-up of a recipe may take, by its digest.
        logs, log_dir: where the campaign has its logs, and where they are copied to, run by run.
    """

    spec: ClusterSpec
    runs: Mapping[str, RunRow]
    startup_bounds_s: Mapping[str, float]
    logs: Path
    log_dir: Path

    def startup_bound_s(self, recipe: Recipe) -> float:
        """As stored.

        Raises:
            NotRecorded: a recipe that the campaign never asked for.
        """
        bound = self.startup_bounds_s.get(recipe.digest)
        if bound is None:
            raise NotRecorded(recipe)
        return bound

    def run(self, recipe: Recipe, steps: int, *, label: str, step_limit_s: float | None = None) -> RunReport:
        """The stored report.

        Raises:
            NotRecorded: no run of this label, one of another recipe, or one that never ended.
            UserError: its log is too large to be copied.
        """
        row = self.runs.get(label)
        if row is None or row.report is None or row.recipe.digest != recipe.digest:
            raise NotRecorded(recipe)
        log = self.logs / Path(row.report.log_path or "").name
        if not log.is_file():
            return row.report
        if (size := log.stat().st_size) > LARGEST_LOG:
            raise UserError(f"{log} has {size:,} bytes, too many to copy for a replay; cut it, or move it away")
        return row.report.model_copy(update={"log_path": str(_copy(log, self.log_dir / log.name))})


def _copy(source: Path, target: Path) -> Path:
    """``target``, which is now a copy.

    Raises:
        UserError: the source is gone, or no regular file.
        EnvironmentFault: it cannot be copied.
    """
    if not source.is_file():
        raise UserError(f"{source}, which the campaign was made with, is gone; put it back to replay the campaign")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise EnvironmentFault(f"{source} cannot be copied ({error.strerror}); free the disk") from error
    return target
