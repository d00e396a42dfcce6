"""A small study that runs in seconds."""

from __future__ import annotations

from pathlib import Path

from attune_lab.study.spec import StudySpec, parse_study

RECIPE = Path(__file__).parents[1] / "cli" / "tiny.sh"


def study_text(tuners: str = "[random, attune]", more: str = "") -> str:
    """A study of the small recipe; ``more`` are further lines."""
    worlds = "" if "worlds:" in more else "worlds: {first: 100, count: 2}\n"
    return (
        f"name: small\nrecipes: ['{RECIPE}']\nclusters: [8xH200-SXM5-141GB]\nbudget: 12x\noracle: off\n"
        f"{worlds}tuners: {tuners}\n{more}"
    )


def study(tuners: str = "[random, attune]", more: str = "") -> StudySpec:
    """The study of `study_text`."""
    return parse_study(study_text(tuners, more))
