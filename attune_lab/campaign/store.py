"""The store: every run of a campaign, in one SQLite file (or any database by URL).

Every change is one transaction, so a campaign killed at any instant leaves either the state before it or the
state after it. One process drives a campaign: a lock on its folder, which the operating system frees when that
process ends, however it ends. Readers open the file read-only and never wait for the driver.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    delete,
    insert,
    inspect,
    select,
    update,
)

from attune_lab.campaign.budget import to_us
from attune_lab.campaign.database import locked, open_engine, read_only_engine, transaction, understood
from attune_lab.campaign.seals import SEAL, first_seal, sealed
from attune_lab.campaign.spec import CampaignSpec, differences
from attune_lab.contracts import EnvironmentFault, RunReport, UserError
from attune_lab.recipe import Recipe

SCHEMA_VERSION = 1
DATABASE = "campaign.db"
STARTUP_BOUND = "startup_bound"
"""Kind of events: the digest of a recipe, and the seconds its start-up may take."""

_FOR_EVER_S = 1e9

_METADATA = MetaData()
_CAMPAIGN = Table(
    "campaign",
    _METADATA,
    Column("id", Integer, primary_key=True),
    Column("key", String(1024), nullable=False, unique=True),
    Column("schema_version", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    Column("state", String(16), nullable=False),  # open, finished
    Column("result", Text),
)
_RUNS = Table(
    "runs",
    _METADATA,
    Column("id", Integer, primary_key=True),
    Column("campaign_id", ForeignKey("campaign.id"), nullable=False),
    Column("label", String(64), nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("recipe_digest", String(64), nullable=False),
    Column("recipe", Text, nullable=False),
    Column("proposal", Text, nullable=False),
    Column("reserved_us", BigInteger, nullable=False),
    Column("charged_us", BigInteger),
    Column("report", Text),
    Column("repeats", String(64)),
    Column("state", String(16), nullable=False),  # started, finished
    UniqueConstraint("campaign_id", "label"),
)
_EVENTS = Table(
    "events",
    _METADATA,
    Column("id", Integer, primary_key=True),
    Column("campaign_id", ForeignKey("campaign.id"), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("data", Text, nullable=False),
)


_INSERT, _INSERT_EVENT = insert(_RUNS), insert(_EVENTS)
_FINISH = update(_RUNS).where(_RUNS.c.campaign_id == bindparam("of_campaign"), _RUNS.c.label == bindparam("of_label"))


@dataclass(frozen=True)
class RunRow:
    """One run as stored.

    Attributes:
        label: identity of the run in its campaign.
        purpose: ``baseline``, ``twin``, ``search`` or ``finalist``.
        recipe: what ran.
        proposal: ``changed``, ``reason``, ``lesson``, ``predicted`` of the proposal behind it, JSON-ready.
        reserved_us: upper bound of its cost, GPU-microseconds.
        charged_us: what it cost, None until it finished.
        report: what it told, None until it finished.
        repeats: label of the earlier run that answered this one for free.
    """

    label: str
    purpose: str
    recipe: Recipe
    proposal: Mapping[str, Any]
    reserved_us: int = 0
    charged_us: int | None = None
    report: RunReport | None = None
    repeats: str | None = None


@dataclass(frozen=True)
class CampaignRecord:
    """All that is stored of one campaign. ``result`` is its JSON text once ``state`` is ``finished``."""

    spec: Mapping[str, Any]
    state: str
    result: str | None
    runs: tuple[RunRow, ...]
    events: tuple[tuple[str, Any], ...]

    @property
    def startup_bounds_s(self) -> dict[str, float]:
        """Seconds that the start-up of a recipe may take, by its digest, as the cluster said.

        Raises:
            ValueError, TypeError: they were edited.
        """
        bounds = {str(digest): float(seconds) for digest, seconds in self._all(STARTUP_BOUND)}
        if not all(0 <= seconds < _FOR_EVER_S for seconds in bounds.values()):
            raise ValueError("a start-up is bounded by no time there is")
        return bounds

    def _all(self, kind: str) -> list[Any]:
        return [data for name, data in self.events if name == kind]

    def last_event(self, kind: str) -> Any | None:
        """The data of the last event of a kind, None when there is none."""
        return next(reversed(self._all(kind)), None)


class Store:
    """The driver's view: reads and writes one campaign. Use `open_store`; close it, or leave its context."""

    def __init__(self, engine: Engine, campaign_id: int, where: str, lock: FileLock) -> None:
        self._engine = engine
        self._id = campaign_id
        self.where = where
        self._lock = lock

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and let another process drive the campaign."""
        self._engine.dispose()
        self._lock.release()

    @cached_property
    def _rows(self) -> dict[str, RunRow]:
        """Every stored run by label, in the order they were started; read once, as the lock keeps other writers out."""
        return {row.label: row for row in self.read().runs}

    @cached_property
    def _seal(self) -> str:
        """The last seal; of a campaign that has none yet, the one that its first run builds on."""
        record = self.read()
        return str(record.last_event(SEAL) or first_seal(record))

    @cached_property
    def startup_bounds_s(self) -> dict[str, float]:
        """Seconds that the start-up of a recipe may take, by its digest, as the cluster said."""
        record = self.read()
        with understood(self.where):
            return record.startup_bounds_s

    def keep_startup_bound(self, digest: str, seconds: float) -> None:
        """Keep what the cluster says of a recipe's start-up."""
        self.startup_bounds_s[digest] = seconds
        self.add_event(STARTUP_BOUND, [digest, seconds])

    def run(self, label: str) -> RunRow | None:
        """The run called ``label``, None when it was never started."""
        return self._rows.get(label)

    def start(self, row: RunRow) -> None:
        """Record that a run is about to start.

        Raises:
            ValueError: a run of this label is already there.
        """
        self._insert(row, state="started")

    def finish(self, label: str, report: RunReport, charged_us: int) -> RunRow:
        """Record the report of a started run and what it is charged; the run as it is stored now.

        Raises:
            ValueError: no such run, or it is finished already.
        """
        row = self._rows.get(label)
        if row is None or row.report is not None:
            raise ValueError(f"run {label} was not started, or is finished already")
        text = report.model_dump_json()
        row = replace(row, charged_us=charged_us, report=RunReport.model_validate_json(text))
        of = {"of_campaign": self._id, "of_label": label}
        seal = sealed(self._seal, row)
        with transaction(self._engine, self.where) as connection:
            connection.execute(_FINISH, {**of, "state": "finished", "charged_us": charged_us, "report": text})
            self._insert_event(connection, SEAL, seal)
        self._rows[label], self._seal = row, seal
        return row

    def record(self, row: RunRow) -> None:
        """Record a run that cost nothing: refused, or answered from an earlier one.

        Raises:
            ValueError: a run of this label is already there.
        """
        self._insert(row, state="finished")

    def runs(self) -> tuple[RunRow, ...]:
        """All runs, in the order they were started."""
        return tuple(self._rows.values())

    def add_event(self, kind: str, data: Any) -> None:
        """Append a JSON-ready event."""
        with transaction(self._engine, self.where) as connection:
            self._insert_event(connection, kind, data)

    def event(self, kind: str) -> Any | None:
        """The data of the first event of a kind, None when there is none."""
        first = select(_EVENTS.c.data).where(_EVENTS.c.campaign_id == self._id, _EVENTS.c.kind == kind)
        with transaction(self._engine, self.where) as connection:
            text = connection.execute(first.order_by(_EVENTS.c.id).limit(1)).scalar_one_or_none()
        with understood(self.where):
            return None if text is None else json.loads(text)

    def finish_campaign(self, result: str) -> None:
        """Record the campaign's result (JSON text) and close it for good."""
        with transaction(self._engine, self.where) as connection:
            connection.execute(
                update(_CAMPAIGN).where(_CAMPAIGN.c.id == self._id).values(state="finished", result=result)
            )

    def read(self) -> CampaignRecord:
        """All that is stored of the campaign."""
        return _read(self._engine, self.where, _CAMPAIGN.c.id == self._id)

    def _insert(self, row: RunRow, *, state: str) -> None:
        if row.label in self._rows:
            raise ValueError(f"run {row.label} is stored already")
        proposal = json.dumps(dict(row.proposal))
        values = {
            "campaign_id": self._id,
            "label": row.label,
            "purpose": row.purpose,
            "recipe_digest": row.recipe.digest,
            "recipe": json.dumps(row.recipe.canonical()),
            "proposal": proposal,
            "reserved_us": row.reserved_us,
            "charged_us": row.charged_us,
            "report": None if row.report is None else row.report.model_dump_json(),
            "repeats": row.repeats,
            "state": state,
        }
        row = replace(row, proposal=json.loads(proposal))
        seal = self._seal if row.report is None else sealed(self._seal, row)
        with transaction(self._engine, self.where) as connection:
            connection.execute(_INSERT, values)
            if row.report is not None:
                self._insert_event(connection, SEAL, seal)
        self._rows[row.label], self._seal = row, seal

    def _insert_event(self, connection: Connection, kind: str, data: Any) -> None:
        connection.execute(_INSERT_EVENT, {"campaign_id": self._id, "kind": kind, "data": json.dumps(data)})


def open_store(out: Path, spec: CampaignSpec, *, url: str | None = None) -> Store:
    """The store of the campaign in folder ``out``, created when it is not there, locked for this process.

    Args:
        out: the campaign's folder.
        spec: the campaign asked for.
        url: SQLAlchemy URL of a database that holds many campaigns, told apart by their folder; None for one
            SQLite file in ``out``.

    Raises:
        UserError: ``out`` holds another campaign, or something else.
        EnvironmentFault: another process drives it, ``out`` cannot be written, or the database fails.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = locked(out)
    except OSError as error:
        raise EnvironmentFault(f"--out {out} cannot be written ({error.strerror}); choose another folder") from error
    where = url or str(out / DATABASE)
    try:
        if url is None:
            _refuse_foreign(out / DATABASE)
        engine = open_engine(url or URL.create("sqlite", database=str(out / DATABASE)))
        key = str(out.resolve()) if url else "campaign"
        return Store(engine, _enter(engine, key, spec, where), where, lock)
    except BaseException:
        lock.release()
        raise


def read_campaign(out: Path, *, url: str | None = None) -> CampaignRecord:
    """All that is stored of the campaign in ``out``. Opens the database read-only and changes nothing.

    Raises:
        UserError: no campaign there.
        EnvironmentFault: the database fails.
    """
    path = out / DATABASE
    if url is None and not path.is_file():
        raise UserError(f"{out} holds no campaign; give the --out folder of attune tune")
    key = str(out.resolve()) if url else "campaign"
    engine = open_engine(url) if url else read_only_engine(path)
    try:
        return _read(engine, url or str(path), _CAMPAIGN.c.key == key)
    finally:
        engine.dispose()


def _refuse_foreign(path: Path) -> None:
    """Raise `UserError` when ``path`` is somebody else's file; opened read-only, so that it stays as it is."""
    if not path.exists() or path.stat().st_size == 0:
        return
    engine = read_only_engine(path)
    try:
        with transaction(engine, str(path)) as connection:
            present = set(inspect(connection).get_table_names())
    finally:
        engine.dispose()
    if present and not set(_METADATA.tables) <= present:
        raise UserError(f"{path} is a database of something else; use another --out")


def _enter(engine: Engine, key: str, spec: CampaignSpec, where: str) -> int:
    """The id of the campaign, made with its tables in one transaction when it is new."""
    asked = spec.to_json()
    with transaction(engine, where) as connection:
        _METADATA.create_all(connection)
        found = connection.execute(select(_CAMPAIGN).where(_CAMPAIGN.c.key == key)).one_or_none()
        if found is None:
            made = connection.execute(
                insert(_CAMPAIGN).values(key=key, schema_version=SCHEMA_VERSION, spec=json.dumps(asked), state="open")
            )
            assert made.inserted_primary_key is not None
            return int(made.inserted_primary_key[0])
        if found.schema_version != SCHEMA_VERSION:
            raise UserError(
                f"{where} was written by another version of attune (schema {found.schema_version}, "
                f"here {SCHEMA_VERSION}); use that version or another --out"
            )
        with understood(where):
            differing = differences(json.loads(found.spec), asked)
        begun = connection.execute(select(_RUNS.c.id).where(_RUNS.c.campaign_id == found.id)).first()
        if differing and begun is None:  # refused before its first run, as for a budget too small: nothing to lose
            connection.execute(update(_CAMPAIGN).where(_CAMPAIGN.c.id == found.id).values(spec=json.dumps(asked)))
            connection.execute(delete(_EVENTS).where(_EVENTS.c.campaign_id == found.id))
        elif differing:
            raise UserError(f"{where} holds another campaign ({'; '.join(differing)}); use another --out")
    return int(found.id)


def _read(engine: Engine, where: str, condition: Any) -> CampaignRecord:
    with transaction(engine, where) as connection:
        if not inspect(connection).has_table("campaign"):
            raise UserError(
                f"{where} holds no campaign, or is a database of something else; give the --out folder of attune tune"
            )
        campaign = connection.execute(select(_CAMPAIGN).where(condition)).one_or_none()
        if campaign is None:
            raise UserError(f"{where} does not hold this campaign; give the --out folder of attune tune")
        runs = connection.execute(select(_RUNS).where(_RUNS.c.campaign_id == campaign.id).order_by(_RUNS.c.id)).all()
        events = connection.execute(
            select(_EVENTS).where(_EVENTS.c.campaign_id == campaign.id).order_by(_EVENTS.c.id)
        ).all()
    with understood(where):
        if campaign.state not in ("open", "finished"):
            raise ValueError(f"the state of the campaign is {campaign.state!r}")
        return CampaignRecord(
            json.loads(campaign.spec),
            campaign.state,
            campaign.result,
            tuple(_run_row(row._mapping) for row in runs),
            tuple((row.kind, json.loads(row.data)) for row in events),
        )


def _run_row(stored: Mapping[Any, Any]) -> RunRow:
    """Raises ValueError where a row contradicts itself: the ledger rests on what is charged here."""
    row = RunRow(
        label=stored["label"],
        purpose=stored["purpose"],
        recipe=Recipe.from_canonical(json.loads(stored["recipe"])),
        proposal=json.loads(stored["proposal"]),
        reserved_us=stored["reserved_us"],
        charged_us=stored["charged_us"],
        report=None if stored["report"] is None else RunReport.model_validate_json(stored["report"]),
        repeats=stored["repeats"],
    )
    if not all(isinstance(text, str) for text in (row.label, row.purpose, row.repeats or "")):
        raise ValueError(f"the label or the purpose of run {row.label!r} is no text")
    if not {"changed", "reason", "lesson", "predicted"} <= {*row.proposal}:
        raise ValueError(f"the proposal behind run {row.label} is not whole")
    if row.recipe.digest != stored["recipe_digest"]:
        raise ValueError(f"the recipe of run {row.label} is not the one that ran")
    owed = None if row.report is None else min(to_us(row.report.gpu_hours), row.reserved_us)
    if row.reserved_us < 0 or row.charged_us != owed:
        raise ValueError(f"run {row.label} is charged {row.charged_us} GPU-microseconds where {owed} are due")
    return row
