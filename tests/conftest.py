"""Settings of all tests: none depends on how fast the machine is; none but its own on a tuner of `baselines`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores Ctrl-C in what it starts in the background, and the processes that tests interrupt inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def no_tuner_of_baselines(request: pytest.FixtureRequest) -> Iterator[None]:
    """Outside of tests/baselines its tuners and wrappers are not installed: any of them may be deleted."""

    def others(*, group: str) -> list[EntryPoint]:
        return [entry for entry in entry_points(group=group) if not entry.module.startswith("baselines.")]

    with pytest.MonkeyPatch.context() as patch:
        if Path(__file__).parent / "baselines" not in request.path.parents:
            patch.setattr("attune_lab.workbench.entry_points", others)
        yield
