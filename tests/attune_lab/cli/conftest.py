"""Run the command line in this process, as a shell would see it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attune_lab.cli import main


@dataclass(frozen=True)
class Outcome:
    """What a shell sees of one command."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output as the one JSON object it must be."""
        parsed = json.loads(self.stdout)
        assert isinstance(parsed, dict)
        return parsed


@pytest.fixture
def attune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """`attune("tune", "glm-4.5", …)` -> `Outcome`, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["attune", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return run
