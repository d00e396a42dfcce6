"""The vendor's grid: heuristic ranges around the model's size, run one after the other.

The published tool takes tensor, pipeline, context and expert parallel sizes, micro-batches and activation checkpointing
from a table by model size, keeps the combinations whose model-parallel size lies in a window, runs each for a few steps
and reports the fastest. It learns nothing on the way. **Source:** NeMo Auto Configurator, NVIDIA/NeMo@1315031,
nemo/collections/llm/tools/auto_configurator/core/training_config.py (grid, windows and nesting of the loops).

Faithful: the grid's axes, flags left as the recipe has them, and a window of model-parallel sizes from the smallest
that holds the training state to eight times that, which is the table's pattern for large models (130 B: 16 to 128,
195 B: 32 to 256, 395 B: 64 to 512 at 80 GB). Reconstructed: sizes are the space's own; the recipe's context and
expert parallelism and virtual stages, with their neighbours, stand in for the user's lists; checkpointing has the
space's levels. The loops' own order would spend a small budget on one corner of the grid, so by default points near
the recipe come first, and what the cost model expects not to fit is left out; ``order=nested`` and ``memory=false``
are the tool's own behaviour.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from attune_lab.contracts import TuningTask
from attune_lab.recipe import Recipe, Value
from attune_lab.recipe.shape import shape_of
from baselines.common.options import Option, read_options
from baselines.common.planned import Plan, PlannedTuner
from baselines.common.pricing import Pricing
from baselines.common.proposals import propose
from simulator.models.parameters import parameters

OPTIONS = {"order": Option("near", choices=("near", "nested")), "memory": Option(True)}

SIZES = ("tp", "pp", "cp", "ep", "vpp", "mbs")
AXES = (*SIZES, "recompute")
"""What the grid varies, outermost loop first."""

STATE_BYTES = 18
"""Bytes of weights, gradients and optimizer state for each parameter in mixed precision."""

WIDTH = 8
"""The largest model-parallel size of the window, in smallest ones."""

MICRO_BATCHES = (1, 2, 4, 8)

Point = Mapping[str, Value]


class Grid(PlannedTuner):
    """Runs a fixed grid of layouts in order.

    Options of the task: ``order`` (``near`` or ``nested``), ``memory`` (leave out what is not expected to fit).

    Raises:
        UserError: an unknown option or value.
    """

    name = "grid"

    def __init__(self, task: TuningTask) -> None:
        self._options = read_options(self.name, task.options, OPTIONS)
        super().__init__(task)
        self._pricing = Pricing(task, self.history)

    def plan(self) -> Plan:
        """The grid's points in their order, without those that no run is needed for."""
        points = self.points()
        for number in self._order(points):
            recipe = self.task.space.apply(self.task.baseline, points[number])
            if not self.task.space.problems(recipe) and self._worth_a_run(recipe):
                yield propose(self.task, recipe, f"point {number + 1} of {len(points)} of the grid")
        return f"all {len(points)} points of the grid have been run or left out"

    def points(self) -> list[Point]:
        """What each point sets, in the order of the nested loops; the sizes divide."""
        axes = [self._axis(key) for key in AXES]
        first, last = self._window()
        own_etp = self.task.space.values(self.task.baseline).get("etp", 1)
        rows = self.task.space.enumerate_layouts()
        legal = {tuple(row[key] for key in SIZES) for row in rows if row["etp"] == own_etp}
        products: dict[tuple[Value, ...], int] = {sizes: math.prod(sizes[:4]) for sizes in legal}
        return [
            {key: value for key, value in zip(AXES, values, strict=True) if key in self.task.space.parameters}
            for values in itertools.product(*axes)
            if first <= products.get(values[: len(SIZES)], 0) <= last
        ]

    def _axis(self, key: str) -> Sequence[Value]:
        """The values of one axis; 1 alone where the space has no such parameter."""
        parameter = self.task.space.parameters.get(key)
        if parameter is None:
            return (1,)
        own = self.task.space.value(self.task.baseline, key)
        if key == "mbs":
            return [size for size in parameter.choices if size in MICRO_BATCHES or size == own]
        if key in ("cp", "ep", "vpp"):
            near = {own, *self.task.space.neighbours(self.task.baseline, key)}
            return [size for size in parameter.choices if size in near]
        return parameter.choices

    def _window(self) -> tuple[int, int]:
        """The smallest and the largest model-parallel size, tp x pp x cp x ep."""
        state = STATE_BYTES * parameters(shape_of(self.task.baseline)).total
        smallest = 2 ** max(math.floor(math.log2(state / self.task.cluster.accelerator.memory_bytes)), 0)
        return smallest, WIDTH * smallest

    def _order(self, points: Sequence[Point]) -> Sequence[int]:
        """The numbers of the points in the order in which they are run."""
        if self._options["order"] == "nested":
            return range(len(points))
        own = self.task.space.values(self.task.baseline)
        return sorted(range(len(points)), key=lambda number: self._distance(own, points[number]))

    def _distance(self, own: Point, point: Point) -> int:
        """Steps from the recipe's own values to the point's, summed over the axes."""
        choices = {key: self.task.space.parameters[key].choices for key in point}
        return sum(abs(choices[key].index(value) - choices[key].index(own[key])) for key, value in point.items())

    def _worth_a_run(self, recipe: Recipe) -> bool:
        return not self._options["memory"] or self._pricing.fits(self._pricing.of([recipe]))[0]
