"""The DeepSpeed autotuner: memory techniques stage by stage, the micro-batch by bisection, then the flags.

The published tool tunes a job of fixed model parallelism. It takes the ZeRO stages from the one that needs most memory
to the one that needs least, leaves out those that cannot fit, finds the largest micro-batch of each by running it, and
where a stage pays it runs a grid of its flags until ``early_stop`` runs in a row brought nothing.
**Source:** deepspeedai/DeepSpeed@1757fc4, deepspeed/autotuning (autotuner.py, constants.py): 3 micro-batch sizes a
stage, early stop after 5, at most 50 trials, tuner types gridsearch, random and model_based.

Faithful: the order of the stages, the largest micro-batch by real runs, the number of sizes tried, when flags are
tuned and when their tuning stops. Reconstructed: the stages are this space's memory techniques, recomputation levels
and then offload of optimizer state, because ZeRO's stage is the recipe's; flags are overlap, bucket and dispatcher;
``model_based``, here the default, orders them by the cost model instead of a fitted one. The tool ends with the given
model parallelism; here the layouts that the cost model ranks next follow, with the flags found so far unless it ranks
them with others.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np

from attune_lab.contracts import Proposal, TuningTask
from attune_lab.recipe import Recipe, Value
from baselines.common.history import Trial
from baselines.common.options import Option, read_options
from baselines.common.planned import Plan, PlannedTuner
from baselines.common.pricing import Pricing
from baselines.common.proposals import propose
from baselines.common.ranking import ranked_recipes
from baselines.common.refusals import Refusals

OPTIONS = {
    "early_stop": Option(5, least=1, most=1000),
    "num_mbs": Option(3, least=1, most=16),
    "num_trials": Option(50, least=1, most=10_000),
    "tuner_type": Option("model_based", choices=("gridsearch", "random", "model_based")),
}

FLAGS = (
    "overlap_grad_reduce", "bucket_size", "tp_comm_overlap", "dispatcher", "ep_overlap", "moe_router_fusion",
    "cross_entropy_fusion",
)  # fmt: skip
"""Axes of the flags' grid."""

SIZES = ("tp", "pp", "cp", "ep", "etp", "vpp")
"""What makes a layout, but for the micro-batch."""

LAYOUTS, FULL = 80, 0.97
"""Recipes ranked by the cost model from which further layouts are taken, and the share of memory they may fill."""

SLACK = 0.05
"""A stage or micro-batch is run although it is expected to overfill the memory by this share."""


class DeepSpeedStages(PlannedTuner):
    """Tunes stage by stage. Options of the task: ``early_stop``, ``num_mbs``, ``num_trials``, ``tuner_type``.

    Raises:
        UserError: an unknown option or value.
    """

    name = "deepspeed-stages"

    def __init__(self, task: TuningTask) -> None:
        self._options = read_options(self.name, task.options, OPTIONS)
        super().__init__(task)
        self._pricing = Pricing(task, self.history)
        self._refusals = Refusals(task, self.history)
        self._rng = np.random.default_rng(task.seed)

    def plan(self) -> Plan:
        """The recipe's layout, then those the cost model ranks highest."""
        for number, sizes in enumerate(self._layouts()):
            best = self.history.best
            start = self.task.space.apply(best.recipe if best else self.task.baseline, sizes)
            yield from self._tune_layout(start, own=number == 0)
        best = self.history.best
        if best is not None:
            yield from self._tune_flags(best.recipe)
        return "the stages of all layouts ranked highest and the flags of the best recipe have been tuned"

    def _layouts(self) -> Iterator[dict[str, Value]]:
        """Parallel sizes: the recipe's, then the ranking's, each once, with the switches they were ranked with."""
        values = self.task.space.values(self.task.baseline)
        own = {key: values[key] for key in SIZES if key in values}
        yield own
        seen = [own]
        ranking = ranked_recipes(self.task.baseline, self.task.cluster, LAYOUTS, memory_limit=FULL)
        for found in ranking:
            sizes = {key: found.values[key] for key in own}
            if sizes not in seen:
                seen.append(sizes)
                yield {key: value for key, value in found.values.items() if key not in ("mbs", "recompute")}

    def _tune_layout(self, start: Recipe, *, own: bool) -> Generator[Proposal, Trial, None]:
        """All stages of one layout, as long as the next one is faster than the one before.

        Flags are tuned on each such stage of the recipe's own layout; elsewhere only where nothing was faster yet.
        """
        before = float("inf")
        for stage in self._stages():
            staged = self.task.space.apply(start, stage)
            sizes = self._sizes_that_may_fit(staged)
            largest = yield from self.largest(sizes)
            if largest == 0:
                continue
            tried = []
            for recipe in evenly(sizes[:largest], self._options["num_mbs"]):
                trial = yield self._proposal(recipe, stage)
                tried.append(trial)
            fastest = min(tried, key=_seconds)
            if _seconds(fastest) >= before:
                return
            before = _seconds(fastest)
            if own or fastest is self.history.best:
                yield from self._tune_flags(fastest.recipe)

    def _stages(self) -> list[dict[str, Value]]:
        """Memory techniques, from the one that needs most memory on."""
        parameters = self.task.space.parameters
        stages: list[dict[str, Value]] = [{"recompute": level} for level in parameters["recompute"].choices]
        if "optimizer_offload" in parameters:
            levels = parameters["optimizer_offload"].choices
            stages = [{**stage, "optimizer_offload": levels[0]} for stage in stages]
            stages += [{**stages[-1], "optimizer_offload": level} for level in levels[1:]]
        return stages

    def _sizes_that_may_fit(self, staged: Recipe) -> list[Recipe]:
        """``staged`` with every legal micro-batch that memory may allow, smallest first."""
        space = self.task.space
        recipes = [space.apply(staged, {"mbs": size}) for size in space.parameters["mbs"].choices]
        legal = [one for one in recipes if not space.problems(one) and not self._refusals.expects(one)]
        fits = self._pricing.fits(self._pricing.of(legal), margin=-SLACK)
        return [recipe for recipe, fit in zip(legal, fits, strict=True) if fit]

    def largest(self, sizes: Sequence[Recipe]) -> Generator[Proposal, Trial, int]:
        """How many of ``sizes``, recipes with ever larger micro-batches, run; by doubling, then bisection."""
        runs, fails = 0, len(sizes) + 1
        while fails - runs > 1:
            probe = min(2 * runs or 1, len(sizes)) if fails > len(sizes) else (runs + fails) // 2
            recipe = sizes[probe - 1]
            trial = yield self._proposal(recipe, {"mbs": self.task.space.value(recipe, "mbs")})
            runs, fails = (probe, fails) if trial.feasible else (runs, probe)
        return runs

    def _tune_flags(self, recipe: Recipe) -> Generator[Proposal, Trial, None]:
        """The grid of flags around ``recipe``, until nothing has improved for a while."""
        idle = 0
        for flags, flagged in self._flag_grid(recipe)[: self._options["num_trials"]]:
            if self._refusals.expects(flagged):
                continue
            best = self.history.best_s
            trial = yield self._proposal(flagged, flags)
            idle = 0 if _seconds(trial) < best else idle + 1
            if idle >= self._options["early_stop"]:
                return

    def _flag_grid(self, recipe: Recipe) -> list[tuple[Mapping[str, Value], Recipe]]:
        """The legal combinations of flags that are expected to fit, in the order of the tuner type."""
        space = self.task.space
        keys = [key for key in FLAGS if key in space.parameters]
        values = itertools.product(*(space.parameters[key].choices for key in keys))
        points = [dict(zip(keys, combination, strict=True)) for combination in values]
        recipes = [space.apply(recipe, point) for point in points]
        estimates = self._pricing.of(recipes)
        fits = self._pricing.fits(estimates)
        order = [number for number, fit in enumerate(fits) if fit and not space.problems(recipes[number])]
        if self._options["tuner_type"] == "model_based":
            order.sort(key=lambda number: estimates[number].step_time_s)
        elif self._options["tuner_type"] == "random":
            self._rng.shuffle(order)
        return [(points[number], recipes[number]) for number in order]

    def _proposal(self, recipe: Recipe, what: Mapping[str, Value]) -> Proposal:
        reason = "tune " + ", ".join(f"{key} {value}" for key, value in what.items())
        return propose(self.task, recipe, reason, self._pricing.of([recipe])[0])


def evenly(recipes: Sequence[Recipe], count: int) -> list[Recipe]:
    """At most ``count`` of ``recipes``, spread evenly, the last among them."""
    places = np.unique(np.linspace(0, len(recipes) - 1, count).round().astype(int)) if count > 1 else [-1]
    return [recipes[place] for place in places]


def _seconds(trial: Trial) -> float:
    return trial.step_time_s if trial.step_time_s is not None else float("inf")
