"""The runs every campaign begins with: they price the budget, measure the noise and calibrate the gate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attune_lab.campaign.budget import (
    Budget,
    BudgetExceeded,
    BudgetRequest,
    Reservation,
    bound_us,
    to_gpu_hours,
    to_us,
)
from attune_lab.campaign.noise import NoiseBand, noise_band
from attune_lab.contracts import (
    INFRASTRUCTURE_FAULTS,
    Cluster,
    CostModel,
    EnvironmentFault,
    Proposal,
    RunReport,
    UserError,
)

if TYPE_CHECKING:
    from attune_lab.campaign.runner import Runner
    from attune_lab.campaign.store import RunRow
    from attune_lab.recipe import Recipe
    from attune_lab.space import SearchSpace

LONG_STEPS = 20
"""Steps of baseline, twin and finalist runs: what the gate compares."""

TIMING_STEPS = 8
"""Steps of a search run: 3 of warm-up, 5 timed."""

FIRST_LIMIT = 4.0
"""The first run may take this many times the step time the cost model expects."""

SEARCH_LIMIT = 1.5
"""A search run is ended once it is this many times slower than the baseline: it cannot win any more."""

FINALIST_LIMIT = 1.1
"""A finalist was measured faster than the baseline; one that now is 10 % slower has lost."""

TWIN_TIME, TWIN_MEMORY = 1.25, 0.9
"""A twin is expected to be at most so many times slower than the baseline, and to fill so much of the memory:
the cost model may be wrong by more than a twin can afford to lose."""

UNSTEADY = 0.02
"""Baseline runs further apart than this were not made under the same conditions; published repeats differ by 0.4 %
(NVIDIA-NeMo/Megatron-Bridge performance summary)."""

FINALISTS = 2
"""Final runs that are paid for from the start."""


@dataclass(frozen=True)
class Baseline:
    """What the baseline runs showed.

    Attributes:
        recipe: the baseline.
        runs: its ``ok`` runs, without one that a slow node spoilt; the first two are the gate's A/A pair.
        twins: ``ok`` runs of a legitimate variant.
        band: the noise band.
        run_cost_us: what one timing run (start-up, warm-up and 5 steps) of the baseline costs: the ``x`` of ``40x``.
    """

    recipe: Recipe
    runs: tuple[RunReport, ...]
    twins: tuple[RunReport, ...]
    band: NoiseBand
    run_cost_us: int

    @property
    def step_time_s(self) -> float:
        """Mean step time over the runs."""
        return statistics.fmean(run.mean_step_time_s or math.nan for run in self.runs)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Mean throughput over the runs."""
        return statistics.fmean(_rate(run) for run in self.runs)


def opening_budget(
    request: BudgetRequest, recipe: Recipe, cost_model: CostModel, cluster: Cluster
) -> tuple[int, float]:
    """The budget in GPU-microseconds as far as it can be known before the first run, and the expected step time.

    A budget in multiples of a run is priced by the cost model until the first run has shown the true price.

    Raises:
        UserError: the baseline cannot run here, or the budget does not cover baseline and final runs.
    """
    (estimate,) = cost_model.estimate([recipe])
    step_s = estimate.step_time_s
    if estimate.problems or not (math.isfinite(step_s) and step_s > 0):
        reason = "; ".join(estimate.problems) or "the cost model has no step time for it"
        raise UserError(f"the baseline cannot start on {cluster.spec.name}: {reason}")
    n_gpus, startup_s = cluster.spec.n_gpus, cluster.startup_bound_s(recipe)
    run_cost = bound_us(n_gpus, startup_s + TIMING_STEPS * step_s)
    smallest = smallest_us(n_gpus, startup_s, step_s)
    total = request.total_us(run_cost)
    if total < smallest:
        hours = to_gpu_hours(smallest)
        raise UserError(
            f"--budget {request.text} does not cover the baseline runs and the gate's own: "
            f"take at least {math.ceil(smallest / run_cost)}x or {_round_up(hours):g}h"
        )
    return total, step_s


def smallest_us(n_gpus: int, startup_s: float, step_s: float) -> int:
    """The smallest workable budget in GPU-microseconds: three long runs, one search run, the final runs reserved."""
    seconds = (
        3 * (startup_s + LONG_STEPS * step_s)
        + (startup_s + TIMING_STEPS * SEARCH_LIMIT * step_s)
        + FINALISTS * (startup_s + LONG_STEPS * FINALIST_LIMIT * step_s)
    )
    return bound_us(n_gpus, seconds)


def measure_baseline(
    request: BudgetRequest,
    recipe: Recipe,
    *,
    step_s: float,
    space: SearchSpace,
    cost_model: CostModel,
    runner: Runner,
) -> tuple[Baseline, Reservation | None]:
    """What the baseline runs showed, and what is reserved for the finalists (None: not enough was left).

    Raises:
        UserError: the baseline does not run here.
        EnvironmentFault: the infrastructure broke its runs too often.
    """
    original = Proposal(recipe, reason="the recipe as it came in")
    first_limit_s = FIRST_LIMIT * step_s
    label = runner.next_label("baseline")
    first = runner.run(label, "baseline", original, steps=LONG_STEPS, step_limit_s=first_limit_s)
    _require_ok(first)
    run_cost = _run_cost_us(first, runner.cluster.spec.n_gpus)
    _price(request, run_cost, runner.budget)
    mean_s = first.mean_step_time_s
    assert mean_s is not None
    held = _hold_finals(runner, recipe, mean_s)
    runs, twins = [first], []
    if held:
        if second := _long_run(runner, "baseline", original, mean_s):
            runs.append(second)
        twin = twin_of(recipe, space, cost_model)
        if twin and (report := _long_run(runner, "twin", twin, mean_s)):
            twins.append(report)
        if len(runs) < 2 or not twins or _spread(runs) > UNSTEADY:
            third = _long_run(runner, "baseline", original, mean_s)
            runs = steady([*runs, third] if third else runs)
    return Baseline(recipe, tuple(runs), tuple(twins), noise_band(runs), run_cost), held


def stored_baseline(rows: Sequence[RunRow]) -> Baseline:
    """The baseline as a campaign measured it, from its stored runs; the price of a run is left at nothing.

    Raises:
        ValueError: no run of it ended well.
    """

    def ended_well(purpose: str) -> list[RunReport]:
        return [row.report for row in rows if row.purpose == purpose and row.report and row.report.status == "ok"]

    runs = steady(ended_well("baseline"))
    recipe = next(row.recipe for row in rows if row.purpose == "baseline")
    return Baseline(recipe, tuple(runs), tuple(ended_well("twin")), noise_band(runs), 0)


def steady(runs: Sequence[RunReport]) -> list[RunReport]:
    """The runs without the slowest, when there are three or more and it keeps them from agreeing.

    What is not the recipe's doing (a slow node, a busy network) only ever slows a run down, so the faster runs are
    the ones to beat; leaving out the slowest never makes a candidate look better.
    """
    rest = sorted(runs, key=_rate)[1:]
    if len(rest) < 2 or _spread(runs) <= UNSTEADY:
        return list(runs)
    return [run for run in runs if run in rest]


def _spread(runs: Sequence[RunReport]) -> float:
    """How much faster the fastest run is than the slowest, as a fraction."""
    rates = [_rate(run) for run in runs]
    return max(rates) / min(rates) - 1


def _rate(run: RunReport) -> float:
    assert run.tokens_per_s_per_gpu is not None
    return run.tokens_per_s_per_gpu


def twin_of(recipe: Recipe, space: SearchSpace, cost_model: CostModel) -> Proposal | None:
    """A legitimate variant of the baseline that should fit: same training, other rounding. None when there is none.

    Another micro-batch size sums the same samples in another order; exposed gradient communication changes the
    time alone.
    """
    mbs = recipe.settings.get("mbs")
    variants: list[tuple[str, dict[str, int | bool]]] = []
    if isinstance(mbs, int) and not isinstance(mbs, bool):
        halves = [mbs // 2] if mbs % 2 == 0 else []
        variants += [(f"the same batch in micro-batches of {size}", {"mbs": size}) for size in (*halves, 2 * mbs)]
    if recipe.settings.get("overlap_grad_reduce") is True:
        variants.append(("without overlap", {"overlap_grad_reduce": False, "overlap_param_gather": False}))
    for reason, edits in variants:
        candidate = recipe.with_settings(edits)
        if not space.problems(candidate) and _is_safe(candidate, recipe, cost_model):
            changed = {key: (recipe.settings.get(key), value) for key, value in edits.items()}
            return Proposal(candidate, changed, f"a twin of the baseline for the gate: {reason}")
    return None


def _is_safe(candidate: Recipe, baseline: Recipe, cost_model: CostModel) -> bool:
    """The cost model expects the candidate to run about as fast as the baseline, with memory to spare."""
    expected, usual = cost_model.estimate([candidate, baseline])
    return (
        expected.fits
        and expected.peak_memory_bytes <= TWIN_MEMORY * expected.memory_capacity_bytes
        and expected.step_time_s <= TWIN_TIME * usual.step_time_s
    )


def _long_run(runner: Runner, purpose: str, proposal: Proposal, baseline_step_s: float) -> RunReport | None:
    """The report of a long run when the budget allows it and it ends well, else None."""
    limit_s = SEARCH_LIMIT * baseline_step_s
    try:
        report = runner.run(runner.next_label(purpose), purpose, proposal, steps=LONG_STEPS, step_limit_s=limit_s)
    except BudgetExceeded:
        return None
    return report if report.status == "ok" else None


def _hold_finals(runner: Runner, recipe: Recipe, step_s: float) -> Reservation | None:
    """The final runs reserved, as many as fit; None when not even one does."""
    each = runner.bound_us(recipe, LONG_STEPS, FINALIST_LIMIT * step_s)
    for count in range(FINALISTS, 0, -1):
        try:
            return runner.budget.reserve(count * each, "final runs")
        except BudgetExceeded:
            continue
    return None


def _run_cost_us(first: RunReport, n_gpus: int) -> int:
    """Price of a timing run: what the first run was charged, less the steps a timing run does not make."""
    mean_s = first.mean_step_time_s
    assert mean_s is not None
    return to_us(first.gpu_hours) - round(n_gpus * (LONG_STEPS - TIMING_STEPS) * mean_s * 1_000_000)


def _price(request: BudgetRequest, run_cost_us: int, budget: Budget) -> None:
    """Turn the provisional total of a ``40x`` budget into the true one."""
    try:
        budget.set_total(request.total_us(max(run_cost_us, 0)))
    except BudgetExceeded as error:
        raise EnvironmentFault(
            f"the first baseline run and its retries used up --budget {request.text} ({error}); "
            "look at the cluster's failures, then begin again with another --out"
        ) from error


def _require_ok(first: RunReport) -> None:
    if first.status in INFRASTRUCTURE_FAULTS:
        raise EnvironmentFault(
            f"the cluster broke every try of the first baseline run ({first.status}: {first.message or 'no message'}); "
            "repair it, then begin again with another --out"
        )
    if first.status != "ok":
        raise UserError(
            f"the baseline does not run on this cluster ({first.status}: {first.message or 'no message'}); "
            "change the recipe, the cluster or --carry-over"
        )


def _round_up(hours: float) -> float:
    """Up to three significant digits."""
    unit = 10.0 ** (math.floor(math.log10(hours)) - 2)
    return math.ceil(hours / unit) * unit
