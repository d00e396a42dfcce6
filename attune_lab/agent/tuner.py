"""The attune tuner: observe, diagnose, pick one lever, predict, check, run, keep or revert, learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attune_lab.agent.calibration import LIKELY, Calibration, is_too_full
from attune_lab.agent.coordinates import Coordinates
from attune_lab.agent.decisions import decision, first_in_the_finals, name_of
from attune_lab.agent.early import early_fault
from attune_lab.agent.history import MAX_FAULTS, SLOW_RUN, History, Trial
from attune_lab.agent.jumps import JumpFinder
from attune_lab.agent.moves import resolve
from attune_lab.agent.objections import Objections
from attune_lab.agent.past import Past
from attune_lab.agent.policy import (
    Appraiser,
    Candidate,
    CatalogPolicy,
    NeighbourPolicy,
    Policy,
    Situation,
    proposal,
)
from attune_lab.agent.prices import Prices
from attune_lab.agent.rules import (
    NOISE_BAND,
    ONE_LEVER,
    RE_MEASURE,
    RETRY_OOM,
    STOP,
    USE_CATALOG,
    Rulebook,
)
from attune_lab.agent.stopping import NOTHING_LEFT, StopRule
from attune_lab.agent.suspects import Suspects
from attune_lab.campaign.noise import FLOOR, NoiseBand, noise_band
from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Proposal, RunReport, TuningTask, UserError
from attune_lab.diagnosis import diagnose
from attune_lab.lessons import catalog as lessons
from attune_lab.recipe.effective import effective
from attune_lab.wording import change_in_words

OPTIONS = ("policy", "without", "lessons")

CONVINCING = 3.0
"""A gain of this many noise bands needs no second measurement."""

UNLIKELY = 2.0
"""A recipe so many standard deviations, and a slow node, behind what was expected of it is measured again."""


class AttuneTuner:
    """Tunes a recipe by diagnosis, lessons and the cost model, under search rules that can be switched off.

    Options of the task: ``policy`` (``catalog``), ``without`` (names of search rules, see `rules.RULES`), ``lessons``
    (what past campaigns showed, see `attune_lab.lessons.evidence.Evidence.load`).
    All state is in memory and depends only on the reports told, so replaying them gives the same proposals.

    Raises:
        UserError: an unknown option or rule, or evidence that cannot be read.
    """

    name = "attune"

    def __init__(self, task: TuningTask) -> None:
        self._task, self._space = task, task.space
        self._rules = _rulebook(task.options)
        self._prices, self._coordinates = Prices(task.space, task.cost_model), Coordinates(task.space)
        self._past = _past(task)
        self._appraiser = Appraiser(self._prices, self._coordinates, self._rules, self._past)
        self._objections = Objections(task)
        self._policy = self._policy_of(task)
        self._catalog = {lesson.id: lesson for lesson in lessons.load().all()}
        self._history, self._suspects = History(), Suspects()
        self._calibration = Calibration(self._coordinates)
        self._best = Trial(task.baseline, self._prices.of(task.baseline).estimate)
        self._evidence: dict[str, tuple[int, int]] = {}
        self._refused: set[tuple[Any, ...]] = set()
        self._follow_up: Proposal | None = None
        self._decisions: list[str] = []
        self._failed: set[str] = set()
        self._suspected: dict[str, str] = {}
        self._on_evidence: set[str] = set()
        self.stop_reason = ""
        """Why `ask` returned None, in one sentence; empty before."""

    def _policy_of(self, task: TuningTask) -> Policy:
        if USE_CATALOG not in self._rules:
            return NeighbourPolicy(self._appraiser, task.space)
        about = (task.baseline, task.cluster, task.space, task.cost_model)
        jumps = JumpFinder(*about, prices=self._prices, allows=self._objections.allow)
        return CatalogPolicy(lessons.load(), self._appraiser, jumps, task.space, self._rules)

    @property
    def decisions(self) -> Sequence[str]:
        """What was kept, reverted, measured again or left out, and by which rule; one line each, as it happened.

        The last lines say on how many proposals past campaigns weighed in, and what goes into the finals first.
        """
        return (*self._decisions, *self._closing())

    def _closing(self) -> list[str]:
        baseline = self._history.get(self._task.baseline)
        if baseline is None or not baseline.ok:
            return []
        told = [trial for trial in self._history if trial is not baseline]
        evidence = sum(trial.recipe.digest in self._on_evidence for trial in told)
        heard = [f"past campaigns weighed in on {evidence} of the {len(told)} recipes proposed"] if self._past else []
        sound = (trial for trial in told if trial.recipe.digest not in self._failed)
        return [*heard, first_in_the_finals(sound, self._best, baseline)]

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
            self.stop_reason = "" if ranked else NOTHING_LEFT
        ranked = self._allowed(ranked)
        if not ranked:
            self.stop_reason = self.stop_reason or NOTHING_LEFT
            return None
        chosen = ranked[0] if ONE_LEVER in self._rules else self._top_two(ranked, situation)
        return self._proposal(chosen)

    def _proposal(self, chosen: Candidate) -> Proposal:
        """``chosen`` as a proposal, with what past campaigns say of it."""
        lesson = chosen.lesson.id if chosen.lesson else None
        past = self._past.words(lesson, chosen.edits, chosen.gain_here) if self._past else ""
        if past:
            self._on_evidence.add(chosen.recipe.digest)
        return proposal(chosen, self._space, self._best.recipe, past)

    def _allowed(self, ranked: list[Candidate]) -> list[Candidate]:
        """``ranked`` from the first on that nothing is known against."""
        for place, candidate in enumerate(ranked):
            if self._objections.allow(candidate.recipe):
                return ranked[place:]
            moved = change_in_words(self._space.changed(self._best.recipe, candidate.recipe))
            line = f"left out ({moved}): {self._objections.against(candidate.recipe)}"
            if line not in self._decisions:
                self._decisions.append(line)
        return []

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Learn from the report of ``proposal``: keep it, revert it, or ask for a follow-up run."""
        estimate = self._prices.of(proposal.recipe).estimate
        trial = self._history.record(proposal.recipe, estimate, report)
        unfinished, self._follow_up = self._follow_up, None
        if report.status in INFRASTRUCTURE_FAULTS:
            self._follow_up = unfinished if trial.faults < MAX_FAULTS else None
            verdict = f"lost to the infrastructure ({report.status}), which says nothing of the recipe"
            self._decide(proposal, report.label, verdict)
            return
        self._calibration.fit(self._history, noise_sd=self._band(self._best) / 2)
        failure = self._failure(report)
        if proposal.recipe.digest == self._best.recipe.digest:
            self._best = trial
        elif failure:
            self._give_up(proposal, trial, report.label, failure)
        else:
            self._judge(proposal, trial, report.label)
        if not failure:
            self._suspects.sound(self._coordinates.values(proposal.recipe))
            self._clear(report.label)

    def _failure(self, report: RunReport) -> str:
        """In which way a run failed; empty where it did not."""
        if report.status != "ok":
            return report.message or report.status if report.status == "invalid" else report.status
        baseline = self._history.get(self._task.baseline)
        return early_fault(baseline.reports if baseline else (), report)

    def _judge(self, proposal: Proposal, trial: Trial, label: str) -> None:
        """Keep the trial if it beats the best outside the noise band; measure again what is not convincing."""
        band = self._band(trial) if NOISE_BAND in self._rules else 0.0
        gain = (self._best.step_time_s or math.inf) / (trial.step_time_s or math.inf) - 1.0
        figures = f"{self._figures(gain, trial)}, noise band {self._band(trial):.1%}"
        usual = NOISE_BAND.name if NOISE_BAND in self._rules else f"{NOISE_BAND.name} is off"
        may_repeat = RE_MEASURE in self._rules and trial.answers == 1 and math.isfinite(gain)
        if not gain > band:
            if may_repeat and not is_too_full(trial) and _disappoints(proposal, gain):
                self._repeat(proposal, label, f"{figures}, far below what was expected: a slow node?")
            else:
                self._decide(proposal, label, f"reverted, {figures} ({usual})")
                self._lost(proposal)
        elif may_repeat and gain < CONVINCING * band:
            self._repeat(proposal, label, figures)
        else:
            rule = RE_MEASURE.name if trial.answers > 1 else usual
            self._decide(proposal, label, f"kept, {figures} ({rule})")
            self._won(proposal)
            self._best = trial

    def _repeat(self, proposal: Proposal, label: str, figures: str) -> None:
        """Ask for the same run once more."""
        self._decide(proposal, label, f"to be measured again before it counts, {figures} ({RE_MEASURE.name})")
        self._follow_up = replace(proposal, reason=f"{label} measured again: {figures}", remeasure=True)

    def _give_up(self, proposal: Proposal, trial: Trial, label: str, failure: str) -> None:
        """Revert a run that failed; one out of memory gets the next level of recomputation first."""
        self._lost(proposal)
        self._failed.add(trial.recipe.digest)
        if failure == "oom":
            self._follow_up = self._with_recompute(trial, label) if RETRY_OOM in self._rules else None
            more = f"tried again with more recomputation ({RETRY_OOM.name})" if self._follow_up else "left alone"
            self._decide(proposal, label, f"reverted, out of memory, {more}")
            return
        self._suspects.failed(failure, self._coordinates.values(trial.recipe))
        self._suspected[failure] = self._suspects.likeliest(failure)
        self._decide(proposal, label, f"reverted, {failure}, most suspect: {self._suspected[failure]}")

    def _clear(self, label: str) -> None:
        """Say which suspects a sound run had, and is not to blame."""
        for failure, named in self._suspected.items():
            now = self._suspects.likeliest(failure)
            if now != named:
                self._decisions.append(f"{label} ran with {named}: no longer suspect of {failure}; most suspect: {now}")
                self._suspected[failure] = now

    def _decide(self, proposal: Proposal, label: str, verdict: str) -> None:
        self._decisions.append(decision(label, proposal, verdict, proposal.reason))

    def _figures(self, gain: float, trial: Trial) -> str:
        """A gain with what it is over and the number of runs it rests on."""
        runs = {1: "one run", 2: "two runs"}.get(trial.answers, f"{trial.answers} runs")
        over = f"{gain:+.1%} over {name_of(self._best, self._task.baseline)}" if math.isfinite(gain) else "it runs"
        return f"{over} in {runs}"

    def _with_recompute(self, trial: Trial, label: str) -> Proposal | None:
        """The same layout with the narrowest further recomputation that should fit, or None."""
        recipe = trial.recipe
        lesson = self._catalog.get("P-oom-retry-recompute")
        drafts: list[Candidate] = []
        while edits := resolve({"recompute": "up"}, recipe, self._space):
            (draft,) = self._prices.edited(recipe, [edits])
            why = f"the layout of {label}, which ran out of memory, with more recomputation"
            drafts.append(Candidate(draft.recipe, edits, why, lesson, draft.estimate))
            recipe = draft.recipe
        drafts = [draft for draft in drafts if not self._history.is_settled(draft.recipe)]
        expected = self._appraiser.expect(drafts, self._situation())
        chosen = next((draft for draft in expected if draft.fit_chance >= LIKELY), None)
        return self._proposal(chosen) if chosen else None

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
            (draft,) = self._prices.edited(first.recipe, [second.edits])
            edits = {**first.edits, **second.edits}
            both = Candidate(draft.recipe, edits, first.why, first.lesson, draft.estimate)
            if appraised := self._appraiser.appraise([both], situation):
                return appraised[0]
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
            suspects=self._suspects,
            evidence=self._evidence,
            refused=frozenset(self._refused),
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
        self._refused.add(self._appraiser.refusal(self._best.recipe, proposal.lesson, edits))
        if proposal.lesson:
            wins, losses = self._evidence.get(proposal.lesson, (0, 0))
            self._evidence[proposal.lesson] = (wins, losses + 1)


def _disappoints(proposal: Proposal, gain: float) -> bool:
    """Whether a run did so much worse than expected that a slow node, rather than the recipe, must be asked."""
    expected, sd = proposal.predicted.get("gain", 0.0), proposal.predicted.get("gain_sd", 0.0)
    return (1 + gain) * SLOW_RUN * math.exp(UNLIKELY * sd) < 1 + expected


def _past(task: TuningTask) -> Past | None:
    """What past campaigns say, where the task names their file.

    Raises:
        UserError: the file cannot be used.
    """
    source = task.options.get("lessons")
    if source is None:
        return None
    from attune_lab.lessons.context import context_of
    from attune_lab.lessons.evidence import Evidence

    return Past(Evidence.load(source), context_of(task.baseline, task.cluster))


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
