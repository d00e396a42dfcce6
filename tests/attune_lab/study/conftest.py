"""A package of tuners that misbehave."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import hostile_tuners
import pytest


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers the tuners of `hostile_tuners` in this process and in every process it starts."""
    site = tmp_path / "site"
    info = site / "hostile_tuners-1.dist-info"
    info.mkdir(parents=True)
    shutil.copy(hostile_tuners.__file__, site)
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: hostile-tuners\nVersion: 1\n")
    entries = "".join(f"{name} = hostile_tuners:{kind}\n" for name, kind in hostile_tuners.NAMES.items())
    info.joinpath("entry_points.txt").write_text(f"[attune.tuners]\n{entries}")
    monkeypatch.syspath_prepend(str(site))
    assert str(site) in sys.path
