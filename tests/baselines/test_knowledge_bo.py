"""The catalog narrows the space for the coarse stage; the fine stage has all of it."""

from __future__ import annotations

import pytest

from attune_lab.contracts import UserError
from attune_lab.lessons.catalog import Lesson, load
from attune_lab.testing import TunerContract
from baselines.common.points import Points
from baselines.knowledge_bo import KnowledgeBO, recommended, reduced
from tests.baselines.small_task import campaign, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return KnowledgeBO

    @pytest.fixture
    def task(self):
        return small_task({"coarse_trials": 6}, seed=3)


def lesson(name, moves, best, **more):
    """A lesson that expects ``best`` percent of its moves."""
    return Lesson(
        id=name, title=name, symptoms=("always",), moves=moves, step_time_pct=(best, 0.0), basis="made up",
        sources=("made up",), **more,
    )  # fmt: skip


def test_moves_of_lessons_become_values_with_their_expected_worth():
    task = small_task(tp=2)
    lessons = [
        lesson("a", ({"tp": "halve"}, {"manual_gc": "on"}), -4.0),
        lesson("b", ({"tp": "double"},), -9.0),
        lesson("c", ({"tp": "halve"},), -6.0),
        lesson("d", ({"tp": "double"},), -50.0, numerics="changes"),
        lesson("e", ({"layout": "best"}, {"warp": "on"}), -50.0),
    ]
    worth = recommended(task, lessons)
    assert worth == {"tp": {1: 6.0, 4: 9.0}, "manual_gc": {True: 4.0}}
    points = Points(task)
    assert reduced(worth, points, task, 5) == {"tp": [1, 2, 4], "manual_gc": [False, True]}
    assert list(reduced(worth, points, task, 1)) == ["tp"]


def test_the_coarse_stage_stays_on_the_grid_and_the_fine_stage_leaves_it():
    task = small_task({"coarse_trials": 12, "parameters": 6}, seed=1)
    points = Points(task)
    grid = reduced(recommended(task, load().lessons), points, task, 6)
    assert len(grid) == 6
    log = campaign(KnowledgeBO(task), task, runs=24)
    coarse = [proposal for proposal, _ in log if "coarse stage" in proposal.reason and "nearest" not in proposal.reason]
    fine = [proposal for proposal, _ in log if "fine stage" in proposal.reason]
    assert len(coarse) >= 8
    assert fine
    for proposal in coarse:
        assert all(key in grid for key in proposal.changed if key in ("tp", "pp", "cp", "ep", "mbs"))
    assert any(set(proposal.changed) - set(grid) for proposal in fine)


def test_unknown_options_are_refused():
    with pytest.raises(UserError, match="has no option lessons"):
        KnowledgeBO(small_task({"lessons": 1}))
