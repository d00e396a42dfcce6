"""Evidence of past campaigns: what counts how much, and that nothing counts that should not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evidence_for_tests import TRAITS, learnt, seen
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.lessons.cells import Effect
from attune_lab.lessons.context import likeness
from attune_lab.lessons.evidence import KEPT, Context, Evidence, kept, pinned
from attune_lab.lessons.pooling import PRIOR_SD, UNKNOWN_SD
from attune_lab.lessons.records import Records, update_records

HERE = Context("custom-moe", TRAITS.model_dump())
surprises = st.floats(-0.3, 0.3)


def effect(evidence: Evidence, context: Context = HERE, lesson: str | None = "L", **edits: object) -> Effect:
    known = evidence.effect(lesson, edits or {"tp": 4}, context)
    assert known is not None
    return known


def test_no_evidence_is_none() -> None:
    assert Evidence([]).effect("L", {"tp": 4}, HERE) is None
    other = Evidence([learnt(seen({"mbs": 2}, 0.1, lesson="M"))])
    assert other.effect("L", {"tp": 4}, HERE) is None
    assert other.effect(None, {"tp": 4}, HERE) is None


@given(surprises, st.integers(1, 6))
def test_more_places_that_agree_shrink_the_sd(surprise: float, places: int) -> None:
    few = effect(Evidence(learnt(seen({"tp": 4}, surprise), place=n) for n in range(places)))
    more = effect(Evidence(learnt(seen({"tp": 4}, surprise), place=n) for n in range(places + 1)))
    assert more.surprise_sd < few.surprise_sd < UNKNOWN_SD
    assert abs(few.surprise - surprise) >= abs(more.surprise - surprise)
    assert (few.tries, more.tries) == (places, places + 1)


def test_tries_of_one_world_do_not_pass_for_many_worlds() -> None:
    tries = [seen({"tp": 4}, 0.1)] * 8
    one_world = effect(Evidence(learnt(try_, place=0, tag=str(n)) for n, try_ in enumerate(tries)))
    worlds = effect(Evidence(learnt(try_, place=n) for n, try_ in enumerate(tries)))
    assert worlds.surprise_sd < one_world.surprise_sd


@given(surprises.filter(lambda x: abs(x) > 0.02), st.integers(1, 6))
def test_contexts_far_away_count_less(surprise: float, doublings: int) -> None:
    evidence = Evidence([learnt(seen({"tp": 4}, surprise))])
    near, far = (
        Context("other", {**HERE.traits, "build": "other", "n_gpus": 64 * 2**n}) for n in (doublings - 1, doublings)
    )
    here, close, distant = effect(evidence), effect(evidence, near), effect(evidence, far)
    assert abs(here.surprise) > abs(close.surprise) > abs(distant.surprise) > 0
    assert here.surprise_sd < close.surprise_sd < distant.surprise_sd


def test_the_same_edits_say_most_then_the_lesson_and_the_parameters() -> None:
    evidence = Evidence([learnt(seen({"tp": 4}, 0.1))])
    same = effect(evidence).surprise
    other_lesson, other_value = effect(evidence, lesson="M").surprise, effect(evidence, tp=2).surprise
    only_lesson, only_parameter = effect(evidence, pp=2).surprise, effect(evidence, lesson="M", tp=2).surprise
    assert same > other_lesson > other_value > only_lesson == pytest.approx(only_parameter)


def test_other_moves_of_a_lesson_never_settle_what_this_one_does() -> None:
    many = Evidence(learnt(seen({"tp": n}, 0.1), place=n, tag="x") for n in range(300))
    assert effect(many, pp=2).surprise_sd > 0.8 * PRIOR_SD


def test_failures_and_memory() -> None:
    crashed = [learnt(seen({"tp": 4}, outcome="crash"), place=n) for n in range(4)]
    oom = [learnt(seen({"tp": 4}, outcome="oom"), place=n) for n in range(4)]
    fine = [learnt(seen({"tp": 4}, 0.0), place=n) for n in range(4)]
    assert effect(Evidence(crashed)).failure_chance > 0.5
    assert effect(Evidence(crashed)).surprise_sd == UNKNOWN_SD
    assert effect(Evidence(oom)).failure_chance == pytest.approx(0.05)
    assert effect(Evidence(fine)).failure_chance < 0.05
    assert effect(Evidence([learnt(seen({"tp": 4}, outcome="rejected"))])).failure_chance > 0.2


def test_refused_settings_speak_for_themselves_alone() -> None:
    refused = Evidence(learnt(seen({"tp": n % 2}, outcome="refused"), place=n) for n in range(20))
    assert effect(refused, tp=0).failure_chance > 0.5
    assert effect(refused, tp=8).failure_chance == pytest.approx(0.05)
    assert effect(refused, pp=2).failure_chance == pytest.approx(0.05)


def test_a_retracted_campaign_is_silent() -> None:
    campaign = learnt(seen({"tp": 4}, 0.1))
    records = Records(campaigns=(campaign,)).retracted(campaign.digest[:8], "the recipe was wrong")
    assert Evidence(records.campaigns).effect("L", {"tp": 4}, HERE) is None
    back = records.retracted(campaign.digest, "", undo=True)
    assert effect(Evidence(back.campaigns)) == effect(Evidence([campaign]))


@given(st.permutations(range(6)))
def test_the_order_of_campaigns_does_not_matter(order: list[int]) -> None:
    campaigns = [
        learnt(
            seen({"tp": 4}, 0.02 * n), seen({"pp": n}, -0.1), seen({"tp": 2}, outcome="hang"), place=n, n_gpus=8 << n
        )
        for n in range(6)
    ]
    one, other = Evidence(campaigns), Evidence(campaigns[n] for n in order)
    for edits in ({"tp": 4}, {"pp": 3}, {"tp": 2}, {"cp": 2}):
        assert one.effect("L", edits, HERE) == other.effect("L", edits, HERE)


def test_a_model_is_left_out_by_name_and_by_what_it_is() -> None:
    renamed = learnt(seen({"tp": 4}, 0.1), model="my-model", tag="renamed")
    evidence = Evidence([learnt(seen({"tp": 4}, 0.1), model="famous"), renamed, learnt(seen({"tp": 4}), build="gqa x")])
    for name in ("famous", "my-model", TRAITS.build):
        left = evidence.without_models([name])
        assert left.name_of(TRAITS.build) is None
        assert left.name_of("gqa x") == "custom-moe"
    assert evidence.without_models(["nobody"]).campaigns == evidence.campaigns


def test_a_simulated_world_is_left_out_and_a_real_cluster_is_not() -> None:
    real = learnt(seen({"tp": 4}), place=3, tag="real").model_copy(update={"provenance": "measured"})
    evidence = Evidence([*(learnt(seen({"tp": 4}), place=n) for n in range(5)), real])
    left = evidence.without_worlds(range(2, 9)).campaigns
    assert [(campaign.seed, campaign.provenance) for campaign in left] == [
        (0, "simulated"), (1, "simulated"), (3, "measured"),
    ]  # fmt: skip


def test_likeness_is_symmetric_and_a_covariance() -> None:
    rng = np.random.default_rng(0)
    places = [
        {**HERE.traits, "n_gpus": int(rng.integers(1, 999)), "dense": bool(rng.integers(2)), "build": str(n % 4)}
        for n in range(30)
    ]
    matrix = np.array([[likeness(a, b) for b in places] for a in places])
    assert np.allclose(matrix, matrix.T)
    assert np.allclose(np.diag(matrix), 1)
    assert np.linalg.eigvalsh(matrix).min() > -1e-12


@pytest.mark.parametrize("damage", ["", "no such text", "é", "c$~P!9smHI"])
def test_kept_evidence_outlives_its_file(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "lessons.json"
    update_records(path, lambda _: Records(campaigns=(learnt(seen({"mbs": 2}, 0.1)),)))
    whole, known = kept(pinned(path)), Evidence.load(path).campaigns
    path.write_text("grown")
    assert Evidence.load(whole).campaigns == known
    assert kept(whole) == whole
    with pytest.raises(UserError) as refused:
        Evidence.load({**whole, KEPT: damage})
    assert "\n" not in str(refused.value)


def test_a_pinned_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lessons.json"
    update_records(path, lambda _: Records(campaigns=(learnt(seen({"tp": 4}, 0.1)),)))
    pin = pinned(path)
    assert (pin["campaigns"], pin["models"]) == (1, ["custom-moe"])
    assert Evidence.load(pin).campaigns == Evidence.load(path).campaigns
    update_records(path, lambda known: known + Records(campaigns=(learnt(seen({"tp": 2}, 0.1)),)))
    with pytest.raises(UserError, match="has changed"):
        Evidence.load(pin)
    with pytest.raises(UserError, match="option lessons"):
        Evidence.load(5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="does not exist"):
        Evidence.load(tmp_path / "none.json")
