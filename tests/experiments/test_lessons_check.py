"""Every lesson names a move that the stack takes, and the cost model never says the opposite of it."""

from __future__ import annotations

import pytest

from attune_lab.contracts import UserError
from attune_lab.lessons.catalog import load
from experiments.lessons_check import Findings, check, table


@pytest.fixture(scope="module")
def found() -> dict[str, Findings]:
    """What a short check finds, by lesson."""
    return {one.lesson: one for one in check(samples=0)}


def test_every_lever_of_the_catalog_is_checked(found: dict[str, Findings]) -> None:
    searches = {"L-jump", "L-sweep"}
    assert set(found) == {lesson.id for lesson in load().lessons} - searches
    assert len([one for one in found.values() if one.effects_pct]) >= 20


def test_no_lesson_says_the_opposite_of_the_cost_model(found: dict[str, Findings]) -> None:
    assert not [one.lesson for one in found.values() if one.verdict == "DISAGREES"]


def test_what_is_not_legal_says_why(found: dict[str, Findings]) -> None:
    for one in found.values():
        assert sum(one.problems.values()) + len(one.effects_pct) == one.tried


def test_a_wrong_sign_would_be_seen() -> None:
    wrong = Findings("X", (-10.0, -1.0), tried=10, effects_pct=[3.0] * 9 + [-3.0])
    assert (wrong.right_sign, wrong.verdict) == (pytest.approx(0.1), "DISAGREES")
    assert Findings("X", (1.0, 9.0), tried=10, effects_pct=[3.0] * 10).verdict == "agrees"
    assert Findings("X", (-1.0, 0.0), tried=2, effects_pct=[0.0, 0.01]).verdict == "not modelled"
    assert Findings("X", (-1.0, 0.0)).verdict == "never applies"


def test_one_lesson_alone() -> None:
    (one,) = check(samples=0, only="R-none-if-fits")
    assert max(one.effects_pct) < 0
    assert table([one]).rows[0][0] == "R-none-if-fits"
    with pytest.raises(UserError, match="L-jump"):
        check(samples=0, only="L-jump")
