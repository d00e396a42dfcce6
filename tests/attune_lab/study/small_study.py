"""A small study that runs in seconds."""

from __future__ import annotations

from pathlib import Path

from pandas.testing import assert_frame_equal

from attune_lab.study.spec import StudySpec, parse_study
from attune_lab.study.tables import Tables

SECONDS = ["wall_s", "tuner_s"]
"""Columns that differ from one run of a study to the next."""

RECIPE = Path(__file__).parents[1] / "cli" / "tiny.sh"


def study_text(tuners: str = "[uniform, attune]", more: str = "") -> str:
    """A study of the small recipe; ``more`` are further lines."""
    worlds = "" if "worlds:" in more else "worlds: {first: 100, count: 2}\n"
    return (
        f"name: small\nrecipes: ['{RECIPE}']\nclusters: [8xH200-SXM5-141GB]\nbudget: 12x\noracle: off\n"
        f"{worlds}tuners: {tuners}\n{more}"
    )


def study(tuners: str = "[uniform, attune]", more: str = "") -> StudySpec:
    """The study of `study_text`."""
    return parse_study(study_text(tuners, more))


def assert_same(one: Tables, other: Tables) -> None:
    """Equal tables but for the time they took."""
    assert_frame_equal(one.campaigns.drop(columns=SECONDS), other.campaigns.drop(columns=SECONDS))
    assert_frame_equal(one.runs, other.runs)
