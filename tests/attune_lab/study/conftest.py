"""Tuners for studies to run, installed as a package of tuners would be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import hostile_tuners
import pytest


@pytest.fixture(scope="module", autouse=True)
def plugged_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Registers uniform draws and the tuners of `hostile_tuners` in this process and in every process it starts."""
    site = tmp_path_factory.mktemp("site")
    info = site / "tuners_of_tests-1.dist-info"
    info.mkdir()
    shutil.copy(hostile_tuners.__file__, site)
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: tuners-of-tests\nVersion: 1\n")
    tuners = {"uniform": "attune_lab.testing:UniformDraws"}
    tuners |= {name: f"hostile_tuners:{kind}" for name, kind in hostile_tuners.NAMES.items()}
    entries = "".join(f"{name} = {tuner}\n" for name, tuner in tuners.items())
    info.joinpath("entry_points.txt").write_text(f"[attune.tuners]\n{entries}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)  # for the workers of Ray
        yield
