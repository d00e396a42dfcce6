"""What works on this machine. Nothing here imports a heavy package or writes outside a temporary folder."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One check. ``needed``: the simulated path cannot do without it."""

    name: str
    works: bool
    found: str
    purpose: str
    needed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain dictionary."""
        return asdict(self)


def examine() -> list[Finding]:
    """All checks, in the order a person reads them."""
    return [
        _check("Python", platform.python_version, "everything", ok=sys.version_info >= (3, 11)),
        *(_package(name, "simulating and tuning", needed=True) for name in ("attune-lab", "numpy", "scipy")),
        _package("SQLAlchemy", "the campaign store", needed=True),
        _check("campaign database", _sqlite, "campaigns that survive a kill"),
        _package("matplotlib", "pictures (the extra plots)"),
        _package("pandas", "kernel tables (the extra calibration), studies (the extra study)"),
        _package("pyarrow", "kernel tables, studies"),
        _package("torch", "training on this machine, the tests' oracles (the extra train)"),
        _program("torchrun", "training on this machine"),
        _program("sbatch", "a Slurm cluster (no adapter for one ships yet)"),
        _package("anthropic", "an LLM policy (the extra agent)"),
        Finding(
            "ANTHROPIC_API_KEY",
            bool(os.environ.get("ANTHROPIC_API_KEY")),
            "set" if os.environ.get("ANTHROPIC_API_KEY") else "not set",
            "an LLM policy (the catalog policy needs none)",
        ),
        Finding("CPU cores", True, str(os.cpu_count() or "unknown"), "running campaigns side by side"),
    ]


def _check(name: str, probe: Callable[[], str], purpose: str, *, ok: bool = True) -> Finding:
    """A needed check; an OSError or RuntimeError of the probe is what was found."""
    try:
        return Finding(name, ok, probe(), purpose, needed=True)
    except (OSError, RuntimeError) as error:
        return Finding(name, False, str(error), purpose, needed=True)


def _package(name: str, purpose: str, *, needed: bool = False) -> Finding:
    try:
        return Finding(name, True, metadata.version(name), purpose, needed)
    except metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", purpose, needed)


def _program(name: str, purpose: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or "not on PATH", purpose)


def _sqlite() -> str:
    """Create, write and read a database with the settings the store uses."""
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(os.path.join(folder, "probe.db"))
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            connection.execute("CREATE TABLE probe (value INTEGER)")
            connection.execute("INSERT INTO probe VALUES (1)")
            connection.commit()
        except sqlite3.Error as error:
            raise RuntimeError(f"SQLite: {error}") from error
        finally:
            connection.close()
    return f"SQLite {sqlite3.sqlite_version}, journal {mode}"
