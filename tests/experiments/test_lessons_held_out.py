"""A model's levers are predicted from the others alone."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from attune_lab.contracts import UserError
from attune_lab.lessons.evidence import Evidence
from experiments.lessons_held_out import held_out, table

sys.path.append(str(Path(__file__).parents[1] / "attune_lab" / "lessons"))
from evidence_for_tests import learnt, seen


def campaigns(model: str, surprise: float, first: int = 0) -> list:
    """Twenty worlds in which one lever surprises by ``surprise``, give or take 3 %."""
    rng = np.random.default_rng(0)
    return [
        learnt(seen({"tp": 4}, surprise + rng.normal(0, 0.03)), model=model, build=f"gqa {model}", place=first + n)
        for n in range(20)
    ]


def test_what_models_share_is_learnt_and_what_they_do_not_is_not() -> None:
    alike = held_out(Evidence([*campaigns("a", -0.1), *campaigns("b", -0.1)]))
    assert [row.model for row in alike] == ["a", "b"]
    assert all(row.error_with < row.error_without / 2 for row in alike)
    assert all(row.inside > 0.8 for row in alike)
    unlike = held_out(Evidence([*campaigns("a", -0.1), *campaigns("b", 0.1)]))
    assert all(row.error_with > row.error_without for row in unlike)


def test_a_world_says_nothing_of_itself() -> None:
    one = [*campaigns("a", 0.1)[:1], *campaigns("b", 0.1)[:1]]
    assert held_out(Evidence(one)) == []
    assert len(held_out(Evidence([*campaigns("a", 0.1)[:1], *campaigns("b", 0.1, first=50)[:1]]))) == 2


def test_the_table_ends_with_all_models() -> None:
    drawn = table(held_out(Evidence([*campaigns("a", 0.1), *campaigns("b", 0.1)])))
    assert [line[0] for line in drawn.rows] == ["a", "b", "all"]
    assert drawn.rows[-1][1] == "40"


def test_one_model_says_nothing_of_others() -> None:
    with pytest.raises(UserError, match="fewer than two models"):
        held_out(Evidence(campaigns("a", 0.1)))
