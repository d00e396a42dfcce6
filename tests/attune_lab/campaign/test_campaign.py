"""The protocol of a campaign, on a scripted cluster."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import BASELINE, Stubborn, campaign, quick_by_tp, spec_for

from attune_lab.campaign import CampaignResult, Observer
from attune_lab.contracts import EnvironmentFault, Proposal, UserError
from attune_lab.testing import FakeCluster, FakeCostModel, FakeGate, FakeSpace, Outcome, ScriptedTuner

DESIGN_KEYS = {
    "shipped", "shipped_path", "kept_baseline", "baseline_tokens_per_s_per_gpu", "shipped_tokens_per_s_per_gpu",
    "gain_pct", "noise_band_pct", "gpu_hours_budget", "gpu_hours_spent", "runs", "gate", "payback_hours",
}  # fmt: skip


def test_ships_the_faster_recipe_and_says_what_the_others_were_lost_to(tmp_path: Path) -> None:
    result = campaign(tmp_path)
    assert result.shipped == {"gbs": 64, "mbs": 2, "tp": 2, "env.NCCL_NVLS_ENABLE": "1"}
    assert result.gain_pct == pytest.approx(25)
    assert not result.kept_baseline
    assert {loss["label"]: loss["reason"] for loss in result.lost} == {
        "004-search": "oom: CUDA out of memory",
        "005-search": "slower than the baseline (-23.1%)",
    }
    assert [run["label"] for run in result.runs] == [
        "000-baseline", "001-baseline", "002-twin", "003-search", "004-search", "005-search", "finalist-1",
    ]  # fmt: skip
    assert result.stop_reason == "the tuner stopped"


def test_the_json_object_has_the_promised_keys_and_is_json(tmp_path: Path) -> None:
    data = campaign(tmp_path).to_json()
    assert set(data) >= DESIGN_KEYS
    assert set(data["gate"]) == {"verdict", "reasons"}
    assert all(set(run) >= {"status", "changed", "tokens_per_s_per_gpu", "gpu_hours"} for run in data["runs"])
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_bill_is_the_sum_of_the_runs_and_one_x_is_one_timing_run(tmp_path: Path) -> None:
    result = campaign(tmp_path)
    assert result.run_cost_gpu_hours == pytest.approx(8 * (2 + 8) / 3600)
    assert result.gpu_hours_budget == pytest.approx(40 * result.run_cost_gpu_hours)
    assert result.gpu_hours_spent == pytest.approx(sum(run["gpu_hours"] for run in result.runs), rel=1e-12)
    assert result.usd_spent == pytest.approx(2 * result.gpu_hours_spent)
    # With the shipped recipe 8 GPUs save 8 * 0.25 GPU-hours an hour.
    assert result.payback_hours == pytest.approx(result.gpu_hours_spent / 2)


def test_a_finished_campaign_is_read_back_without_a_run(tmp_path: Path) -> None:
    first = campaign(tmp_path)
    cluster = FakeCluster(quick_by_tp)
    assert campaign(tmp_path, cluster=cluster) == first
    assert cluster.labels == []


def test_figures_that_are_no_numbers_survive_the_store(tmp_path: Path) -> None:
    class Unsure(ScriptedTuner):
        def ask(self):
            proposal = super().ask()
            return proposal and replace(proposal, predicted={"step_time_s": float("nan")})

    first, again = (campaign(tmp_path, tuner_factory=lambda task: Unsure(BASELINE, [{"tp": 2}])) for _ in range(2))
    assert first == again
    assert first.runs[3]["predicted"] == {"step_time_s": None}


def test_the_tuner_is_credited_with_the_second_measurement(tmp_path: Path) -> None:
    def lucky(recipe, steps, label):
        return Outcome(step_time_s={"003-search": 0.5, "finalist-1": 0.9}.get(label, 1.0))

    assert campaign(tmp_path, edits=[{"tp": 2}], script=lucky).gain_pct == pytest.approx(100 / 0.9 - 100)


def test_a_lucky_sample_is_not_shipped(tmp_path: Path) -> None:
    def lucky(recipe, steps, label):
        return Outcome(step_time_s=0.5 if label == "003-search" else 1.0)

    result = campaign(tmp_path, edits=[{"tp": 2}], script=lucky)
    assert result.kept_baseline
    assert result.gain_pct == 0
    assert result.payback_hours is None
    assert result.lost[0]["reason"] == "measured again: inside the noise band (+0.00%, band 1.00%)"


def test_the_next_finalist_is_tried_when_the_gate_rejects_the_first(tmp_path: Path) -> None:
    def script(recipe, steps, label):
        return Outcome(step_time_s={2: 0.7, 1: 0.8}.get(recipe.settings["tp"], 1.0))

    gate = FakeGate(lambda recipe: "The loss is too high." if recipe.settings["tp"] == 2 else None)
    result = campaign(tmp_path, edits=[{"tp": 1}, {"tp": 2}], script=script, gate=gate)
    assert result.shipped["tp"] == 1
    assert result.shipped_label == "finalist-2"
    assert result.lost[0]["reason"] == "gate says reject: The loss is too high."


def test_invalid_and_repeated_proposals_are_free(tmp_path: Path) -> None:
    space = FakeSpace(lambda recipe: ["tp 3 does not divide 64 heads"] if recipe.settings["tp"] == 3 else [])
    result = campaign(tmp_path, edits=[{"tp": 3}, {"tp": 2}, {"tp": 2}, {"tp": 4}], space=space)
    runs = {run["label"]: run for run in result.runs}
    assert runs["003-search"]["status"] == "invalid"
    assert runs["003-search"]["message"] == "tp 3 does not divide 64 heads"
    assert runs["005-search"]["repeats"] == "004-search"
    assert runs["006-search"]["repeats"] == "000-baseline"
    assert all(runs[label]["gpu_hours"] == 0 for label in ("003-search", "005-search", "006-search"))


def test_twenty_free_answers_in_a_row_end_the_search(tmp_path: Path) -> None:
    result = campaign(tmp_path, tuner_factory=lambda task: Stubborn(task.baseline))
    assert result.stop_reason == "the tuner's last 20 proposals were invalid or repeats"
    assert len(result.runs) == 3 + 20


def test_the_search_ends_when_the_next_run_could_overshoot(tmp_path: Path) -> None:
    result = campaign(tmp_path, edits=[{"gbs": 64 * n} for n in range(2, 99)], spec=spec_for("20x"))
    assert result.stop_reason.startswith("the budget is spent: ")
    assert result.stop_reason.endswith(" are left for the search; the rest is reserved for the finals")
    assert result.gpu_hours_spent <= result.gpu_hours_budget


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_a_node_failure_is_charged_and_retried(tmp_path: Path, broken: int) -> None:
    def script(recipe, steps, label):
        tries = ["003-search", "003-search-retry1", "003-search-retry2"][:broken]
        if label in tries:
            return Outcome("node_failure", steps_made=3)
        return quick_by_tp(recipe, steps, label)

    result = campaign(tmp_path, edits=[{"tp": 2}], script=script)
    runs = [run for run in result.runs if run["label"].startswith("003")]
    assert [run["status"] for run in runs] == (["node_failure"] * broken + ["ok"])[:3]
    assert all(run["charged"] for run in runs)
    assert result.kept_baseline == (broken == 3)


class Explaining(ScriptedTuner):
    stop_reason: Any = "nothing legal is left to try"


class ExplainingAtLength(Explaining):
    stop_reason = "because " * 100


class ExplainingOnTwoLines(Explaining):
    stop_reason = "enough\nsaid"


class ExplainingWithANumber(Explaining):
    stop_reason = 7


class Silent(Explaining):
    stop_reason = ""


class Choking(Explaining):
    @property
    def stop_reason(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("tuner", "reason"),
    [
        (Explaining, "the tuner stopped: nothing legal is left to try"),
        (Silent, "the tuner stopped"),
        (ExplainingAtLength, "the tuner stopped, and its stop_reason is not one line of at most 500 characters"),
        (ExplainingOnTwoLines, "the tuner stopped, and its stop_reason is not one line of at most 500 characters"),
        (ExplainingWithANumber, "the tuner stopped, and its stop_reason is not one line of at most 500 characters"),
        (Choking, "the tuner failed (RuntimeError: no words; test_campaign.py, line N)"),
    ],
)
def test_a_tuner_may_say_why_it_stops(tmp_path: Path, tuner, reason: str) -> None:
    result = campaign(tmp_path, tuner_factory=lambda task: tuner(task.baseline, [{"tp": 2}]))
    assert re.sub(r"line \d+", "line N", result.stop_reason) == reason
    assert len(result.runs) > 3


class Raising(ScriptedTuner):
    def tell(self, proposal, report):
        if proposal.changed:
            raise RuntimeError("out of ideas")


class Talking(ScriptedTuner):
    def ask(self):
        return "try tp=2"


class Leaving(ScriptedTuner):
    def ask(self):
        raise SystemExit(3)


class _Reasoning(ScriptedTuner):
    reason: Any = ""

    def ask(self):
        return Proposal(BASELINE.with_settings({"tp": 2}), reason=self.reason)


class Numbering(_Reasoning):
    reason = 5


class Surrogate(_Reasoning):
    reason = "\udcff"


class Rambling(_Reasoning):
    reason = "because " * 10_000


class Unstorable(ScriptedTuner):
    def ask(self):
        return Proposal(BASELINE, {"tp": (object(), 2)})


@pytest.mark.parametrize(
    ("tuner", "reason"),
    [
        (Raising, "the tuner failed (RuntimeError: out of ideas; test_campaign.py, line "),
        (Talking, "the tuner returned str instead of a proposal with a recipe"),
        (Unstorable, "the tuner returned a proposal that cannot be stored"),
        (Leaving, "the tuner failed (SystemExit: 3; test_campaign.py, line "),
        (Numbering, "the tuner returned a proposal whose reason or lesson is no text"),
        (Surrogate, "the tuner returned a proposal that cannot be stored"),
        (Rambling, "the tuner returned a proposal with "),
    ],
)
def test_a_broken_tuner_ends_the_search_and_not_the_campaign(tmp_path: Path, tuner, reason: str) -> None:
    result = campaign(tmp_path, tuner_factory=lambda task: tuner(task.baseline, [{"tp": 2}]))
    assert result.stop_reason.startswith(reason)
    assert result.kept_baseline == (tuner is not Raising)


@pytest.mark.parametrize("budget", ["1x", "0.01", "10x"])
def test_a_budget_too_small_is_refused_before_any_run_and_the_smallest_named_one_works(tmp_path: Path, budget) -> None:
    cluster = FakeCluster(quick_by_tp)
    with pytest.raises(UserError, match=r"take at least \d+x or [\d.]+h") as refusal:
        campaign(tmp_path / "small", spec=spec_for(budget), cluster=cluster)
    assert cluster.labels == []
    words = str(refusal.value).split()
    for name in (words[-3], words[-1]):
        assert campaign(tmp_path / name, spec=spec_for(name)).gain_pct == pytest.approx(25)


def test_a_baseline_that_cannot_start_or_run_is_the_users_to_change(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot start .* heads"):
        campaign(tmp_path / "a", cost_model=FakeCostModel(problems=("tp does not divide the heads",)))
    with pytest.raises(UserError, match=r"does not run .* no memory"):
        campaign(tmp_path / "b", script=lambda *_: Outcome("oom", message="no memory"))
    with pytest.raises(EnvironmentFault, match="every try"):
        campaign(tmp_path / "c", script=lambda *_: Outcome("node_failure", steps_made=1))


def test_what_the_first_runs_leave_may_not_pay_for_a_final_run(tmp_path: Path) -> None:
    def script(recipe, steps, label):
        return Outcome("node_failure", 1.1, steps_made=18) if label == "000-baseline" else Outcome(step_time_s=1.1)

    result = campaign(tmp_path, spec=spec_for("0.131"), cost_model=FakeCostModel(0.3), script=script)
    assert [run["label"] for run in result.runs] == ["000-baseline", "000-baseline-retry1"]
    assert result.kept_baseline
    assert "not enough budget was left" in result.stop_reason


def test_without_a_twin_the_baseline_runs_a_third_time(tmp_path: Path) -> None:
    space = FakeSpace(lambda recipe: ["no"] if recipe.settings["mbs"] != 2 else [])
    labels = [run["label"] for run in campaign(tmp_path, space=space).runs]
    assert labels[:4] == ["000-baseline", "001-baseline", "002-baseline", "003-search"]


def test_a_twin_that_fails_is_replaced_by_a_third_baseline_run(tmp_path: Path) -> None:
    def script(recipe, steps, label):
        return Outcome("crash") if label == "002-twin" else quick_by_tp(recipe, steps, label)

    labels = [run["label"] for run in campaign(tmp_path, script=script).runs]
    assert labels[:5] == ["000-baseline", "001-baseline", "002-twin", "003-baseline", "004-search"]


@pytest.mark.parametrize("spoilt", ["000-baseline", "001-baseline", "003-baseline"])
def test_a_slow_node_under_the_baseline_makes_no_gain(tmp_path: Path, spoilt: str) -> None:
    def script(recipe, steps, label):
        return Outcome(step_time_s=1.2) if label == spoilt else quick_by_tp(recipe, steps, label)

    result = campaign(tmp_path, edits=[{"tp": 2}], script=script)
    assert result.gain_pct == pytest.approx(25)
    assert result.noise_band_pct == pytest.approx(1)
    assert ("003-baseline" in [run["label"] for run in result.runs]) == (spoilt != "003-baseline")


def test_a_cluster_that_breaks_its_contract_is_named(tmp_path: Path) -> None:
    class Mislabelled(FakeCluster):
        def run(self, recipe, steps, *, label, step_limit_s=None):
            return super().run(recipe, steps, label="other", step_limit_s=step_limit_s)

    with pytest.raises(EnvironmentFault, match="answered for other"):
        campaign(tmp_path / "a", cluster=Mislabelled(quick_by_tp))
    with pytest.raises(EnvironmentFault, match="charged nan"):
        campaign(tmp_path / "b", script=lambda *_: Outcome(gpu_hours=float("nan")))


def test_a_run_beyond_its_bound_is_charged_the_bound_and_shown(tmp_path: Path) -> None:
    def script(recipe, steps, label):
        return Outcome(gpu_hours=1.0) if label == "003-search" else quick_by_tp(recipe, steps, label)

    (run,) = (run for run in campaign(tmp_path, script=script).runs if run["label"] == "003-search")
    assert run["gpu_hours"] == pytest.approx(8 * (4 + 8 * 1.5) / 3600)
    assert run["gpu_hours"] + run["overrun_gpu_hours"] == pytest.approx(1.0)


def test_the_observer_hears_every_run_and_the_shipped_recipe_is_written(tmp_path: Path) -> None:
    class Ear(Observer):
        def __init__(self) -> None:
            self.heard: list[str] = []

        def phase(self, name):
            self.heard.append(name)

        def run_finished(self, row, budget):
            self.heard.append(row.label)

        def finished(self, result):
            assert isinstance(result, CampaignResult)
            self.heard.append("finished")

    ear, target = Ear(), tmp_path / "shipped.txt"

    def ship(recipe):
        target.write_text(str(recipe.settings["tp"]))
        return target

    result = campaign(tmp_path, edits=[{"tp": 2}], observer=ear, ship=ship)
    assert ear.heard == [
        "baseline", "000-baseline", "001-baseline", "002-twin", "search", "003-search", "finalists", "finalist-1",
        "finished",
    ]  # fmt: skip
    assert (result.shipped_path, target.read_text()) == (str(target), "2")
