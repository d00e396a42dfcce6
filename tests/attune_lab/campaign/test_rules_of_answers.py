"""How repeats, invalid proposals and broken runs are answered; a search that has ended needs no tuner."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from attune_lab.campaign.rules import AnswerRules
from attune_lab.campaign.search import end_search
from attune_lab.campaign.store import open_store
from attune_lab.contracts import UserError
from attune_lab.testing import FakeCluster, FakeSpace, Outcome, ScriptedTuner

sys.path.insert(0, str(Path(__file__).parent))
from scripted import BASELINE, campaign, quick_by_tp, spec_for


def _searched(result: Any) -> list[dict[str, Any]]:
    return [run for run in result.runs if run["purpose"] == "search"]


@pytest.mark.parametrize(("repeats", "charged"), [("stored", 1), ("run", 3)])
def test_a_repeat_is_answered_as_declared(tmp_path: Path, repeats: Any, charged: int) -> None:
    spec = spec_for(rules=AnswerRules(repeats=repeats))
    runs = _searched(campaign(tmp_path, spec=spec, edits=[{"tp": 2}] * 3))
    assert sum(run["charged"] for run in runs) == charged
    assert sum(run["repeated"] for run in runs) == 3 - charged


@pytest.mark.parametrize(("invalid", "charged"), [("free", False), ("charged", True)])
def test_an_invalid_proposal_is_answered_as_declared(tmp_path: Path, invalid: Any, charged: bool) -> None:
    def launch(folder: Path) -> Any:
        spec = spec_for(rules=AnswerRules(invalid=invalid))
        space = FakeSpace(lambda recipe: ["8 does not divide 6"] if recipe.settings["tp"] == 8 else [])
        return campaign(folder, spec=spec, space=space)

    result = launch(tmp_path)
    (run,) = [run for run in _searched(result) if run["status"] == "invalid"]
    assert run["charged"] is charged
    assert run["gpu_hours"] == pytest.approx(8 * 2.0 / 3600 if charged else 0.0)
    assert result.gpu_hours_spent == pytest.approx(sum(run["gpu_hours"] for run in result.runs))
    assert launch(tmp_path) == result


def test_charged_invalid_proposals_end_the_search_at_the_budget(tmp_path: Path) -> None:
    spec = spec_for(rules=AnswerRules(invalid="charged"))
    space = FakeSpace(lambda recipe: ["never"] if recipe.digest != BASELINE.digest else [])
    result = campaign(tmp_path, spec=spec, space=space, edits=[{"tp": 100 + n} for n in range(1000)])
    assert result.stop_reason.startswith("the budget is spent")
    assert result.gpu_hours_spent <= result.gpu_hours_budget


@pytest.mark.parametrize("limit", [1, 5])
def test_free_answers_in_a_row_end_the_search(tmp_path: Path, limit: int) -> None:
    spec = spec_for(rules=AnswerRules(free_answers=limit))
    result = campaign(tmp_path, spec=spec, edits=[{"tp": 2}] * 30)
    assert len(_searched(result)) == 1 + limit


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_broken_runs_are_retried_as_often_as_declared(tmp_path: Path, retries: int) -> None:
    def broken(recipe: Any, steps: int, label: str) -> Outcome:
        return Outcome("node_failure") if recipe.settings["tp"] == 2 else quick_by_tp(recipe, steps, label)

    spec = spec_for(rules=AnswerRules(retries=retries))
    result = campaign(tmp_path, spec=spec, script=broken, edits=[{"tp": 2}])
    assert len(_searched(result)) == 1 + retries


@pytest.mark.parametrize("wrong", [{"repeats": "never"}, {"invalid": ""}, {"free_answers": 0}, {"retries": True}])
def test_a_rule_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(UserError, match=f"rule {next(iter(wrong))}"):
        AnswerRules(**wrong)


def test_usual_rules_leave_a_spec_as_it_was() -> None:
    assert spec_for(rules=AnswerRules()).to_json() == spec_for().to_json()
    assert spec_for(rules=AnswerRules(retries=0)).to_json()["rules"] == {"retries": 0}


def test_a_search_ended_from_outside_goes_to_its_finals_without_the_tuner(tmp_path: Path) -> None:
    class Hanging(ScriptedTuner):
        def ask(self) -> Any:
            if len(self.told) == 5:
                raise KeyboardInterrupt  # what a person, or a watchdog, does to a tuner that hangs
            return super().ask()

    def never(task: Any) -> Any:
        raise AssertionError("the tuner is not asked again")

    edits = ({"tp": 2}, {"tp": 1}, {"tp": 2}, {"tp": 8})
    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path, tuner_factory=lambda task: Hanging(task.baseline, edits))
    with open_store(tmp_path, spec_for()) as store:
        end_search(store, "the tuner hung")
        end_search(store, "said twice")
    result = campaign(tmp_path, tuner_factory=never)
    assert result.stop_reason == "the tuner hung"
    assert result.gain_pct == pytest.approx(25)
    assert [run["status"] for run in _searched(result)] == ["ok", "oom", "ok"]


def test_a_run_cut_off_when_the_search_was_ended_is_finished_and_charged_once(tmp_path: Path) -> None:
    class Dying(FakeCluster):
        def run(self, recipe: Any, *arguments: Any, **named: Any) -> Any:
            if recipe.settings["tp"] == 8:
                raise KeyboardInterrupt
            return super().run(recipe, *arguments, **named)

    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path, cluster=Dying(quick_by_tp))
    with open_store(tmp_path, spec_for()) as store:
        end_search(store, "killed")
    result = campaign(tmp_path)
    whole = campaign(tmp_path / "whole")
    assert replace_reason(result) == replace_reason(whole)


def replace_reason(result: Any) -> Any:
    return result.model_copy(update={"stop_reason": ""})


@pytest.mark.parametrize(
    ("usage", "kept"),
    [
        ({"input_tokens": 10, "output_tokens": 2, "usd": 0.5}, {"input_tokens": 10, "output_tokens": 2, "usd": 0.5}),
        ({"input_tokens": -1}, {}),
        ({"usd": float("nan")}, {}),
        ({"cats": 3}, {}),
        ("much", {}),
    ],
)
def test_the_usage_of_language_models_is_reported(tmp_path: Path, usage: Any, kept: Any) -> None:
    def factory(task: Any) -> Any:
        tuner = ScriptedTuner(task.baseline, [{"tp": 2}])
        tuner.usage = usage  # type: ignore[attr-defined]
        return tuner

    assert campaign(tmp_path, tuner_factory=factory).llm == kept


@pytest.mark.parametrize(
    ("decisions", "kept"),
    [
        (["kept tp 4->2: +25 %", "reverted\nmbs"], ("kept tp 4->2: +25 %", "reverted mbs")),
        (["x" * 2000, 3, "", None], ("x" * 1000,)),
        (7, ()),
        (None, ()),
    ],
)
def test_the_decisions_of_a_tuner_are_kept_line_by_line(tmp_path: Path, decisions: Any, kept: Any) -> None:
    def factory(task: Any) -> Any:
        tuner = ScriptedTuner(task.baseline, [{"tp": 2}])
        tuner.decisions = decisions  # type: ignore[attr-defined]
        return tuner

    assert campaign(tmp_path, tuner_factory=factory).decisions == kept
