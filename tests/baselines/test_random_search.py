"""Random search draws legal recipes, none twice, the same for the same seed."""

from __future__ import annotations

import sys
from pathlib import Path

from attune_lab.contracts import Tuner
from baselines.random_search import RandomSearch

sys.path.insert(0, str(Path(__file__).parents[1] / "attune_lab" / "agent"))
from agent_world import BASELINE, SPACE, FakeWorld, campaign, make_task


def test_it_is_a_tuner() -> None:
    assert isinstance(RandomSearch(make_task()), Tuner)
    assert RandomSearch.name == "random"


def test_draws_are_legal_and_distinct() -> None:
    log = campaign(RandomSearch(make_task(seed=3)), FakeWorld(0), runs=60)
    digests = [proposal.recipe.digest for proposal, _ in log]
    assert len(set(digests)) == len(digests) == 60
    assert BASELINE.digest not in digests
    assert not any(SPACE.problems(proposal.recipe) for proposal, _ in log)


def test_the_seed_decides() -> None:
    def first(seed: int) -> list[str]:
        return [p.recipe.digest for p, _ in campaign(RandomSearch(make_task(seed=seed)), FakeWorld(0), runs=5)]

    assert first(1) == first(1) != first(2)


def test_it_ends_when_nothing_new_is_drawn() -> None:
    class Tiny:
        def sample(self, rng):
            return BASELINE

    assert RandomSearch(make_task(space=Tiny())).ask() is None
