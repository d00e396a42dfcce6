"""Finished runs, kept by what they are made of: settings, fault, probes, and the source of trainer and fault.

An entry is a folder with the run's own files (``train.log``, ``signals.json``) beside ``config.json`` and
``result.json``. It appears whole or not at all, whatever is killed, and several runners may share a cache.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

import attune_lab.signals
import attune_lab.trainer
from attune_lab.contracts import EnvironmentFault
from attune_lab.writing import refuse_unwritable
from experiments.faults.plan import Fault, Run

DEFAULT = Path("~/.cache/attune-lab/faults")
_PARTIAL = f"partial-{os.uname().nodename}"
CONFIG, RESULT = "config.json", "result.json"
RUNS_NOTHING = ("pool.py", "__main__.py", "megatron.py")
"""Files of the trainer and the signals that do not take part in what a run computes."""


class Result(BaseModel):
    """How a run ended. ``files`` has the SHA-256 of each file beside it, so that a damaged entry is noticed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    status: Literal["ok", "crash"]
    seconds: float
    message: str = ""
    trace: str = ""
    files: Mapping[str, str] = {}


class Cache:
    """Entries by key in a folder, made when missing; leftovers of processes that died are removed.

    Raises:
        EnvironmentFault: the folder cannot be made or written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(f"cannot make the cache {root}: {error.strerror}; name another folder") from error
        refuse_unwritable(self.root / RESULT)
        for leftover in self.root.glob(f"{_PARTIAL}-*"):
            owner = leftover.name.removeprefix(f"{_PARTIAL}-").partition("-")[0]
            if owner.isdecimal() and not _alive(int(owner)):  # other names are not of this cache
                shutil.rmtree(leftover, ignore_errors=True)  # another runner may be removing it too

    def find(self, key: str) -> Result | None:
        """The result of an entry, None where there is no entry or a damaged one."""
        folder = self.folder(key)
        try:
            result = Result.model_validate_json((folder / RESULT).read_bytes())
            whole = bool(result.files) and all(_sha256(folder / name) == d for name, d in result.files.items())
        except (OSError, ValueError):  # as well of a name that no file can have
            return None
        return result if whole else None

    def folder(self, key: str) -> Path:
        """Where the files of an entry are."""
        return self.root / key

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """A folder for the files of a run that goes on; what is left of it at the end is removed."""
        folder = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}-{os.getpid()}-", dir=self.root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # not there any more once it is an entry

    def add(self, key: str, run: Run, folder: Path, result: Result) -> Result:
        """Makes a folder of `writing` the entry: replaces a damaged one, and leaves a whole one as it is."""
        (folder / CONFIG).write_text(run.config.model_dump_json(indent=1), encoding="utf-8")
        files = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}
        result = result.model_copy(update={"files": files})
        (folder / RESULT).write_text(result.model_dump_json(indent=1), encoding="utf-8")
        while not _moved(folder, self.folder(key)):
            if (theirs := self.find(key)) is not None:
                return theirs
            self.remove(key)
        return result

    def remove(self, key: str) -> None:
        """Removes an entry, if there is one, in one step."""
        with self.writing() as rubbish:
            _moved(self.folder(key), rubbish / key)


def _moved(folder: Path, to: Path) -> bool:
    """Renames a folder; False where another runner was faster."""
    try:
        folder.rename(to)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
            return False
        raise
    return True


def key_of(run: Run, fault: Fault | None) -> str:
    """The SHA-256 of everything that decides what a run computes, in hex."""
    parts = {
        "config": run.config.model_dump(mode="json"),
        "probes": sorted(run.probes),
        "warm": run.warm,
        "fault": run.fault,
        "patches": {point: source_of(patch) for point, patch in sorted(fault.patches.items())} if fault else {},
        "trainer": trainer_digest(),
        "torch": importlib.metadata.version("torch"),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def trainer_digest() -> str:
    """The SHA-256 over the source files of the trainer and of the signals it records."""
    digest = hashlib.sha256()
    for package in (attune_lab.trainer, attune_lab.signals):
        root = Path(package.__path__[0])
        for file in sorted(root.rglob("*.py")):
            if file.name not in RUNS_NOTHING:
                digest.update(f"{file.relative_to(root)}\0{_sha256(file)}\n".encode())
    return digest.hexdigest()


def source_of(function: Callable[..., Any]) -> list[str]:
    """What a patch is made of: its source, what it is bound to, and the same of the functions it uses.

    Functions of other packages than its own count by name alone; they change with the trainer or with torch.
    """
    parts: list[str] = []
    _collect(function, parts, set())
    return parts


def _collect(value: Any, parts: list[str], seen: set[int]) -> None:
    if isinstance(value, partial):
        for item in (value.func, *value.args, *(x for pair in sorted(value.keywords.items()) for x in pair)):
            _collect(item, parts, seen)
    elif not isinstance(value, FunctionType):
        parts.append(_constant(value))
    elif id(value) not in seen:
        seen.add(id(value))
        parts.append(inspect.getsource(value))
        bound = [cell.cell_contents for cell in value.__closure__ or ()]
        for item in (*bound, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *_globals(value)):
            _collect(item, parts, seen)


def _globals(function: FunctionType) -> list[Any]:
    """What a function uses of its own package: functions and plain values, not modules and not what it imports."""
    package = function.__module__.partition(".")[0]
    found = [function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__]
    return [
        v
        for v in found
        if (getattr(v, "__module__", None) or package).partition(".")[0] == package and not inspect.ismodule(v)
    ]


def _names(code: CodeType) -> list[str]:
    """Global names a function uses, also in the functions inside it."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return [*code.co_names, *inner]


def _constant(value: Any) -> str:
    """A text that is equal where the value is; of a class or other object its name, having no better."""
    plain = (str, bytes, int, float, complex, bool, type(None), tuple, list, dict, frozenset)
    return repr(value) if isinstance(value, plain) else f"{type(value).__name__} {getattr(value, '__name__', '')}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, as somebody else
        return True
    return True
