"""The attune tuner: observe, diagnose, pick one lever, predict, check, run, keep or revert, learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attune_lab.agent.calibration import Calibration, MemoryCheck
from attune_lab.agent.history import MAX_FAULTS, SLOW_RUN, History, Trial
from attune_lab.agent.jumps import OVERLAPS
from attune_lab.agent.moves import resolve, touches_layout
from attune_lab.agent.policy import (
    Candidate,
    CatalogPolicy,
    NeighbourPolicy,
    Policy,
    Situation,
    price,
    proposal,
    refusal,
)
from attune_lab.agent.rules import (
    NOISE_BAND,
    ONE_LEVER,
    RE_MEASURE,
    RETRY_OOM,
    STOP,
    USE_CATALOG,
    Rulebook,
)
from attune_lab.agent.stopping import StopRule
from attune_lab.campaign.noise import FLOOR, NoiseBand, noise_band
from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Proposal, RunReport, TuningTask, UserError
from attune_lab.diagnosis import diagnose
from attune_lab.lessons import catalog as lessons
from attune_lab.recipe.effective import effective

OPTIONS = ("policy", "without")

CONVINCING = 3.0
"""A gain of this many noise bands needs no second measurement, unless it comes from a new layout."""

GRADIENT_FACTOR = 1.25
"""Legitimate layouts move the first gradient norm by up to 10 % (NVIDIA-NeMo/Megatron-Bridge#5411). Beyond this
factor gradients are scaled, lost or counted twice, and the gate would not let the recipe pass."""


class AttuneTuner:
    """Tunes a recipe by diagnosis, lessons and the cost model, under search rules that can be switched off.

    Options of the task: ``policy`` (``catalog``) and ``without`` (names of search rules, see `rules.RULES`).
    All state is in memory and depends only on the reports told, so replaying them gives the same proposals.

    Raises:
        UserError: an unknown option or rule.
    """

    name = "attune"

    def __init__(self, task: TuningTask) -> None:
        self._task, self._space = task, task.space
        self._rules = _rulebook(task.options)
        self._policy: Policy = (
            CatalogPolicy(lessons.load(), task.space, task.cost_model, self._rules)
            if USE_CATALOG in self._rules
            else NeighbourPolicy(task.space, task.cost_model, self._rules)
        )
        self._catalog = {lesson.id: lesson for lesson in lessons.load().all()}
        self._history, self._memory = History(), MemoryCheck()
        self._calibration = Calibration(task.space)
        self._best = Trial(task.baseline, task.cost_model.estimate([task.baseline])[0])
        self._evidence: dict[str, tuple[int, int]] = {}
        self._refused: set[tuple[Any, ...]] = set()
        self._broken: set[tuple[str, Any]] = set()
        self._follow_up: Proposal | None = None
        self.stop_reason = ""
        """Why `ask` returned None, in one sentence; empty before."""

    def ask(self) -> Proposal | None:
        """The next recipe to run with its reason, or None when the search is over."""
        if self._follow_up is not None:
            return self._follow_up
        situation = self._situation()
        ranked = self._policy.rank(situation)
        if STOP in self._rules:
            rule = self._stop_rule()
            ranked, left = rule.worthwhile(ranked), ranked
            self.stop_reason = "" if ranked else rule.reason(left)
        else:
            self.stop_reason = "" if ranked else "nothing legal is left to try"
        if not ranked:
            return None
        chosen = ranked[0] if ONE_LEVER in self._rules else self._top_two(ranked, situation)
        return proposal(chosen, self._space, self._best.recipe)

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Learn from the report of ``proposal``: keep it, revert it, or ask for a follow-up run."""
        known = self._history.get(proposal.recipe)
        estimate = known.estimate if known else self._task.cost_model.estimate([proposal.recipe])[0]
        trial = self._history.record(proposal.recipe, estimate, report)
        unfinished, self._follow_up = self._follow_up, None
        self._memory.fit(self._history)
        if any(trial.ok for trial in self._history):
            self._calibration.fit(self._history, noise_sd=self._band(self._best) / 2)
        if report.status in INFRASTRUCTURE_FAULTS:
            self._follow_up = unfinished if trial.faults < MAX_FAULTS else None
            return
        if proposal.recipe.digest == self._best.recipe.digest:
            self._best = trial
        elif report.status == "ok" and not self._scales_gradients(report):
            self._judge(proposal, trial)
        else:
            self._give_up(proposal, trial, report)

    def _judge(self, proposal: Proposal, trial: Trial) -> None:
        """Keep the trial if it beats the best outside the noise band; measure again what is not convincing."""
        band = self._band(trial) if NOISE_BAND in self._rules else 0.0
        gain = (self._best.step_time_s or math.inf) / (trial.step_time_s or math.inf) - 1.0
        if not gain > band:
            if RE_MEASURE in self._rules and trial.answers == 1 and _disappoints(proposal, gain):
                why = f"measured {gain:+.1%} tokens/s, far below what is expected: a slow node? measure again"
                self._follow_up = replace(proposal, recipe=trial.recipe, reason=why, remeasure=True)
            else:
                self._lost(proposal)
            return
        doubtful = touches_layout(proposal.changed) or gain < CONVINCING * band
        if RE_MEASURE in self._rules and doubtful and trial.answers == 1 and math.isfinite(gain):
            why = f"measured {gain:+.1%} tokens/s, noise band {band:.1%}: measure the same recipe again"
            self._follow_up = replace(proposal, recipe=trial.recipe, reason=why, remeasure=True)
            return
        self._won(proposal)
        self._best = trial

    def _give_up(self, proposal: Proposal, trial: Trial, report: RunReport) -> None:
        """Revert a run that failed; one out of memory gets the next level of recomputation first."""
        self._lost(proposal)
        if report.status == "oom":
            self._follow_up = self._with_recompute(trial) if RETRY_OOM in self._rules else None
            return
        is_jump = touches_layout(proposal.changed)  # its sizes may work with other settings, its overlaps are suspect
        suspects = (key for key in proposal.changed if not is_jump or key in OVERLAPS)
        self._broken |= {(key, proposal.changed[key][1]) for key in suspects}

    def _scales_gradients(self, report: RunReport) -> bool:
        """Whether the first gradient norm is not the baseline's: a fault that Adam hides from the loss."""
        baseline = self._history.get(self._task.baseline)
        norms = next((run.grad_norm for run in baseline.reports if run.grad_norm), ()) if baseline else ()
        if not norms or not report.grad_norm or min(norms[0], report.grad_norm[0]) <= 0:
            return False
        return abs(math.log(report.grad_norm[0] / norms[0])) > math.log(GRADIENT_FACTOR)

    def _with_recompute(self, trial: Trial) -> Proposal | None:
        """The same layout with the narrowest further recomputation that should fit, or None."""
        recipe = trial.recipe
        lesson = self._catalog.get("P-oom-retry-recompute")
        drafts: list[Candidate] = []
        while edits := resolve({"recompute": "up"}, recipe, self._space):
            recipe = self._space.apply(recipe, edits)
            estimate = self._task.cost_model.estimate([recipe])[0]
            drafts.append(Candidate(recipe, edits, "out of memory", lesson, estimate))
        open_ = {candidate.recipe.digest: candidate for candidate in price(drafts, self._situation(), self._rules)}
        for draft in drafts:
            if draft.recipe.digest in open_:
                return proposal(open_[draft.recipe.digest], self._space, self._best.recipe)
        return None

    def _stop_rule(self) -> StopRule:
        """The stop rule on what is known now; a run is expected to cost what the baseline's did, by predicted step."""
        budget, baseline = self._task.budget, self._history.get(self._task.baseline)
        reference = baseline.estimate.step_time_s if baseline else self._best.estimate.step_time_s
        return StopRule(
            band=self._band(self._best),
            reliability=self._history.reliability,
            left=budget.left_for_search,
            cost=lambda candidate: budget.run_cost * candidate.estimate.step_time_s / reference,
        )

    def _top_two(self, ranked: list[Candidate], situation: Situation) -> Candidate:
        """The best candidate with the edits of the next one that touches other settings, if both go together."""
        first = ranked[0]
        for second in ranked[1:]:
            if first.edits.keys() & second.edits.keys():
                continue
            recipe = self._space.apply(first.recipe, second.edits)
            estimate = self._task.cost_model.estimate([recipe])[0]
            both = Candidate(recipe, {**first.edits, **second.edits}, first.why, first.lesson, estimate)
            if priced := price([both], situation, self._rules):
                return priced[0]
        return first

    def _situation(self) -> Situation:
        reports = self._best.reports
        settings = effective(self._best.recipe, self._task.cluster)
        last = reports[-1] if reports else RunReport(label="", status="ok", provenance="simulated", steps=0)
        return Situation(
            best=self._best,
            diagnosis=diagnose(last, settings),
            history=self._history,
            calibration=self._calibration,
            memory=self._memory,
            evidence=self._evidence,
            refused=frozenset(self._refused),
            broken=frozenset(self._broken),
        )

    def _band(self, trial: Trial) -> float:
        """Half-width of the noise band for the runs of ``trial``, from the baseline's own runs."""
        baseline = self._history.get(self._task.baseline)
        if baseline is None or not baseline.ok:
            return FLOOR
        band: NoiseBand = noise_band(baseline.ok)
        return band.of(trial.timed_steps)

    def _won(self, proposal: Proposal) -> None:
        if proposal.lesson:
            wins, losses = self._evidence.get(proposal.lesson, (0, 0))
            self._evidence[proposal.lesson] = (wins + 1, losses)

    def _lost(self, proposal: Proposal) -> None:
        edits = {key: after for key, (_, after) in proposal.changed.items()}
        self._refused.add(refusal(self._space, self._best.recipe, proposal.lesson, edits))
        if proposal.lesson:
            wins, losses = self._evidence.get(proposal.lesson, (0, 0))
            self._evidence[proposal.lesson] = (wins, losses + 1)


def _disappoints(proposal: Proposal, gain: float) -> bool:
    """Whether a flag did so much worse than expected that a slow node, rather than the flag, must be asked."""
    expected = proposal.predicted.get("gain", 0.0)
    return not touches_layout(proposal.changed) and (1 + gain) * SLOW_RUN < 1 + expected


def _rulebook(options: Mapping[str, Any]) -> Rulebook:
    """The rules in force under a task's options.

    Raises:
        UserError: an unknown option or rule.
    """
    for key in options:
        if key not in OPTIONS:
            raise UserError(f"option {key!r} of the attune tuner is not known; known: {', '.join(OPTIONS)}")
    without = options.get("without", ())
    if not (isinstance(without, list | tuple) and all(isinstance(name, str) for name in without)):
        raise UserError("option 'without' must be a list of rule names")
    return Rulebook(without)
