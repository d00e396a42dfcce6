"""A tree of recipes, expanded by UCT."""

from __future__ import annotations

import math

import pytest

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.common.moves import moves
from baselines.tree_search import Node, TreeSearch
from tests.baselines.small_task import campaign, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return TreeSearch

    @pytest.fixture
    def task(self):
        return small_task()


class TestContractWithAModel(TestContract):
    @pytest.fixture
    def task(self):
        return small_task({"llm": "scripted"})


def node(gain=0.0, visits=1, **kwargs):
    return Node(small_task().baseline, gain, visits=visits, best=gain, **kwargs)


def tree(*children, tried, visits):
    root = node(visits=visits, tried=tried, children=list(children))
    root.best = max((child.best for child in children), default=0.0)
    return root


def test_a_node_widens_with_the_root_of_its_visits():
    tuner = TreeSearch(small_task({"widening": 2}))
    for visits, tried, expands in ((4, 3, True), (4, 4, False), (9, 5, True), (9, 6, False)):
        root = tree(node(0.1), tried=tried, visits=visits)
        assert (tuner.select(root) is root) == expands


def test_uct_weighs_value_against_visits():
    often, seldom = node(0.10, visits=30, tried=0), node(0.08, visits=2, tried=0)
    root = tree(often, seldom, tried=99, visits=33)

    def bound(child, weight):
        return child.best / 0.10 + weight * math.sqrt(math.log(33) / child.visits)

    for weight in (0.0, 0.05, 1.0):
        expected = max((often, seldom), key=lambda child: bound(child, weight))
        assert TreeSearch(small_task({"exploration": weight})).select(root) is expected
    assert bound(often, 0.0) > bound(seldom, 0.0)
    assert bound(often, 1.0) < bound(seldom, 1.0)


def test_exhausted_branches_are_left():
    dead, alive = node(0.5, dry=True), node(0.1)
    root = tree(dead, alive, tried=99, visits=9)
    assert TreeSearch(small_task()).select(root) is alive
    alive.dry = root.dry = True
    assert root.exhausted


def test_every_edge_is_one_lever():
    task = small_task()
    log = campaign(TreeSearch(task), task, runs=15)
    ran, within_reach = [task.baseline], {move.recipe.digest for move in moves(task, task.baseline)}
    for proposal, report in log:
        assert proposal.recipe.digest in within_reach
        if report.status == "ok":
            ran.append(proposal.recipe)
            within_reach |= {move.recipe.digest for move in moves(task, proposal.recipe)}
    depths = {len(task.space.changed(task.baseline, recipe)) for recipe in ran}
    assert max(depths) >= 3


def test_out_of_memory_gets_a_sibling_with_more_recomputation():
    task = small_task()

    def answer(recipe):
        weak = task.space.value(recipe, "recompute") == "none"
        return ("oom" if weak else "ok"), task.cost_model.estimate([recipe])[0].step_time_s

    (first, report), (second, _), *_ = campaign(TreeSearch(task), task, answer, runs=4)
    assert report.status == "oom"
    assert set(task.space.changed(first.recipe, second.recipe)) == {"recompute"}
    assert "out of memory" in second.reason


def test_a_model_is_asked_only_if_wanted_and_its_tokens_are_counted():
    task = small_task({"llm": "scripted"})
    tuner, plain = TreeSearch(task), TreeSearch(small_task())
    assert len(campaign(tuner, task, runs=6)) == 6
    campaign(plain, small_task(), runs=2)
    assert tuner.usage["input_tokens"] > 0
    assert plain.usage == {}


def test_it_ends_when_the_models_tokens_are_used_up():
    task = small_task({"llm": "scripted", "tokens": 20_000})
    tuner = TreeSearch(task)
    assert 0 < len(campaign(tuner, task, runs=40)) < 40
    assert "of its 20000 tokens are used" in tuner.stop_reason


def test_options_are_checked():
    with pytest.raises(UserError, match="option llm of the tree-search tuner is 'gpt'; give one of none, scripted"):
        TreeSearch(small_task({"llm": "gpt"}))
