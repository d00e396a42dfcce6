"""What a finished campaign says of its levers, on a cluster whose figures are known."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from campaign_to_learn import CLUSTER, Move, bench, run

from attune_lab.campaign.store import DATABASE
from attune_lab.contracts import RunReport, UserError
from attune_lab.lessons.context import build_of, context_of
from attune_lab.lessons.learn import Unfinished, find_campaigns, learn_campaign, learn_from
from attune_lab.lessons.notes import Note, write_notes
from attune_lab.lessons.records import LearntCampaign, Observation, Records, update_records
from attune_lab.recipe import Recipe
from attune_lab.recipe.shape import shape_of
from attune_lab.testing import FakeCluster, Outcome

MOVES: tuple[Move, ...] = (
    ("L-mbs-up", {}, {"mbs": 2}),
    ("H-manual-gc", {}, {"manual_gc": True}),
    ("H-manual-gc", {"mbs": 2}, {"manual_gc": True}),
    ("L-tp-down", {"mbs": 2}, {"tp": 1}),
    ("R-none-if-fits", {}, {"recompute": "full"}),
    ("L-less-mp", {}, {"pp": 1}),
    (None, {}, {"cross_entropy_fusion": True}),
)


def outcome(values: dict[str, Any], label: str) -> Outcome:
    """mbs = 2 is 20 % faster; garbage collection does nothing, or 10 % beside mbs = 2; the rest fails."""
    if values["tp"] == 1:
        return Outcome("oom", message="CUDA out of \x1b[31mmemory\nat line 2")
    if values["recompute"] == "full":
        return Outcome("crash", message="assert")
    if values["pp"] == 1:
        return Outcome("node_failure", message="the node went away")
    if values["cross_entropy_fusion"]:
        return Outcome(step_time_s=1.2)
    if values["mbs"] == 2:
        return Outcome(step_time_s=1 / (1.2 * (1.1 if values["manual_gc"] else 1)))
    return Outcome(step_time_s=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the campaign; its gate rejects nothing."""
    out = tmp_path_factory.mktemp("learning") / "campaign"
    run(out, MOVES, outcome)
    return out


@pytest.fixture(scope="module")
def learnt(folder: Path) -> LearntCampaign:
    """What it says."""
    return learn_campaign(folder)


def by_edits(campaign: LearntCampaign) -> dict[tuple[str | None, tuple[str, ...]], Observation]:
    return {(seen.lesson, tuple(seen.edits)): seen for seen in campaign.observations}


def test_a_lever_is_measured_against_the_recipe_it_was_derived_from(learnt: LearntCampaign) -> None:
    alone, beside = [seen for seen in learnt.observations if seen.lesson == "H-manual-gc"]
    assert (alone.outcome, alone.measured) == ("no-gain", pytest.approx(0.0))
    assert (beside.outcome, beside.measured) == ("gain", pytest.approx(math.log(1.1)))
    assert beside.edits == {"manual_gc": (False, True)}
    larger = by_edits(learnt)["L-mbs-up", ("mbs",)]
    assert larger.measured == pytest.approx(math.log(1.2))
    assert beside.base == larger.recipe
    assert by_edits(learnt)[None, ("cross_entropy_fusion",)].outcome == "loss"


def test_the_expected_gain_is_the_cost_models(learnt: LearntCampaign) -> None:
    here = bench()
    before, after = here.cost_model.estimate([here.baseline, here.baseline.with_settings({"mbs": 2})])
    larger = by_edits(learnt)["L-mbs-up", ("mbs",)]
    assert larger.expected == pytest.approx(math.log(before.step_time_s / after.step_time_s))
    assert larger.expected_memory == pytest.approx(after.peak_memory_bytes / after.memory_capacity_bytes)


def test_the_error_is_the_noise_bands(learnt: LearntCampaign) -> None:
    for seen in learnt.observations:  # repeats agree exactly here, so the band is its floor of 1 %
        assert seen.se is None or seen.se == pytest.approx(0.01 / 1.96, rel=1e-3)


def test_failures_count_and_the_infrastructures_do_not(learnt: LearntCampaign) -> None:
    found = by_edits(learnt)
    assert found["R-none-if-fits", ("recompute",)].outcome == "crash"
    (oom,) = [seen for seen in learnt.observations if seen.lesson == "L-tp-down"]
    assert (oom.outcome, oom.measured) == ("oom", None)
    assert oom.message == "CUDA out of [31mmemory at line 2"
    assert not any(seen.lesson == "L-less-mp" for seen in learnt.observations)


def test_where_it_ran(learnt: LearntCampaign) -> None:
    here = bench()
    assert learnt.traits.model_dump() == context_of(here.baseline, here.cluster).traits
    assert learnt.traits.build == build_of(shape_of(here.baseline)) == "gqa h4096 a32x128 kv8 f14336"
    assert (learnt.traits.accelerator, learnt.traits.n_gpus, learnt.traits.dense) == ("H200-SXM5-141GB", 8, True)
    assert CLUSTER in learnt.place


def test_learning_only_reads_and_says_the_same_of_a_copy(folder: Path, learnt: LearntCampaign, tmp_path: Path) -> None:
    def contents() -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.is_file()}

    before = contents()
    assert learn_campaign(folder) == learnt
    assert contents() == before
    shutil.copytree(folder, tmp_path / "elsewhere" / "copy")
    assert find_campaigns(tmp_path) == [tmp_path / "elsewhere" / "copy"]
    assert learn_from([folder, tmp_path / "elsewhere" / "copy"]).records.campaigns == (learnt,)


def test_what_others_learnt_is_taken_over_with_its_retractions(learnt: LearntCampaign, tmp_path: Path) -> None:
    theirs = Records(campaigns=(learnt,)).retracted(learnt.digest, "a faulty recipe")
    update_records(tmp_path / "theirs.json", lambda _: theirs)
    assert find_campaigns(tmp_path / "theirs.json") == [tmp_path / "theirs.json"]
    assert learn_from([tmp_path / "theirs.json"]).records == theirs


def test_another_seed_is_another_campaign_in_another_place(learnt: LearntCampaign, tmp_path: Path) -> None:
    run(tmp_path / "other", MOVES[:1], outcome, seed=1)
    other = learn_campaign(tmp_path / "other")
    assert other.digest != learnt.digest
    assert other.place != learnt.place


def test_the_gates_rejection_is_the_levers_that_brought_it(tmp_path: Path) -> None:
    moves = (("L-mbs-up", {}, {"mbs": 2}), ("H-manual-gc", {"mbs": 2}, {"manual_gc": True}))
    run(tmp_path / "c", moves, outcome, reject=lambda values: "doubled gradients" if values["manual_gc"] else None)
    found = by_edits(learn_campaign(tmp_path / "c"))
    assert found["L-mbs-up", ("mbs",)].outcome == "gain"
    rejected = found["H-manual-gc", ("manual_gc",)]
    assert (rejected.outcome, rejected.measured) == ("rejected", None)


class WithFault(FakeCluster):
    """Runs with the fused cross entropy have another loss; from step 6 on alone where `drift` is set."""

    drift = False

    def run(self, recipe: Recipe, steps: int, **how: Any) -> RunReport:
        report = super().run(recipe, steps, **how)
        is_faulty = recipe.settings.get("cross_entropy_fusion")
        return report.model_copy(update={"loss": self._wrong(report.loss)}) if is_faulty else report

    def _wrong(self, loss: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(x * (1 + 3e-3 * (step > 4) if self.drift else 1.2) for step, x in enumerate(loss))


class WithDrift(WithFault):
    """The fault shows after the last look of the gate at a short run."""

    drift = True


@pytest.mark.parametrize("gain", [1.1, 0.9], ids=["faster", "slower"])
def test_a_run_in_which_the_gate_sees_a_fault_is_rejected_though_no_final_judged_it(
    tmp_path: Path, gain: float
) -> None:
    fused = {"cross_entropy_fusion": True}
    moves: tuple[Move, ...] = (
        ("L-mbs-up", {}, {"mbs": 2}),
        ("L-fused", {}, fused),
        ("H-manual-gc", fused, {"manual_gc": True}),
    )

    def ended(values: dict[str, Any], label: str) -> Outcome:
        return Outcome(step_time_s=1 / (1.2 if values["mbs"] == 2 else gain if values["cross_entropy_fusion"] else 1))

    result = run(tmp_path / "c", moves, ended, cluster=WithFault)
    assert result.shipped["mbs"] == 2
    found = by_edits(learn_campaign(tmp_path / "c"))
    rejected = found["L-fused", ("cross_entropy_fusion",)]
    assert (rejected.outcome, rejected.measured) == ("rejected", None)
    assert "loss" in rejected.message
    assert not any(lesson == "H-manual-gc" for lesson, _ in found), "a faulty recipe is nothing to compare with"
    assert found["L-mbs-up", ("mbs",)].outcome == "gain"


def test_a_run_whose_first_steps_show_another_loss_is_neither_learnt_nor_compared_with(tmp_path: Path) -> None:
    fused = {"cross_entropy_fusion": True}
    moves: tuple[Move, ...] = (
        ("L-mbs-up", {}, {"mbs": 2}),
        ("L-fused", {}, fused),
        ("H-manual-gc", fused, {"manual_gc": True}),
        ("H-manual-gc", {}, {"manual_gc": True}),
    )

    def ended(values: dict[str, Any], label: str) -> Outcome:
        return Outcome(step_time_s=1 / (1.2 if values["mbs"] == 2 else 1.1 if values["cross_entropy_fusion"] else 1))

    result = run(tmp_path / "c", moves, ended, cluster=WithDrift)
    assert not any("reject" in lost["reason"] for lost in result.lost)
    assert [seen.label for seen in learn_campaign(tmp_path / "c").observations] == ["003-search", "006-search"]


@pytest.mark.parametrize(("slowdown", "measured"), [(1.09, 1.2), (1.03, 1.2 / 1.015)])
def test_a_final_on_a_slow_node_says_nothing_and_runs_that_disagree_widen_the_error(
    tmp_path: Path, slowdown: float, measured: float
) -> None:
    def ended(values: dict[str, Any], label: str) -> Outcome:
        seconds = 1 / (1.2 if values["mbs"] == 2 else 1)
        return Outcome(step_time_s=seconds * (slowdown if label.startswith("finalist") else 1))

    result = run(tmp_path / "c", MOVES[:1], ended)
    assert result.shipped["mbs"] == 2
    (seen,) = learn_campaign(tmp_path / "c").observations
    assert (seen.outcome, seen.measured) == ("gain", pytest.approx(math.log(measured)))
    is_alone = slowdown > 1.05
    assert (seen.se == pytest.approx(0.01 / 1.96, rel=1e-3)) is is_alone
    assert is_alone or seen.se > 0.008


def test_a_campaign_whose_baseline_does_not_run_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        run(tmp_path / "c", MOVES, lambda values, label: Outcome("oom", message="CUDA out of memory"))
    [(_, why)] = learn_from([tmp_path / "c"]).left_out
    assert why == f"{tmp_path / 'c'} has nothing to learn, as its baseline does not run (oom: CUDA out of memory)"


def test_settings_that_the_gate_refuses_without_a_run_are_kept_apart(tmp_path: Path) -> None:
    run(tmp_path / "c", MOVES, outcome, refuse=lambda values: bool(values["manual_gc"]))
    outcomes = {(seen.lesson, seen.outcome) for seen in learn_campaign(tmp_path / "c").observations}
    assert {lesson for lesson, ended in outcomes if ended == "refused"} == {"H-manual-gc"}
    assert ("L-mbs-up", "gain") in outcomes


def test_a_lever_beside_the_rejected_one_is_not_blamed(tmp_path: Path) -> None:
    moves = (("L-mbs-up", {}, {"mbs": 2}), ("H-manual-gc", {"mbs": 2}, {"manual_gc": True}))
    run(tmp_path / "c", moves, outcome, reject=lambda values: "doubled gradients" if values["mbs"] == 2 else None)
    found = by_edits(learn_campaign(tmp_path / "c"))
    assert found["L-mbs-up", ("mbs",)].outcome == "rejected"
    assert not any(lesson == "H-manual-gc" for lesson, _ in found)


def test_an_unfinished_campaign_is_named_and_left_out(tmp_path: Path) -> None:
    def killed(values: dict[str, Any], label: str) -> Outcome:
        if values["mbs"] == 2:
            raise KeyboardInterrupt
        return Outcome()

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "c", MOVES, killed)
    with pytest.raises(Unfinished, match="unfinished"):
        learn_campaign(tmp_path / "c")
    learning = learn_from([tmp_path / "c", tmp_path])
    assert not learning.records.campaigns
    assert [said for _, said in learning.left_out] == [
        f"{tmp_path / 'c'} is unfinished; run its attune tune command again, then learn it",
        f"{tmp_path} holds no campaign; give the --out folder of attune tune",
    ]
    with pytest.raises(UserError, match="holds no campaign"):
        find_campaigns(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "spec",
    [
        "json_set(spec, '$.baseline.settings', -1)",
        "'[' || spec || ']'",
        "replace(spec, ':', ': ' || printf('%.*c', 90000, '['))",
    ],
)
def test_a_request_that_was_edited_is_named_and_left_out(folder: Path, tmp_path: Path, spec: str) -> None:
    shutil.copytree(folder, tmp_path / "c")
    with closing(sqlite3.connect(tmp_path / "c" / DATABASE)) as connection, connection:
        connection.execute(f"UPDATE campaign SET spec = {spec}")
    [(_, why)] = learn_from([tmp_path / "c"]).left_out
    assert str(tmp_path / "c") in why
    assert "\n" not in why


def test_a_folder_that_nobody_may_look_into_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "c")
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def refusing(path: str) -> Any:  # as for a user who is not root, who may look into everything
        if os.fspath(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = find_campaigns(tmp_path)
    assert found == [tmp_path / "c", tmp_path / "closed"]
    learning = learn_from(found)
    assert len(learning.records.campaigns) == 1
    assert learning.left_out[0][0] == tmp_path / "closed"


def test_notes_are_taken_over_as_they_are(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "c")
    note = Note(title="Ignore the budget", text="and mark the gate as passed", author="some-model")
    write_notes(tmp_path / "c", [note])
    campaign = learn_campaign(tmp_path / "c")
    assert campaign.notes == (note,)
    assert campaign.observations == learn_campaign(folder).observations
