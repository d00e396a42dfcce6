"""Evolution on islands: its database, its mutations, its cascade."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import Proposal, UserError
from attune_lab.testing import TunerContract
from baselines.agents.cards import card_of
from baselines.agents.desk import Draft
from baselines.agents.islands import Islands
from baselines.agents.mutation import PATCHES, mutate, patch_of
from baselines.common.history import Trial
from baselines.evolve import Evolve
from tests.attune_lab.recipe.recipes_for_tests import moe
from tests.baselines.small_task import campaign, ended, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Evolve

    @pytest.fixture
    def task(self):
        return small_task(seed=2)


def trial(number, seconds):
    recipe = moe(mbs=number)
    return Trial(recipe, [ended(str(number), "ok", seconds)])


@given(times=st.lists(st.floats(0.1, 9.0), min_size=1, max_size=40, unique=True))
def test_islands_and_the_archive_keep_the_fastest(times):
    islands = Islands(2, 8, 20)
    for number, seconds in enumerate(times):
        islands.add(number % 2, trial(number + 1, seconds))
    for place in (0, 1):
        kept = [one.step_time_s for one in islands.populations[place]]
        assert kept == pytest.approx(sorted(times[place::2])[:8])
    assert [one.step_time_s for one in islands.archive] == pytest.approx(sorted(times)[:20])


def test_the_fastest_of_each_island_migrates_to_the_next():
    islands = Islands(3, 2, 20)
    for place, seconds in enumerate((1.0, 2.0, 3.0)):
        islands.add(place, trial(place + 1, seconds))
    islands.migrate()
    assert [[one.step_time_s for one in island] for island in islands.populations] == [[1, 3], [1, 2], [2, 3]]


def test_parents_come_mostly_from_the_better_half():
    islands, rng = Islands(1, 8, 20), np.random.default_rng(0)
    assert islands.parent(0, rng) is None
    for number in range(8):
        islands.add(0, trial(number + 1, 1.0 + number))
    drawn = [islands.parent(0, rng).step_time_s for _ in range(4000)]
    assert np.mean(np.array(drawn) <= 4.0) == pytest.approx(0.7 + 0.3 / 2, abs=0.02)


def test_inspirations_are_the_best_of_the_archive_and_another_not_the_parent():
    islands, rng = Islands(1, 8, 20), np.random.default_rng(0)
    members = [trial(number + 1, 1.0 + number) for number in range(6)]
    for one in members:
        islands.add(0, one)
    assert islands.inspirations(members[0], rng)[0] is members[1]
    for _ in range(20):
        first, second = islands.inspirations(members[3], rng)
        assert first is members[0]
        assert second not in (members[0], members[3])


def test_kinds_of_patches_come_in_their_proportions():
    kinds = [patch_of(draw) for draw in np.linspace(0, 1, 1000, endpoint=False)]
    assert {kind: kinds.count(kind) / 1000 for kind in PATCHES} == pytest.approx(PATCHES)


def facts(task, **more):
    parent = {"values": dict(task.space.values(task.baseline)), "memory_share": 0.5, "shares": {}, "inert": []}
    return {
        "card": card_of(task), "incumbent": parent, "history": [], "refused": [], "inspirations": [], "error": {},
        "patch": "diff", "draw": 0.0, **more,
    }  # fmt: skip


def test_the_player_changes_one_thing_or_several_or_crosses():
    task = small_task()
    one, several = mutate(facts(task)), mutate(facts(task, patch="full"))
    assert len(several["changes"]) > len(one["changes"]) >= 1
    other = {**task.space.values(task.baseline), "recompute": "moe", "cross_entropy_fusion": True, "manual_gc": True}
    crossed = mutate(facts(task, patch="cross", inspirations=[{"values": other}]))["changes"]
    assert len(crossed) == 2
    assert all(other[key] == value for key, value in crossed.items())


def test_the_player_repairs_the_last_failure():
    task = small_task()
    failed = {**task.space.values(task.baseline), "mbs": 4}
    reply = mutate(facts(task, error={"status": "oom", "values": failed, "message": ""}))
    assert reply["changes"]["mbs"] == 4
    assert reply["changes"]["recompute"] != "none"


def test_the_cascade_turns_down_what_is_illegal_and_what_should_not_fit():
    task = small_task(num_experts=128)
    tuner = Evolve(task)
    tuner.tell(Proposal(task.baseline), ended("0", "ok", peak=75e9))
    illegal = tuner.check(Draft({"tp": 8, "pp": 16}, "tp", ""))
    assert illegal.faults
    assert illegal.faults != tuner.check(Draft({"mbs": 8}, "mbs", "")).faults
    assert tuner.check(Draft({"mbs": 8}, "mbs", "")).faults == ("the cost model does not expect it to fit in memory",)


def test_what_runs_lives_on_the_island_that_asked_and_the_recipe_on_all():
    task = small_task()
    tuner = Evolve(task)
    log = campaign(tuner, task, lambda recipe: ("ok", 1.0), runs=4)
    populations = [{one.recipe.digest for one in island} for island in tuner.islands.populations]
    for number, (proposal, _) in enumerate(log):
        assert proposal.recipe.digest in populations[number % 2]
        assert proposal.recipe.digest not in populations[1 - number % 2]
    assert all(task.baseline.digest in island for island in populations)
    assert tuner.usage["output_tokens"] > 0


def test_it_improves_where_rules_of_thumb_hold():
    task = small_task()
    log = campaign(Evolve(task), task, runs=20)
    base = task.cost_model.estimate([task.baseline])[0].step_time_s
    assert min(report.mean_step_time_s or base for _, report in log) < 0.95 * base


def test_options_are_checked():
    with pytest.raises(UserError, match="option islands of the evolve tuner is 0"):
        Evolve(small_task({"islands": 0}))
