"""The search: ask, check, run, tell, until the tuner stops, the budget is spent, or nothing new comes.

A search that has ended is never taken up again: on the next pass its proposals come from the store, not the tuner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from attune_lab.foreign import told, told_with_place, traceback_of
from attune_lab.recipe import Recipe
from attune_lab.writing import write_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from attune_lab.campaign.rules import AnswerRules
    from attune_lab.campaign.store import RunRow, Store
    from attune_lab.contracts import Gate, TuningTask
    from attune_lab.space import SearchSpace

MAX_REASONS_BYTES = 65_536
"""So much of a proposal's reasons, changes and predictions is kept; more is a tuner gone wrong."""


MAX_RECIPE_BYTES = 4_194_304
"""So much of a recipe is kept; those of files are far smaller."""


MAX_DECISIONS, MAX_DECISION = 2000, 1000
"""So many of a tuner's decisions are kept, and so many characters of each."""


MAX_STOP_REASON = 500
"""So many characters of a tuner's reason to stop are accepted: it is one sentence for a person."""


USAGE = ("input_tokens", "output_tokens", "usd")
"""What a tuner's ``usage`` may account for."""

TRACEBACK = "tuner_traceback.txt"
"""File of a campaign's folder with the traceback of a tuner that failed."""

_END = "search_ended"
_RETRY = "-retry"


@dataclass(frozen=True)
class Trial:
    """A distinct proposal of the search and its outcome."""

    label: str
    proposal: Proposal
    report: RunReport


@dataclass(frozen=True)
class Search:
    """A search that is over.

    Attributes:
        trials: the distinct proposals, in the order made.
        stop_reason: why it ended.
        usage: what the tuner's language models used (``input_tokens``, ``output_tokens``, ``usd``); empty without any.
        failed: it ended because the tuner raised, or returned something that is no proposal.
        decisions: what the tuner says it kept, reverted or left out, one line each.
        choice: digest of the recipe that the tuner chose to ship; None where it leaves that to the finals.
    """

    trials: list[Trial]
    stop_reason: str
    usage: Mapping[str, float]
    failed: bool = False
    decisions: tuple[str, ...] = ()
    choice: str | None = None


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
    rules: AnswerRules,
    render: Callable[[Recipe], object] | None = None,
) -> Search:
    """The search of one tuner, made to its end or read back from the store; ``render`` as of `run_campaign`."""
    loop = _Loop(baseline, space, gate, runner, rules, render)
    end = _stored_end(runner.store)
    if end is None:
        end = loop.go(task, factory)
        runner.store.add_event(_END, end)
    else:
        loop.repeat()
    decisions, choice = tuple(end.get("decisions", ())), end.get("choice")
    return Search(loop.trials, end["reason"], end["usage"], end["failed"], decisions, choice)


def end_search(store: Store, reason: str) -> None:
    """End the search of a campaign from outside, as when its tuner hangs; the campaign goes on with its finals."""
    if _stored_end(store) is None:
        store.add_event(_END, {"reason": reason, "usage": {}, "failed": False})


class _Loop:
    def __init__(
        self,
        baseline: Baseline,
        space: SearchSpace,
        gate: Gate,
        runner: Runner,
        rules: AnswerRules,
        render: Callable[[Recipe], object] | None,
    ) -> None:
        self.baseline, self.space, self.gate, self.runner, self.rules = baseline, space, gate, runner, rules
        self.render = render
        self.trials: list[Trial] = []
        self._known = {baseline.recipe.digest: baseline.runs[0]}

    def go(self, task: TuningTask, factory: Callable[[TuningTask], Tuner]) -> dict[str, Any]:
        """Search to the end: the reason for it, and what language models used on the way."""
        tuner, failed = None, False
        try:
            tuner = _guarded(factory, task)
            reason = self._search(tuner)
        except TunerFailure as failure:
            reason, failed = str(failure), True
            if task.desk is not None:
                write_file(task.desk.folder / TRACEBACK, traceback_of(failure).encode(errors="backslashreplace"))
        if tuner is None:
            return {"reason": reason, "usage": {}, "failed": failed}
        said = {"decisions": _decisions(tuner), "choice": _choice(tuner)}
        return {"reason": reason, "usage": _usage(tuner), "failed": failed, **said}

    def repeat(self) -> None:
        """Go through the stored proposals of a search that has ended, without its tuner."""
        for row in self.runner.store.runs():
            if row.purpose == "search" and _RETRY not in row.label:
                self._answer(_proposal(row))

    def _search(self, tuner: Tuner) -> str:
        """Search to the end and return the reason for it."""
        for run in self.baseline.runs:
            _guarded(tuner.tell, Proposal(self.baseline.recipe, reason="the recipe as it came in"), run)
        free = 0
        while free < self.rules.free_answers:
            asked = _guarded(tuner.ask)
            proposal = _usable(asked)
            if proposal is None:
                return _stopped(_guarded(getattr, tuner, "stop_reason", None))
            try:
                report, was_free = self._answer(proposal)
            except BudgetExceeded as refusal:
                return f"the budget is spent: {refusal} for the search; the rest is reserved for the finals"
            free = free + 1 if was_free else 0
            _guarded(tuner.tell, asked, report)
        return f"the tuner's last {self.rules.free_answers} proposals were invalid or repeats"

    def _answer(self, proposal: Proposal) -> tuple[RunReport, bool]:
        """The report on a proposal, and whether it was free.

        Raises:
            BudgetExceeded: the run could overshoot the budget, and was not started.
        """
        label = self.runner.next_label("search")
        earlier = self._known.get(proposal.recipe.digest)
        if earlier is not None and not self._runs_again(proposal, earlier):
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
                gpu_hours=self._price_of_invalid(),
            )
            self.runner.record(label, proposal, report, charge=report.gpu_hours > 0)
        else:
            limit_s = SEARCH_LIMIT * self.baseline.step_time_s
            report = self.runner.run(label, "search", proposal, steps=TIMING_STEPS, step_limit_s=limit_s)
        if report.status not in INFRASTRUCTURE_FAULTS:
            self._known[proposal.recipe.digest] = report
        self.trials.append(Trial(label, proposal, report))
        return report, bool(problems) and report.gpu_hours == 0

    def _runs_again(self, proposal: Proposal, earlier: RunReport) -> bool:
        """Whether a recipe that was answered before is run once more."""
        if earlier.status == "invalid":
            return False
        return self.rules.repeats == "run" or (proposal.remeasure and earlier.status == "ok")

    def _price_of_invalid(self) -> float:
        """GPU-hours of a launch that dies while starting: the baseline's start-up, where the rules charge it."""
        if self.rules.invalid == "free":
            return 0.0
        return self.runner.cluster.spec.n_gpus * self.baseline.runs[0].startup_s / 3600

    def _problems(self, recipe: Recipe) -> list[str]:
        """Why a recipe is not worth a run: it cannot start, the gate would reject its settings alone, or the user's
        file cannot say it.
        """
        problems = [str(problem) for problem in self.space.problems(recipe)]
        if problems:
            return problems
        verdict = self.gate.configuration(self.baseline.recipe, recipe)
        if verdict.verdict == "reject":
            return [f"the gate would reject it: {reason}" for reason in verdict.reasons]
        try:
            if self.render is not None:
                self.render(recipe)
        except UserError as error:
            return [f"it could not be shipped: {error}"]
        return []


def _stored_end(store: Store) -> dict[str, Any] | None:
    """Why an earlier pass through this campaign ended its search, and the usage; None when it did not."""
    from attune_lab.campaign.database import understood

    end = store.event(_END)
    with understood(store.where):
        if end is not None and not (
            isinstance(end["reason"], str)
            and _is_usage(end["usage"])
            and type(end["failed"]) is bool
            and all(isinstance(line, str) for line in end.get("decisions", ()))
            and isinstance(end.get("choice"), str | None)
        ):
            raise ValueError("the end of the search is not as it was written")
    return end


def _proposal(row: RunRow) -> Proposal:
    """The proposal behind a stored run; one that ran although its recipe was known asked for that."""
    said = row.proposal
    return Proposal(
        row.recipe,
        changed={key: (before, after) for key, (before, after) in said["changed"].items()},
        reason=said["reason"],
        lesson=said["lesson"],
        predicted={key: math.nan if value is None else value for key, value in said["predicted"].items()},
        remeasure=row.repeats is None,
    )


def _usage(tuner: Tuner) -> dict[str, float]:
    """What the tuner says its language models used; what is no such account says nothing."""
    try:
        usage = _guarded(getattr, tuner, "usage", None) or {}
        plain = {str(key): float(value) for key, value in usage.items()}
    except (TunerFailure, TypeError, ValueError, AttributeError):
        return {}
    return plain if _is_usage(plain) else {}


def _decisions(tuner: Tuner) -> list[str]:
    """What the tuner says it decided, as plain lines; what is no list of lines says nothing."""
    try:
        lines = list(_guarded(getattr, tuner, "decisions", None) or ())[:MAX_DECISIONS]
    except TypeError:
        return []
    plain = [_one_line(line) for line in lines if isinstance(line, str)]
    return [line[:MAX_DECISION] for line in plain if line]


def _one_line(text: str) -> str:
    """``text`` on one line, without what could steer a terminal."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def _choice(tuner: Tuner) -> str | None:
    """The digest of the recipe that the tuner chose; what is no recipe chooses nothing."""
    chosen = _guarded(getattr, tuner, "choice", None)
    return chosen.digest if isinstance(chosen, Recipe) else None


def _is_usage(usage: object) -> bool:
    return isinstance(usage, dict) and all(
        key in USAGE and isinstance(value, int | float) and math.isfinite(value) and value >= 0
        for key, value in usage.items()
    )


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
        raise TunerFailure(f"the tuner failed ({told_with_place(error)})") from error


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
    """The proposal as it can be stored and run: of its recipe a copy, so that nothing but its settings counts."""
    if proposal is None:
        return None
    if not isinstance(proposal, Proposal) or not isinstance(proposal.recipe, Recipe):
        raise TunerFailure(f"the tuner returned {type(proposal).__name__} instead of a proposal with a recipe")
    try:
        said = json.dumps(describe(proposal), allow_nan=False, ensure_ascii=False)
        settings = json.dumps(proposal.recipe.canonical(), allow_nan=False, ensure_ascii=False)
        recipe = Recipe.from_canonical(json.loads(settings))
        sizes = len(said.encode()), len(settings.encode())
    except Exception as error:  # what it is made of is the tuner's
        raise TunerFailure(f"the tuner returned a proposal that cannot be stored ({told(error)})") from error
    if not isinstance(proposal.reason, str) or not isinstance(proposal.lesson, str | None):
        raise TunerFailure("the tuner returned a proposal whose reason or lesson is no text")
    for what, size, most in zip(("reasons", "settings"), sizes, (MAX_REASONS_BYTES, MAX_RECIPE_BYTES), strict=True):
        if size > most:
            raise TunerFailure(f"the tuner returned a proposal with {size} bytes of {what}; {most} are kept")
    return replace(proposal, recipe=recipe)
