"""The rules as a wall: silent before the catalog policy, and each one heard where it should be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agent_world import BASELINE, CLUSTER, SPACE, FakeCostModel, FakeWorld, make_task, report
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.agent import AttuneTuner
from attune_lab.agent.history import History
from attune_lab.agent.rules import (
    CHECK_MEMORY,
    DIAGNOSE_FIRST,
    NOISE_BAND,
    ONE_LEVER,
    RE_MEASURE,
    RETRY_OOM,
    RULES,
    STOP,
    USE_CATALOG,
    Rulebook,
)
from attune_lab.agent.stopping import REAL_CHANCE
from attune_lab.agent.wall import OBJECTIONS, Draft, Standing, objections
from attune_lab.contracts import Proposal
from attune_lab.lessons import catalog as lessons

ALL = Rulebook()


def fits(recipe):
    return FakeCostModel().estimate([recipe])[0].fits


def standing(*, runs=(), kept=(), **changes):
    """What a campaign has come to after the baseline and ``runs``, pairs of recipe and report."""
    history, latest = History(), None
    model = FakeCostModel()
    world = FakeWorld(100)
    for recipe, told in ((BASELINE, world.run(BASELINE, "000-baseline")), *runs):
        latest = history.record(recipe, model.estimate([recipe])[0], told)
    digests = frozenset((BASELINE.digest, *(recipe.digest for recipe in kept)))
    plain = Standing(ALL, BASELINE, CLUSTER, SPACE, model, lessons.load(), history, fits, digests, latest, band=0.01)
    return replace(plain, **changes)


def ok(recipe, label="003-search"):
    return recipe, FakeWorld(100).run(recipe, label)


def heard(draft, where, rules=ALL):
    return [rule for rule, _ in objections(draft, replace(where, rules=rules))]


TP2 = SPACE.apply(BASELINE, {"tp": 2})
FUSED = SPACE.apply(BASELINE, {"moe_permute_fusion": True})


def test_every_rule_can_object() -> None:
    assert set(OBJECTIONS) == set(RULES)


@settings(max_examples=25)
@given(
    seed=st.integers(100, 10_000),
    memory=st.floats(0.9, 1.6),
    broken=st.sampled_from(["ok", "crash", "node_failure", "timeout"]),
    off=st.sampled_from([(), (USE_CATALOG.name,), (ONE_LEVER.name,), (STOP.name,), (RETRY_OOM.name,)]),
)
def test_the_catalog_policy_is_never_refused(seed, memory, broken, off) -> None:
    tuner, world = AttuneTuner(make_task(options={"without": list(off)})), FakeWorld(seed, memory_factor=memory)
    rules, latest, kept, unconfirmed = Rulebook(off), None, {BASELINE.digest}, None
    for number in range(2):
        tuner.tell(Proposal(BASELINE), world.run(BASELINE, f"000-baseline-{number}"))
    for number in range(10):
        proposal = tuner.ask()
        if proposal is None:
            break
        where = Standing(
            rules, BASELINE, CLUSTER, SPACE, FakeCostModel(), lessons.load(), tuner._history,
            lambda recipe: tuner._calibration.fits(tuner._prices.of(recipe)),
            frozenset(kept), latest, lambda _: True, unconfirmed, 0.01, 36.0,
        )  # fmt: skip
        draft = Draft(proposal.recipe, proposal.lesson, remeasure=proposal.remeasure)
        assert objections(draft, where) == []
        if number == 2 and broken != "ok":
            world.statuses[proposal.recipe.digest] = broken
        tuner.tell(proposal, world.run(proposal.recipe, f"{number + 1:03d}"))
        latest = tuner._history.get(proposal.recipe)
        kept.add(tuner._best.recipe.digest)
        again = tuner._follow_up
        unconfirmed = again.recipe if again is not None and again.remeasure else None


def test_two_levers_at_once_are_refused() -> None:
    both = SPACE.apply(TP2, {"moe_permute_fusion": True})
    found = dict(objections(Draft(both, "L-tp-down"), standing()))
    assert "moe_permute_fusion, tp" in found[ONE_LEVER]
    assert ONE_LEVER not in heard(Draft(both, "L-tp-down"), standing(), Rulebook([ONE_LEVER.name]))
    assert ONE_LEVER not in heard(Draft(both), standing(runs=[ok(TP2)], kept=[TP2]))


@pytest.mark.parametrize(
    "edits", [{"tp": 2, "recompute": "moe"}, {"tp": 2, "pp": 8, "ep_overlap": True, "recompute": "moe"}]
)
def test_a_layout_with_what_it_needs_is_one_lever(edits) -> None:
    assert standing().is_one_lever(BASELINE, SPACE.apply(BASELINE, edits))


def test_what_never_started_is_nothing_to_build_on() -> None:
    both = SPACE.apply(TP2, {"moe_permute_fusion": True})
    for status in ("invalid", "crash"):
        assert ONE_LEVER in heard(Draft(both), standing(runs=[(TP2, report("003-search", status))]))


def test_a_symptom_must_show_and_be_the_lesson_s() -> None:
    assert DIAGNOSE_FIRST in heard(Draft(TP2, "L-tp-down", "fragmentation"), standing())
    assert DIAGNOSE_FIRST in heard(Draft(TP2, "L-tp-down", "exposed_ep_a2a"), standing())
    assert DIAGNOSE_FIRST not in heard(Draft(TP2, "L-tp-down", "exposed_tp_comm"), standing())


@pytest.mark.parametrize("lesson", [None, "P-dry-run-memory", "no-such-lesson", "K-permute-fusion"])
def test_a_move_must_be_one_of_a_lesson_that_applies(lesson) -> None:
    assert USE_CATALOG in heard(Draft(TP2, lesson), standing())
    assert USE_CATALOG not in heard(Draft(TP2, lesson), standing(), Rulebook([USE_CATALOG.name]))


def test_a_recipe_out_of_memory_is_retried_with_recomputation_first() -> None:
    lean = SPACE.apply(BASELINE, {"recompute": "none"})
    where = standing(runs=[(lean, report("003-search", "oom"))])
    found = dict(objections(Draft(FUSED, "K-permute-fusion"), where))
    assert found[RETRY_OOM] == "003-search ran out of memory: try the same recipe with recompute = moe first"
    retry = Draft(SPACE.apply(lean, {"recompute": "moe"}), "P-oom-retry-recompute", "oom_forward", chance=0.0)
    assert heard(retry, where) == []


def test_what_is_not_expected_to_fit_is_not_run() -> None:
    large = SPACE.apply(BASELINE, {"pp": 1, "vpp": 1, "ep": 1, "recompute": "none"})
    assert CHECK_MEMORY in heard(Draft(large, "L-jump"), standing())
    assert CHECK_MEMORY not in heard(Draft(TP2, "L-tp-down"), standing())


def test_an_unconfirmed_gain_is_measured_again_before_anything_builds_on_it() -> None:
    both = SPACE.apply(TP2, {"moe_permute_fusion": True})
    where = standing(runs=[ok(TP2)], unconfirmed=TP2)
    assert RE_MEASURE in heard(Draft(both), where)
    assert RE_MEASURE not in heard(Draft(TP2, remeasure=True), where)
    assert RE_MEASURE not in heard(Draft(FUSED), where)


def test_nothing_builds_on_what_gained_nothing() -> None:
    both = SPACE.apply(TP2, {"moe_permute_fusion": True})
    assert NOISE_BAND in heard(Draft(both), standing(runs=[ok(TP2)]))
    assert NOISE_BAND not in heard(Draft(both), standing(runs=[ok(TP2)], kept=[TP2]))


def test_what_is_not_worth_a_run_or_cannot_be_paid_is_not_run() -> None:
    assert STOP in heard(Draft(TP2, chance=0.9 * REAL_CHANCE), standing())
    assert STOP not in heard(Draft(TP2, chance=1.1 * REAL_CHANCE), standing())
    assert STOP in heard(Draft(TP2, chance=0.5, cost=2.0), standing(left=1.9))


def test_objections_say_so_in_one_printable_line_and_change_nothing() -> None:
    where = standing(runs=[ok(TP2)])
    draft = Draft(SPACE.apply(TP2, {"moe_permute_fusion": True, "pp": 8}), "no lesson", "no symptom", chance=0.0)
    first = objections(draft, where)
    assert len(first) >= 2
    assert all(sentence.isprintable() for _, sentence in first)
    assert first == objections(draft, where)
