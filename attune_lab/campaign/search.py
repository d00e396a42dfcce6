"""The search: ask, check, run, tell, until the tuner stops, the budget is spent, or nothing new comes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attune_lab.campaign.baseline import SEARCH_LIMIT, TIMING_STEPS, Baseline
from attune_lab.campaign.budget import BudgetExceeded
from attune_lab.campaign.runner import Runner, describe
from attune_lab.contracts import (
    INFRASTRUCTURE_FAULTS,
    EnvironmentFault,
    Proposal,
    RunReport,
    Tuner,
    UserError,
)
from attune_lab.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from attune_lab.campaign.store import Store
    from attune_lab.contracts import Gate, TuningTask
    from attune_lab.space import SearchSpace

FREE_ANSWERS = 20
"""So many invalid or repeated proposals in a row end the search: it would never spend its budget."""


MAX_REASONS_BYTES = 65_536
"""So much of a proposal's reasons, changes and predictions is kept; more is a tuner gone wrong."""


MAX_STOP_REASON = 500
"""So many characters of a tuner's reason to stop are accepted: it is one sentence for a person."""


@dataclass(frozen=True)
class Trial:
    """A distinct proposal of the search and its outcome."""

    label: str
    proposal: Proposal
    report: RunReport


class TunerFailure(Exception):
    """The tuner raised, or returned something that is no proposal. The message is the reason to stop."""


def search(
    task: TuningTask,
    factory: Callable[[TuningTask], Tuner],
    *,
    baseline: Baseline,
    space: SearchSpace,
    gate: Gate,
    runner: Runner,
) -> tuple[list[Trial], str]:
    """The distinct trials in the order made, and why the search ended.

    The end is stored, so that a campaign killed after it never searches on.
    """
    loop = _Search(baseline, space, gate, runner)
    try:
        reason = loop.go(task, factory)
    except TunerFailure as failure:
        reason = str(failure)
    if loop.stored_end is None:
        runner.store.add_event("search_ended", {"after": loop.asked, "reason": reason})
    return loop.trials, reason


class _Search:
    def __init__(self, baseline: Baseline, space: SearchSpace, gate: Gate, runner: Runner) -> None:
        self.baseline, self.space, self.gate, self.runner = baseline, space, gate, runner
        self.trials: list[Trial] = []
        self.asked = 0
        self.stored_end = _stored_end(runner.store)
        self._known = {baseline.recipe.digest: baseline.runs[0]}

    def go(self, task: TuningTask, factory: Callable[[TuningTask], Tuner]) -> str:
        """Search to the end and return the reason for it."""
        if self._ended_before():
            return self._stored_reason()
        tuner = _guarded(factory, task)
        for run in self.baseline.runs:
            _guarded(tuner.tell, Proposal(self.baseline.recipe, reason="the recipe as it came in"), run)
        free = 0
        while free < FREE_ANSWERS:
            if self._ended_before():
                return self._stored_reason()
            proposal = _usable(_guarded(tuner.ask))
            if proposal is None:
                return _stopped(_guarded(getattr, tuner, "stop_reason", None))
            try:
                report, was_free = self._answer(proposal)
            except BudgetExceeded as refusal:
                return f"the budget is spent: {refusal}"
            self.asked += 1
            free = free + 1 if was_free else 0
            _guarded(tuner.tell, proposal, report)
        return f"the tuner's last {FREE_ANSWERS} proposals were invalid or repeats"

    def _answer(self, proposal: Proposal) -> tuple[RunReport, bool]:
        """The report on a proposal, and whether it was free."""
        label = self.runner.next_label("search")
        earlier = self._known.get(proposal.recipe.digest)
        if earlier is not None and not (proposal.remeasure and earlier.status == "ok"):
            self.runner.record(label, proposal, earlier, repeats=earlier.label)
            return earlier, True
        problems = self._problems(proposal.recipe)
        if problems:
            report = RunReport(
                label=label,
                status="invalid",
                provenance=self.baseline.runs[0].provenance,
                steps=TIMING_STEPS,
                message="; ".join(problems),
            )
            self.runner.record(label, proposal, report)
        else:
            limit_s = SEARCH_LIMIT * self.baseline.step_time_s
            report = self.runner.run(label, "search", proposal, steps=TIMING_STEPS, step_limit_s=limit_s)
        if report.status not in INFRASTRUCTURE_FAULTS:
            self._known[proposal.recipe.digest] = report
        self.trials.append(Trial(label, proposal, report))
        return report, bool(problems)

    def _problems(self, recipe: Recipe) -> list[str]:
        """Why a recipe is not worth a run: it cannot start, or the gate would reject its settings alone."""
        problems = [str(problem) for problem in self.space.problems(recipe)]
        if problems:
            return problems
        verdict = self.gate.configuration(self.baseline.recipe, recipe)
        return [f"the gate would reject it: {reason}" for reason in verdict.reasons if verdict.verdict == "reject"]

    def _ended_before(self) -> bool:
        return self.stored_end is not None and self.asked >= self.stored_end["after"]

    def _stored_reason(self) -> str:
        assert self.stored_end is not None
        return str(self.stored_end["reason"])


def _stored_end(store: Store) -> dict[str, Any] | None:
    """When and why an earlier pass through this campaign ended its search; None when it did not."""
    from attune_lab.campaign.database import understood

    end = store.event("search_ended")
    with understood(store.where):
        if end is not None and not (isinstance(end["reason"], str) and type(end["after"]) is int and end["after"] >= 0):
            raise ValueError("the end of the search is not as it was written")
    return end


def _guarded(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call into the tuner; whatever it raises ends the search, not the campaign.

    `UserError` (bad options) and `EnvironmentFault` (its LLM is unreachable) pass: the user can act on them, and the
    campaign can be resumed. So does an interrupt, which is the user's; an exit is not the tuner's to call.
    """
    try:
        return call(*arguments)
    except (UserError, EnvironmentFault, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise TunerFailure(f"the tuner failed ({type(error).__name__}: {error})") from error


def _stopped(why: object) -> str:
    """The end of a search whose tuner has nothing to propose, with the tuner's own reason where it gives one."""
    if why is None or why == "":
        return "the tuner stopped"
    if not isinstance(why, str) or len(why) > MAX_STOP_REASON or not why.isprintable():
        raise TunerFailure(
            f"the tuner stopped, and its stop_reason is not one line of at most {MAX_STOP_REASON} characters"
        )
    return f"the tuner stopped: {why}"


def _usable(proposal: object) -> Proposal | None:
    """The proposal, when it is one that can be stored and run."""
    if proposal is None:
        return None
    if not isinstance(proposal, Proposal) or not isinstance(proposal.recipe, Recipe):
        raise TunerFailure(f"the tuner returned {type(proposal).__name__} instead of a proposal with a recipe")
    try:
        reasons = json.dumps(describe(proposal), allow_nan=False, ensure_ascii=False)
        json.dumps(proposal.recipe.canonical(), allow_nan=False, ensure_ascii=False).encode()
        size = len(reasons.encode())
    except (TypeError, ValueError, AttributeError) as error:
        raise TunerFailure(f"the tuner returned a proposal that cannot be stored ({error})") from error
    if not isinstance(proposal.reason, str) or not isinstance(proposal.lesson, str | None):
        raise TunerFailure("the tuner returned a proposal whose reason or lesson is no text")
    if size > MAX_REASONS_BYTES:
        raise TunerFailure(f"the tuner returned a proposal with {size} bytes of reasons; {MAX_REASONS_BYTES} are kept")
    return proposal
