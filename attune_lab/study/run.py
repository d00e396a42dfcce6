"""A study from its file to its tables: what is left to do is found in its folder, done, and collected."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.campaign.database import locked
from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.study.engines import Engine, run_all
from attune_lab.study.jobs import TRIED_AGAIN, CampaignJob, OracleJob, campaign_jobs, oracle_jobs, read_record
from attune_lab.study.trial import refuse_unusable_tuners
from attune_lab.tuning import refuse_hopeless
from attune_lab.writing import write_file

if TYPE_CHECKING:
    from attune_lab.study.spec import StudySpec
    from attune_lab.study.tables import Tables

_LOOK_S = 0.5
"""Seconds between two looks at the records of a study that runs."""


class StudyObserver:
    """Watches a study; subclass it and override what you show. Every method does nothing by default."""

    def begun(self, campaigns: int, done: int, optima: int) -> None:
        """The study begins: its campaigns, those that were done before, and the optima to look up."""

    def campaign_done(self, job: CampaignJob, record: dict[str, Any]) -> None:
        """A campaign is over; ``record`` is what it left."""

    def optimum_done(self, job: OracleJob, record: dict[str, Any]) -> None:
        """The optimum of a world is known, or known not to be found."""


def run_study(
    spec: StudySpec,
    out: Path,
    *,
    engine: Engine = "local",
    workers: int = 1,
    address: str | None = None,
    observer: StudyObserver | None = None,
) -> Tables:
    """The tables of the study in folder ``out``: begun, resumed, extended, or (when all is done) read back.

    Args:
        spec: the study.
        out: its folder, created when missing; on a cluster, one that all machines see.
        engine, workers, address: see `attune_lab.study.engines.run_all`.
        observer: told what happens, for display.

    Raises:
        UserError: ``out`` holds a study whose campaigns differ from those asked for; no campaign could begin, or a
            tuner cannot be set up.
        EnvironmentFault: another process drives it, the folder cannot be written, or the cluster is away.
    """
    from attune_lab.study.provenance import provenance
    from attune_lab.study.tables import STUDY_FILE, write_tables

    out, observer = out.resolve(), observer or StudyObserver()
    with _driven(out):
        campaigns, optima = list(campaign_jobs(spec, out)), list(oracle_jobs(spec, out))
        left = [job for job in campaigns if _is_left(job)]
        unknown = [job for job in optima if _is_left(job)]
        write_file(out / STUDY_FILE, json.dumps(spec.model_dump(mode="json"), indent=1).encode())
        observer.begun(len(campaigns), len(campaigns) - len(left), len(unknown))
        jobs: list[CampaignJob | OracleJob] = [*left, *unknown]
        if jobs:
            able = _able_scenario(left)
            refuse_unusable_tuners([job for job in left if job.scenario == able])
            for job in jobs:  # what is tried again has a record
                job.record.unlink(missing_ok=True)
            with _watched(jobs, observer):
                run_all(jobs, engine=engine, workers=min(workers, len(jobs)), address=address)
        return write_tables(spec, out, provenance(spec, engine=engine, workers=workers))


@contextmanager
def _driven(out: Path) -> Iterator[None]:
    """While this process, and no other, drives the study in a folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = locked(out, "study")
    except OSError as error:
        raise EnvironmentFault(f"--out {out} cannot be written ({error.strerror}); choose another folder") from error
    try:
        yield
    finally:
        lock.release()


def _is_left(job: CampaignJob | OracleJob) -> bool:
    """Whether a job is still to be done.

    Raises:
        UserError: it was done under other conditions.
    """
    record = read_record(job)
    if record is None or record["status"] in TRIED_AGAIN:
        return True
    asked = json.loads(json.dumps(job.identity))
    differing = [key for key in asked if record["identity"].get(key) != asked[key]]
    if differing:
        names = ", ".join(key.replace("_", " ") for key in differing)
        raise UserError(
            f"{job.folder} was made under other settings ({names}); use another --out, or change the study file back"
        )
    return False


def _able_scenario(jobs: Sequence[CampaignJob]) -> str | None:
    """The first scenario of which campaigns can begin, None where nothing is left; the others are rows that say why.

    Raises:
        UserError: no campaign at all could begin.
    """
    refusals = []
    for job in {job.scenario: job for job in jobs}.values():
        try:
            refuse_hopeless(job.request())
            return job.scenario
        except UserError as error:
            refusals.append(str(error))
    if refusals:
        raise UserError("; ".join(dict.fromkeys(refusals)))
    return None


@contextmanager
def _watched(jobs: Sequence[CampaignJob | OracleJob], observer: StudyObserver) -> Iterator[None]:
    """Meanwhile tell the observer of every record that appears; whichever machine wrote it, it is in the folder."""
    waiting, over = list(jobs), threading.Event()

    def look() -> None:
        for job in list(waiting):
            if (record := read_record(job)) is not None:
                waiting.remove(job)
                tell = observer.campaign_done if isinstance(job, CampaignJob) else observer.optimum_done
                tell(job, record)  # type: ignore[arg-type]  # each is told of its own kind

    def watch() -> None:
        with suppress(EnvironmentFault):  # a damaged record; the last look says so
            while not over.wait(_LOOK_S):
                look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        look()
