"""What ran in a campaign, what was kept of it, and why: a book that the model reads and never writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attune_lab.agent.claude.odds import Odds
from attune_lab.agent.decisions import BASELINE, decision
from attune_lab.agent.early import GRADIENT_FACTOR
from attune_lab.agent.history import History, Trial
from attune_lab.agent.rules import NOISE_BAND, RE_MEASURE, STOP, Rulebook
from attune_lab.agent.stopping import REAL_CHANCE
from attune_lab.agent.tuner import CONVINCING
from attune_lab.agent.wall import Draft, Standing
from attune_lab.campaign.noise import FLOOR, noise_band
from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Proposal, RunReport, TuningTask
from attune_lab.lessons.catalog import Catalog
from attune_lab.recipe import Recipe


@dataclass(frozen=True)
class Run:
    """One run that was told: its recipe, what it changed of what, and how it ended."""

    label: str
    recipe: Recipe
    report: RunReport
    changed: Mapping[str, tuple[Any, Any]]


class Journal:
    """The runs of a campaign under the search rules in force.

    Attributes:
        runs: by label, in the order told; a repeat that was answered from the store is the earlier run.
        best: the trial that is kept at present.
        decisions: one line for each run, what was made of it and by which rule.
    """

    def __init__(self, task: TuningTask, rules: Rulebook, catalog: Catalog) -> None:
        self.task, self.rules, self.catalog = task, rules, catalog
        self.runs: dict[str, Run] = {}
        self.decisions: list[str] = []
        self.history = History()
        self._odds = Odds(task, rules, self.history)
        self.best = Trial(task.baseline, task.cost_model.estimate([task.baseline])[0])
        self._kept = {task.baseline.digest}
        self._latest: Trial | None = None
        self._unconfirmed: Recipe | None = None

    @property
    def baseline_runs(self) -> list[Run]:
        """The runs of the recipe as it came in, before and during the search."""
        return [run for run in self.runs.values() if run.recipe.digest == self.task.baseline.digest]

    @property
    def best_label(self) -> str:
        """The label of the first run of what is kept, or ``baseline``."""
        digest = self.best.recipe.digest
        if digest == self.task.baseline.digest:
            return BASELINE
        return next(label for label, run in self.runs.items() if run.recipe.digest == digest)

    def run(self, name: str) -> Run | None:
        """A run by label; the first of the baseline for ``baseline``."""
        return next(iter(self.baseline_runs), None) if name == BASELINE else self.runs.get(name)

    def band(self, trial: Trial | None = None) -> float:
        """Half-width of the noise band for the runs of ``trial`` (of the best if None), from the baseline's runs."""
        baseline = self.history.get(self.task.baseline)
        if baseline is None or not baseline.ok:
            return FLOOR
        return noise_band(baseline.ok).of((trial or self.best).timed_steps)

    def gain(self, trial: Trial, over: Trial) -> float | None:
        """Throughput gained over another trial, as a fraction; None where one of them was not measured."""
        if not trial.step_time_s or not over.step_time_s:
            return None
        return over.step_time_s / trial.step_time_s - 1.0

    def record(self, proposal: Proposal, report: RunReport) -> str:
        """Enter what a proposal came to; returns the decision on it, one line."""
        known = self.history.get(proposal.recipe)
        estimate = known.estimate if known else self.task.cost_model.estimate([proposal.recipe])[0]
        trial = self._latest = self.history.record(proposal.recipe, estimate, report)
        run = Run(report.label, proposal.recipe, report, dict(proposal.changed))
        self.runs.setdefault(report.label, run)
        verdict = self._judge(proposal, trial, report)
        self._odds.learn(noise_sd=self.band() / 2)
        if proposal.changed or proposal.remeasure:
            reason = f"{proposal.reason}; {proposal.predicted.get('gain', 0.0):+.1%} tokens/s expected"
            self.decisions.append(decision(report.label, proposal, verdict, reason))
        return decision(report.label, proposal, verdict)

    def _judge(self, proposal: Proposal, trial: Trial, report: RunReport) -> str:
        """What a run means for what is kept. The best is replaced here and nowhere else."""
        if report.status in INFRASTRUCTURE_FAULTS:
            return f"lost to the infrastructure ({report.status}), which says nothing of the recipe"
        if trial.recipe.digest == self.best.recipe.digest:
            self.best = trial
            return "measured what is kept" if report.status == "ok" else f"what is kept ended as {report.status}"
        if self._unconfirmed is not None and trial.recipe.digest == self._unconfirmed.digest:
            self._unconfirmed = None
        if report.status != "ok":
            return f"reverted, it ended as {report.status}"
        if (factor := self._gradient_factor(report)) and not 1 / GRADIENT_FACTOR < factor < GRADIENT_FACTOR:
            return f"reverted, its first gradient norm is {factor:.2f} times the baseline's"
        return self._weigh(proposal, trial)

    def _weigh(self, proposal: Proposal, trial: Trial) -> str:
        band = self.band(trial) if NOISE_BAND in self.rules else 0.0
        gain = self.gain(trial, self.best)
        if gain is None:  # nothing ran before it
            gain = math.inf
        if not gain > band:
            return f"reverted, {gain:+.1%} over {self.best_label} is no gain beyond {band:.1%} ({NOISE_BAND.name})"
        if RE_MEASURE in self.rules and gain < CONVINCING * band and trial.answers == 1:
            self._unconfirmed = trial.recipe
            return f"{gain:+.1%} over {self.best_label}, to be measured again before it counts ({RE_MEASURE.name})"
        before, self.best = self.best_label, trial
        self._kept.add(trial.recipe.digest)
        return f"kept, {gain:+.1%} over {before}"

    def _gradient_factor(self, report: RunReport) -> float | None:
        """The first gradient norm over the baseline's; None where either is not told."""
        norms = next((run.report.grad_norm[0] for run in self.baseline_runs if run.report.grad_norm), None)
        if not norms or not report.grad_norm or report.grad_norm[0] <= 0:
            return None
        return report.grad_norm[0] / norms

    def standing(self) -> Standing:
        """What the rules judge a draft by."""
        task = self.task
        return Standing(
            rules=self.rules,
            baseline=task.baseline,
            cluster=task.cluster,
            space=task.space,
            cost_model=task.cost_model,
            catalog=self.catalog,
            history=self.history,
            fits=self._odds.fits,
            worth=self._worth,
            kept=frozenset(self._kept),
            latest=self._latest,
            unconfirmed=self._unconfirmed,
            band=self.band(),
            left=task.budget.left_for_search,
        )

    def _worth(self, recipe: Recipe) -> bool:
        """Whether a retry has a real chance to be worth its run; always, where the user switched that question off."""
        chance = self._odds.chance(recipe, None, self.best, self.band()) if STOP in self.rules else None
        return chance is None or chance >= REAL_CHANCE

    def draft(self, recipe: Recipe, *, lesson: str | None, symptom: str | None, remeasure: bool) -> Draft:
        """A recipe as the rules see it, with what its run would cost and its chance to be worth it."""
        estimate = self.task.cost_model.estimate([recipe])[0]
        reference = self.best.estimate.step_time_s
        if baseline := self.history.get(self.task.baseline):
            reference = baseline.estimate.step_time_s
        cost = None if estimate.problems else self.task.budget.run_cost * estimate.step_time_s / reference
        known = next((entry for entry in self.catalog.lessons if entry.id == lesson), None)
        chance = self._odds.chance(recipe, known, self.best, self.band()) if STOP in self.rules else None
        return Draft(recipe, lesson, symptom, remeasure, chance, cost)
