"""The finals: the fastest trials are run again, judged by the gate, and the first that holds is shipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from attune_lab.campaign.baseline import FINALIST_LIMIT, LONG_STEPS, UNSTEADY, Baseline
from attune_lab.campaign.budget import BudgetExceeded
from attune_lab.campaign.search import Trial

if TYPE_CHECKING:
    from attune_lab.campaign.runner import Runner
    from attune_lab.contracts import Gate, RunReport, Verdict
    from attune_lab.recipe import Recipe


REFUSED = "gate says"
"""How the reason begins for which a finalist was lost to the gate."""


BEHIND, DECLINED = "the shipped recipe", "the tuner chose to keep the baseline"
"""How the reason begins for which a trial that gained was not even a finalist."""


@dataclass(frozen=True)
class Loss:
    """A trial that was not shipped, and why. ``gain`` is a fraction, None where nothing was measured."""

    label: str
    reason: str
    gain: float | None = None


@dataclass(frozen=True)
class Winner:
    """The trial that is shipped, its re-measurement and the verdict on it."""

    trial: Trial
    report: RunReport
    gain: float
    verdict: Verdict


def finals(
    trials: Sequence[Trial], *, baseline: Baseline, gate: Gate, runner: Runner, choice: str | None = None
) -> tuple[Winner | None, list[Loss]]:
    """The winner, if there is one, and what every other trial was lost to, in the order they were judged.

    A trial that gained more than the noise is run again for 20 steps, fastest first. That one run is the gate's
    evidence and the measurement the tuner is credited with; the fast sample that brought the trial here is not.
    One whose search run shows already what the gate rejects is spared it. A final run that a slow node seems to have
    spoilt is made once more.

    Args:
        trials: the distinct proposals of the search.
        choice: digest of the recipe that the tuner chose, which is judged before faster ones; the baseline's keeps it.
    """
    losses = [Loss(t.label, _failure(t.report)) for t in trials if t.report.status != "ok"]
    winner: Winner | None = None
    finalist = 0
    for gain, trial in _chosen_first(measured(trials, baseline), choice):
        band = baseline.band.of(len(trial.report.timed_step_times_s))
        if gain <= band:
            losses.append(Loss(trial.label, _no_gain(gain, band), gain))
        elif winner is not None or choice == baseline.recipe.digest:
            why = f"{_passed_over(winner, choice)} ({gain:+.1%} here)"
            seen = _seen(trial, baseline, gate)
            losses.append(Loss(trial.label, f"{why}; {seen}" if seen else why, gain))
        elif reason := _refused(gate.configuration(baseline.recipe, trial.proposal.recipe)) or _seen(
            trial, baseline, gate
        ):
            losses.append(Loss(trial.label, reason, gain))
        else:
            finalist += 1
            outcome = _final(finalist, trial, gain, baseline=baseline, gate=gate, runner=runner)
            if isinstance(outcome, Winner):
                winner = outcome
            else:
                losses.append(Loss(trial.label, outcome, gain))
    return winner, losses


def _passed_over(winner: Winner | None, choice: str | None) -> str:
    """Why a trial that gained was not even a finalist."""
    if winner is None:
        return DECLINED
    why = "was faster in the search" if trial_digest(winner.trial) != choice else "is the tuner's choice"
    return f"{BEHIND} {why}"


def measured(trials: Sequence[Trial], baseline: Baseline) -> list[tuple[float, Trial]]:
    """Each recipe that ran, once, with the mean of its measured gains; the fastest first."""
    gains: dict[str, list[float]] = {}
    first: dict[str, Trial] = {}
    for trial in trials:
        if trial.report.status == "ok":
            digest = trial_digest(trial)
            gains.setdefault(digest, []).append(gain_of(trial.report, baseline))
            first.setdefault(digest, trial)
    return sorted(((fmean(gains[digest]), trial) for digest, trial in first.items()), key=lambda pair: -pair[0])


def _chosen_first(ranked: Sequence[tuple[float, Trial]], choice: str | None) -> list[tuple[float, Trial]]:
    return sorted(ranked, key=lambda pair: trial_digest(pair[1]) != choice)


def trial_digest(trial: Trial) -> str:
    """The digest of the recipe that a trial ran."""
    return trial.proposal.recipe.digest


def gain_of(report: RunReport, baseline: Baseline) -> float:
    """Throughput gained over the baseline, as a fraction."""
    assert report.tokens_per_s_per_gpu is not None
    return report.tokens_per_s_per_gpu / baseline.tokens_per_s_per_gpu - 1


def _final(
    number: int, trial: Trial, searched_gain: float, *, baseline: Baseline, gate: Gate, runner: Runner
) -> Winner | str:
    """The winner, or what the trial was lost to."""
    try:
        report = _final_run(f"finalist-{number}", trial, baseline, runner)
        if _spoilt(report, searched_gain, baseline):
            report = _faster(report, _final_run(f"finalist-{number}-again", trial, baseline, runner))
    except BudgetExceeded as refusal:
        return f"no budget left for its final run: {refusal}"
    if report.status != "ok":
        return f"its final run failed: {_failure(report)}"
    gain, band = gain_of(report, baseline), baseline.band.of(len(report.timed_step_times_s))
    if gain <= band:
        return f"measured again: {_no_gain(gain, band)}"
    verdict = judged(trial.proposal.recipe, report, baseline, gate)
    return _refused(verdict) or Winner(trial, report, gain, verdict)


def _final_run(label: str, trial: Trial, baseline: Baseline, runner: Runner) -> RunReport:
    limit_s = FINALIST_LIMIT * baseline.step_time_s
    recipe = trial.proposal.recipe
    reason = f"the recipe of {trial.label}, all of it against the baseline: measured again and judged by the gate"
    proposal = replace(trial.proposal, changed=baseline.recipe.changes_to(recipe), reason=reason)
    return runner.run(label, "finalist", proposal, steps=LONG_STEPS, step_limit_s=limit_s)


def _spoilt(report: RunReport, searched_gain: float, baseline: Baseline) -> bool:
    """Whether a final run is so much slower than the search run that a slow node, not the recipe, must be asked.

    The baseline's own runs are treated alike (see `attune_lab.campaign.baseline.UNSTEADY`).
    """
    if report.status == "timeout":
        return True
    return report.status == "ok" and (1 + gain_of(report, baseline)) * (1 + UNSTEADY) < 1 + searched_gain


def _faster(one: RunReport, other: RunReport) -> RunReport:
    """The faster of two runs of one recipe; a run that did not end well is the slower one."""
    return max(one, other, key=lambda report: report.tokens_per_s_per_gpu or 0.0)


def _seen(trial: Trial, baseline: Baseline, gate: Gate) -> str | None:
    """What the search run of a trial shows already that the gate rejects, None when nothing."""
    verdict = judged(trial.proposal.recipe, trial.report, baseline, gate)
    return _refused(verdict) if verdict.verdict == "reject" else None


def judged(recipe: Recipe, run: RunReport, baseline: Baseline, gate: Gate) -> Verdict:
    """What the gate says of a recipe by one run of it."""
    return gate.judge(
        baseline.recipe,
        recipe,
        baseline_runs=baseline.runs,
        candidate_run=run,
        twin_runs=baseline.twins,
    )


def _refused(verdict: Verdict) -> str | None:
    """Why the gate does not let a candidate pass, None when it does."""
    if verdict.verdict == "pass":
        return None
    return f"{REFUSED} {verdict.verdict}: {' '.join(verdict.reasons) or 'no reason given'}"


def _failure(report: RunReport) -> str:
    return f"{report.status}: {report.message}" if report.message else report.status


def _no_gain(gain: float, band: float) -> str:
    if gain < -band:
        return f"slower than the baseline ({gain:+.1%})"
    return f"inside the noise band ({gain:+.2%}, band {band:.2%})"
