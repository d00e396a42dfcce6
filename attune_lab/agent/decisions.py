"""What a search decided, line by line in one form, whatever policy decided it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from attune_lab.agent.history import Trial
from attune_lab.campaign.noise import noise_band
from attune_lab.contracts import Proposal
from attune_lab.recipe import Recipe
from attune_lab.wording import change_in_words

BASELINE = "baseline"
"""What the recipe as it came in is called."""


def decision(label: str, proposal: Proposal, verdict: str, reason: str = "") -> str:
    """``004-search (tp 4 -> 2): kept, +3.1% over baseline, noise band 1.0% (noise-band) [L-tp-down: why it ran]``.

    Args:
        label: of the run, as its report has it.
        proposal: what ran; its lesson is named beside ``reason``.
        verdict: what was measured, what became of it, and by which rule.
        reason: the symptom and what was expected; empty leaves it out.
    """
    moved = change_in_words(proposal.changed) or ("measured again" if proposal.remeasure else "as it came in")
    line = f"{label} ({moved}): {verdict}"
    return f"{line} [{proposal.lesson or 'no lesson'}: {reason}]" if reason else line


def name_of(trial: Trial, baseline: Recipe) -> str:
    """The label of a trial's first run, or ``baseline``."""
    if trial.recipe.digest == baseline.digest or not trial.reports:
        return BASELINE
    return trial.reports[0].label


def first_in_the_finals(sound: Iterable[Trial], best: Trial, baseline: Trial) -> str:
    """Which run goes into the finals first and why, one line; they go by the mean of all timed steps, fastest first.

    Args:
        sound: the trials that met no failure.
        best: what was kept.
        baseline: the recipe as it came in, measured.
    """
    times = {trial.recipe.digest: (_mean_s(trial), trial) for trial in sound if trial.ok}
    start_s = _mean_s(baseline)
    times.pop(baseline.recipe.digest, None)
    step_s, fastest = min(times.values(), key=lambda pair: pair[0], default=(start_s, baseline))
    runs = [report for report in baseline.reports if report.status == "ok"]
    over, band = start_s / step_s - 1.0, noise_band(runs).of(len(fastest.reports[0].timed_step_times_s))
    if over <= band:
        return f"nothing goes into the finals: no run gained more over the baseline than the noise band of {band:.1%}"
    why = f"the fastest measured, {over:+.1%} over {BASELINE}"
    if fastest.recipe.digest == best.recipe.digest:
        why += ", and kept"
    else:
        more = _mean_s(best) / step_s - 1.0
        place = "inside the noise band of" if more <= band else f"{more:+.1%} over"
        why += f", {place} {name_of(best, baseline.recipe)}, which was kept"
    return f"{name_of(fastest, baseline.recipe)} goes into the finals first: {why}"


def _mean_s(trial: Trial) -> float:
    """Seconds of a step by which the finals rank: slow nodes and hiccups are in it."""
    return 1.0 / statistics.fmean(1.0 / run.mean_step_time_s for run in trial.reports if run.mean_step_time_s)
