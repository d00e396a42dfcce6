"""A log that claims another speed than was timed is named, and changes no figure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attune_lab.tuning import TuneRequest, tune_recipe

TINY = Path(__file__).parents[1] / "cli" / "tiny.sh"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A finished campaign with its logs, and its result."""
    request = TuneRequest(str(TINY), "8xH100-SXM5-80GB", "16x", out=tmp_path_factory.mktemp("campaign"))
    return request, tune_recipe(request)


def a_log(request: TuneRequest) -> Path:
    return next(log for log in sorted((request.out / "logs").glob("*-search.log")) if "elapsed" in log.read_text())


def test_sound_logs_are_not_mentioned(sound):
    assert sound[1]["warnings"] == []


def test_a_forged_speed_is_named_and_counts_for_nothing(sound):
    request, result = sound
    log = a_log(request)
    honest = log.read_text()
    try:
        log.write_text(re.sub(r"(per iteration \(ms\): )\d", r"\g<1>0", honest))
        again = tune_recipe(request)
    finally:
        log.write_text(honest)
    assert [warning.startswith(f"run {log.stem}: the log claims ") for warning in again["warnings"]] == [True]
    assert again | {"warnings": []} == result


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "gone", "binary"])
def test_what_is_no_log_is_not_followed(sound, tmp_path, kind):
    import os

    request, result = sound
    log = a_log(request)
    honest = log.read_bytes()
    log.unlink()
    try:
        if kind == "link":
            log.symlink_to(tmp_path / "elsewhere.log")
            (tmp_path / "elsewhere.log").write_text("iteration 1/8 | elapsed time per iteration (ms): 1.0 |\n")
        elif kind == "pipe":
            os.mkfifo(log)
        elif kind == "folder":
            log.mkdir()
        elif kind == "binary":
            log.write_bytes(bytes(range(256)) * 100)
        again = tune_recipe(request)
    finally:
        log.rmdir() if kind == "folder" else log.unlink(missing_ok=True)
        log.write_bytes(honest)
    assert again | {"warnings": []} == result
    assert len(again["warnings"]) == (kind == "binary")
