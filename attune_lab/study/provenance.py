"""Where the figures of a study come from: code, data, versions, seeds, machine."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attune_lab.study.spec import StudySpec

_LIBRARIES = ("numpy", "scipy", "pandas", "pyarrow", "joblib", "optuna", "scikit-optimize", "scikit-learn", "torch")


def provenance(spec: StudySpec, *, engine: str, workers: int) -> dict[str, Any]:
    """What a reader needs to make the figures of a study again, JSON-ready."""
    return {
        "study": spec.name,
        "figures": "simulated",
        **circumstances(),
        "worlds": {"first": spec.worlds.first, "count": spec.worlds.count},
        "study_digest": hashlib.sha256(spec.model_dump_json().encode()).hexdigest(),
        "spec": spec.model_dump(mode="json"),
        "engine": engine,
        "workers": workers,
    }


def circumstances() -> dict[str, Any]:
    """Code, data, versions, machine and date, JSON-ready.

    ``commit`` is None where the code is no git checkout; a checkout with changes ends in ``+changes``.
    """
    import attune_lab

    return {
        "version": attune_lab.__version__,
        "commit": commit(),
        "data": data_digest(),
        "python": platform.python_version(),
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name))},
        "machine": f"{os.cpu_count()} x {platform.machine()} {platform.system()} {platform.release()}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@cache
def commit() -> str | None:
    """The commit of the checkout this code runs from."""
    root = Path(str(files("attune_lab"))).parent
    if not (root / ".git").exists():
        return None
    try:
        named = [_git(root, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))]
    except (OSError, subprocess.SubprocessError):  # git is missing, or refuses the folder
        return None
    return named[0] + ("+changes" if named[1] else "")


def data_digest() -> str:
    """SHA-256 over the names and contents of all data that ships with the packages."""
    digest = hashlib.sha256()
    for package in ("attune_lab", "simulator"):
        root = Path(str(files(package))) / "data"
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            content = path.read_bytes()
            digest.update(f"{package}/{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
