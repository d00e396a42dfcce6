"""The database a store writes to: engines, the folder's lock, and failures turned into one sentence."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from attune_lab.contracts import EnvironmentFault

_BUSY_TIMEOUT_S = 30


def locked(out: Path, what: str = "campaign") -> FileLock:
    """The lock of a folder that holds a ``what``, held; the holder's process id is beside it for others to print."""
    lock, holder = FileLock(out / f"{what}.lock"), out / f"{what}.pid"
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        pid = (holder.read_text().strip() if holder.exists() else "") or "unknown"  # it may be about to say so
        raise EnvironmentFault(
            f"another attune process (pid {pid}) is driving the {what} in {out}; wait for it or use another --out"
        ) from error
    holder.write_text(f"{os.getpid()}\n")
    return lock


def open_engine(url: str | URL) -> Engine:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def read_only_engine(path: Path) -> Engine:
    """Without a write-ahead log nobody writes, and ``immutable`` lets SQLite read where it cannot even lock."""
    mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "immutable=1"
    uri = f"file:{quote(str(path.resolve()))}?{mode}"
    return create_engine("sqlite://", creator=lambda: sqlite3.connect(uri, uri=True), poolclass=NullPool)


_PRAGMAS = ("journal_mode=WAL", "foreign_keys=ON", "synchronous=NORMAL", f"busy_timeout={_BUSY_TIMEOUT_S * 1000}")
"""Beside a write-ahead log NORMAL is enough against a process that is killed at any instant: what it committed is with
the operating system. A power cut leaves a whole database too, but may take the last commits with it.

**Source:** https://www.sqlite.org/pragma.html#pragma_synchronous
"""


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver would otherwise commit before DDL; BEGIN is ours
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


@contextmanager
def transaction(engine: Engine, where: str) -> Iterator[Connection]:
    """One transaction; database failures become one sentence with the way out."""
    try:
        with engine.begin() as connection:
            yield connection
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        if isinstance(error, DatabaseError) and ("not a database" in cause or "malformed" in cause):
            raise EnvironmentFault(
                f"{where} is damaged or no campaign database ({cause}); move it away or use another --out"
            ) from error
        raise EnvironmentFault(
            f"the campaign database {where} failed ({cause}); nothing is lost, run the same command again once it works"
        ) from error


MISUNDERSTANDINGS = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What reading stored text ends in that was not written by us; pydantic's errors are ValueErrors."""


class Damaged(EnvironmentFault):
    """What is stored cannot have been written by us."""


@contextmanager
def understood(where: str) -> Iterator[None]:
    """While stored text is read: what cannot be understood was not written by us, and becomes one sentence."""
    try:
        yield
    except MISUNDERSTANDINGS as error:
        cause = next(iter(str(error).splitlines()), "no more is said")
        raise Damaged(
            f"{where} was edited or damaged ({type(error).__name__}: {cause}); move it away or use another --out"
        ) from error
