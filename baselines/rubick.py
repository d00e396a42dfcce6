"""A white-box model of a step with eight coefficients, fitted again after every run, says what to run next.

Rubick (arXiv 2408.08586, MLSys 2025) is a scheduler that reconfigures the plans of training jobs: three-dimensional
parallelism, ZeRO variants, accumulation and recomputation. It predicts a plan's speed by a white-box formula with few
coefficients, which are fitted to a handful of measured runs of the job.

Faithful: an interpretable formula of a step, its coefficients fitted by least squares to the job's own runs and
refitted as more arrive; memory predicted beside it; the plan with the best prediction is taken. Reconstructed: the
formula. The abstract names its kind, not its terms, and no code is public. Here a step is

    T = (1 + b B) (c C (1 + r R) + i I + e E + s S + h H) + d D

with C, I, E, S, H, D the seconds that the cost model sees in computation, tensor-parallel, expert-parallel,
context-parallel and pipeline, launch, and data-parallel and optimizer work; R the share of computation done twice and
B = (pp - 1) / (vpp x micro-batches) the share of a pipeline's fill. The simulator's own form has a curve for every
kernel and a simulated pipeline; here all of that is one ratio a term. What the formula leaves over is taken to be
shared by recipes that are alike (`baselines.common.offsets`). Added: the parts of a run's profile are fitted as well as
its step time, and the next run is the one with the largest expected improvement that is likely to fit in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from attune_lab.contracts import Proposal, RunReport, TuningTask
from baselines.common.knowledge import Knowledge
from baselines.common.offsets import TIME_LEVELS, Floats, Offsets
from baselines.common.options import read_options
from baselines.common.pricelist import Priced, explore, ranked
from baselines.common.proposals import propose

PARTS: Mapping[str, tuple[str, ...]] = {
    "computation": ("compute",),
    "intra-node": ("exposed_tp",),
    "expert": ("exposed_ep",),
    "point-to-point": ("exposed_cp", "exposed_pp"),
    "launch": ("host",),
    "update": ("exposed_dp", "optimizer"),
    "fill": ("bubble",),
}
"""Terms of the formula and the parts of a profile that they stand for."""

COEFFICIENTS = (*PARTS, "recomputation")
"""One of each; all 1 before anything is measured."""

TWICE = {"none": 0.0, "full": 1 / 3, "moe": 0.15, "layernorm+moe": 0.15, "mlp": 0.12, "layernorm+mlp": 0.12}
LIGHT = 0.02
"""Share of the computation that a level of recomputation does again, and that the levels not named do."""

PRIOR_SD, TIME_SD, PART_SD = 0.3, 0.02, 0.02
"""Spreads of a log coefficient, of a log step time, and of a part of a profile as a fraction of its step."""

LEFT_OVER_SD = 0.01
"""Spread of a recipe's log error that no other recipe shares."""

LOOKED_AROUND = 2
"""Kinds of layout whose best recipe has its neighbours priced after each run."""

CLOSE_CALL = 0.002
"""With less than this share of improvement expected anywhere, the best recipe is measured once more."""


class FormulaModel:
    """The formula and its coefficients."""

    def __init__(self, gpus: int, sequences: int) -> None:
        """``sequences``: in a global batch."""
        self._gpus, self._sequences = gpus, sequences
        self._log = np.zeros(len(COEFFICIENTS))
        self._known: dict[str, list[float]] = {}

    @property
    def coefficients(self) -> dict[str, float]:
        """Factors on the terms, by the names in `COEFFICIENTS`."""
        return dict(zip(COEFFICIENTS, np.exp(self._log).tolist(), strict=True))

    def seconds(self, points: Sequence[Priced]) -> Floats:
        """Predicted step times, shape (len(points),)."""
        return np.asarray(_terms(self._features(points), self._log).sum(axis=0))

    def fit(self, points: Sequence[Priced], reports: Sequence[RunReport]) -> None:
        """Fit the coefficients to the step times and profiles of runs, one report for each point."""
        from scipy.optimize import least_squares

        features = self._features(points)
        times = np.array([report.mean_step_time_s for report in reports], dtype=np.float64)
        profiles = np.array([_profile(report.breakdown_s) for report in reports]).T

        def residuals(log: Floats) -> Floats:
            terms = _terms(features, log)
            of_times = np.log(terms.sum(axis=0) / times) / TIME_SD
            of_parts = np.nan_to_num((terms - profiles) / times) / PART_SD
            return np.concatenate([of_times, of_parts.ravel(), log / PRIOR_SD])

        self._log = np.asarray(least_squares(residuals, self._log, loss="soft_l1").x)

    def _features(self, points: Sequence[Priced]) -> Floats:
        """C, I, E, S, H, D, B and R of each point, shape (8, len(points)); C without what is done twice."""
        for one in points:
            if one.recipe.digest not in self._known:
                self._known[one.recipe.digest] = self._features_of(one)
        rows = [self._known[one.recipe.digest] for one in points]
        return np.array(rows, dtype=np.float64).reshape(len(points), len(COEFFICIENTS)).T

    def _features_of(self, one: Priced) -> list[float]:
        seen = _profile(one.estimate.breakdown_s)
        ranks = self._gpus / (one.size("tp") * one.size("pp") * one.size("cp"))
        micro_batches = self._sequences / (ranks * one.size("mbs"))
        fill = (one.size("pp") - 1) / (one.size("vpp") * micro_batches)
        twice = TWICE.get(str(one.values.get("recompute")), LIGHT)
        return [seen[0] / (1.0 + twice), *seen[1:6], fill, twice]


def _profile(breakdown_s: Mapping[str, float]) -> list[float]:
    """Seconds of each of the `PARTS`; nan where the breakdown does not tell."""
    return [sum(breakdown_s.get(part, math.nan) for part in parts) for parts in PARTS.values()]


def _terms(features: Floats, log: Floats) -> Floats:
    """Seconds of each of the `PARTS` by the formula, shape (7, len(points))."""
    factors = np.exp(log)[:, None]
    busy = features[:5] * factors[:5]
    busy[0] *= 1.0 + factors[7] * features[7]
    fill = factors[6] * features[6] * busy.sum(axis=0)
    return np.concatenate([busy, factors[5] * features[5:6], fill[None, :]])


class Rubick:
    """Refits after every run, then runs what promises most.

    Raises:
        UserError: the task has options; there is nothing to set.
    """

    name = "rubick"

    def __init__(self, task: TuningTask) -> None:
        read_options(self.name, task.options)
        self._task = task
        self._knowledge = Knowledge(task, explore(task))
        self._model = FormulaModel(task.cluster.n_gpus, int(str(task.baseline.get("gbs"))))
        self._left_over = Offsets(TIME_LEVELS, LEFT_OVER_SD)
        self._left_over.fit([], [])
        self._runs: list[tuple[Priced, RunReport]] = []
        self._next: Proposal | None = None
        self._measured_again: set[str] = set()
        self.stop_reason = "every legal recipe it could find has been tried"

    def ask(self) -> Proposal | None:
        """The likely and most promising recipe, or the best one again where no other promises anything."""
        if self._next is None:
            self._next = self._choose()
        return self._next

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Take the report in, fit again, and look around the recipes that are now best."""
        knowledge, self._next = self._knowledge, None
        knowledge.tell(proposal.recipe, report)
        priced = knowledge.prices.price([proposal.recipe])
        if report.status == "ok" and report.mean_step_time_s is not None and priced:
            self._runs.append((priced[0], report))
            self._fit()
            knowledge.prices.descend(self._wanted, rounds=1, kinds=LOOKED_AROUND)

    def _fit(self) -> None:
        points, reports = [one for one, _ in self._runs], [report for _, report in self._runs]
        self._model.fit(points, reports)
        times = [report.mean_step_time_s or math.nan for report in reports]
        self._left_over.fit(points, np.log(times / self._model.seconds(points)).tolist())

    def _predict(self, points: Sequence[Priced]) -> tuple[Floats, Floats]:
        """Expected seconds of each point and their relative spread."""
        offset, spread = self._left_over.predict(points)
        return self._model.seconds(points) * np.exp(offset), spread

    def _hope(self, points: Sequence[Priced]) -> Floats:
        """Minus the expected improvement on the best step measured, as a share of it, if it fits in memory."""
        return -self._knowledge.improvement(*self._predict(points)) * self._knowledge.runs(points)

    def _wanted(self, points: Sequence[Priced]) -> Floats:
        """Expected seconds of each point, more where it does not fit: whose neighbours are worth pricing."""
        return self._predict(points)[0] * self._knowledge.crowding(points)

    def _choose(self) -> Proposal | None:
        knowledge = self._knowledge
        points = knowledge.prices.good
        chosen = knowledge.first_open(ranked(points, self._hope))
        if chosen is None:
            recipe = knowledge.draw()
            return propose(self._task, recipe, "nothing priced is left, so a random legal recipe") if recipe else None
        (hope,), (seconds,) = -self._hope([chosen]), self._predict([chosen])[0]
        best = knowledge.best
        if hope < CLOSE_CALL and best is not None and best.recipe.digest not in self._measured_again:
            self._measured_again.add(best.recipe.digest)
            again = propose(self._task, best.recipe, "no other recipe promises more: the best is measured once more")
            return replace(again, remeasure=True)
        reason = f"the fitted formula expects {seconds:.2f} s a step and {hope:.1%} of improvement"
        proposal = propose(self._task, chosen.recipe, reason, chosen.estimate)
        return replace(proposal, predicted={**proposal.predicted, "step_time_s": float(seconds)})
