"""A Pareto front of memory techniques for every pipeline stage, and a mixed-integer programme that combines them.

Mist (arXiv 2503.19050, EuroSys 2025; code Dazz993/Mist) tunes parallelism together with every way to save memory
(recomputation, offloading, sharding). Inside a stage it keeps the Pareto front of time and memory; between stages a
mixed-integer linear programme picks one point of each front, for the least pipeline time within every stage's memory.
A stage has two times, one that every micro-batch repeats and one that comes once a step.

Faithful: the fronts, the two times, the programme (here `scipy.optimize.milp`) and its objective, in which the slowest
stage paces the pipeline. Reconstructed: the stage's figures, which come from the cost model's estimates of recipes that
use one choice on all stages; and the end of it, since all stages of a recipe choose alike here: the programme's answer
is rounded to the choices in it that fit on every stage. How the layers are split is part of the layout (whether
embedding and loss count as layers). Added: measured step times and peaks correct the fronts before the next plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attune_lab.contracts import TuningTask
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Value
from baselines.common.offsets import Floats
from baselines.common.planner import Planner
from baselines.common.pricelist import ROOM, Priced, ranked

SPLIT = (*LAYOUT, "account_embedding", "account_loss")
"""What recipes of one front share: the layout and how the layers are split over the stages."""

MAX_LAYOUTS = 10
"""Layouts planned for; the others are slower at their best."""

MAX_CHOICES = 8
"""Points of a front that the programme chooses from."""

ONCE = ("exposed_dp", "optimizer")
"""Parts of a step that come once; the bubble is the programme's to work out, the rest comes with every micro-batch."""


@dataclass(frozen=True)
class Stages:
    """Choices for the stages of one pipeline.

    Attributes:
        repeated_s: seconds a micro-batch takes on a stage under a choice, shape (P, C).
        once_s: seconds that come once a step, shape (P, C).
        memory: peak of a stage under a choice, shape (P, C), in the unit of ``room``.
    """

    repeated_s: Floats
    once_s: Floats
    memory: Floats


def plan_stages(stages: Stages, micro_batches: float, room: float) -> tuple[float, list[int]]:
    """(seconds of a step, choice of each stage) of the fastest pipeline that fits; (inf, []) where none does.

    The pipeline takes (G - 1) max_p t_p + sum_p t_p + max_p d_p, with G micro-batches, t repeated and d once.

    **Source:** arXiv 2503.19050, the inter-stage objective with its stable time and its imbalance.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    count, choices = stages.repeated_s.shape
    picks = count * choices  # variables: one switch for each stage and choice, then the two maxima
    times, once = stages.repeated_s.ravel(), stages.once_s.ravel()
    of_stage = np.kron(np.eye(count), np.ones(choices))
    zero = np.zeros((count, 1))
    constraints = [
        LinearConstraint(np.hstack([of_stage, zero, zero]), 1, 1),
        LinearConstraint(np.hstack([of_stage * times, zero - 1, zero]), -np.inf, 0),
        LinearConstraint(np.hstack([of_stage * once, zero, zero - 1]), -np.inf, 0),
    ]
    fits = (stages.memory <= room).ravel().astype(float)
    bounds = Bounds(np.zeros(picks + 2), np.concatenate([fits, [np.inf, np.inf]]))
    cost = np.concatenate([times, [micro_batches - 1.0, 1.0]])
    integrality = np.concatenate([np.ones(picks), [0, 0]])
    result = milp(cost, constraints=constraints, bounds=bounds, integrality=integrality)
    if result.x is None:
        return np.inf, []
    return float(result.fun), result.x[:picks].reshape(count, choices).argmax(axis=1).tolist()


def front(seconds: Floats, memory: Floats) -> list[int]:
    """Places of the points that no other betters in both, fastest first; the earlier of equals."""
    kept: list[int] = []
    for place in np.lexsort((memory, seconds)):
        if not kept or memory[place] < memory[kept[-1]]:
            kept.append(int(place))
    return kept


class Mist(Planner):
    """Plans the best layouts by `plan_stages` and runs the choices of the plans."""

    name = "mist"

    def __init__(self, task: TuningTask) -> None:
        super().__init__(task)
        self._solved: dict[tuple[tuple[Priced, ...], bytes], list[int]] = {}

    def plans(self) -> Mapping[Priced, str]:
        """The choices that occur in the plans of the best layouts."""
        layouts: dict[tuple[Value, ...], list[Priced]] = defaultdict(list)
        for one in ranked(self.knowledge.prices.good, self.hopeless):
            if not self.knowledge.history.known(one.recipe):
                layouts[tuple(one.values.get(key) for key in SPLIT)].append(one)
        found = {}
        for recipes in list(layouts.values())[:MAX_LAYOUTS]:
            for one, stages in self._plan(recipes).items():
                found[one] = f"on the front of its layout, the plan for {stages} of {one.size('pp')} stages"
        return found

    def _plan(self, recipes: Sequence[Priced]) -> dict[Priced, int]:
        """Choices of the plan for one layout, with the stages that take them; only those that fit on all stages."""
        filled = self.knowledge.filled(recipes)
        places = front(self.knowledge.seconds(recipes)[0], filled)[:MAX_CHOICES]
        choices = [recipes[place] for place in places]
        memory = np.stack([_by_stage(recipes[place]) * filled[place] for place in places], axis=1)
        question = (tuple(choices), memory.round(2).tobytes())
        if question not in self._solved:
            stages = self._stages(choices, memory)
            _, self._solved[question] = plan_stages(stages, self._micro_batches(choices[0]), ROOM)
        plan = self._solved[question]
        everywhere = [c for c in dict.fromkeys(plan) if memory[:, c].max() <= ROOM]
        return {choices[c]: plan.count(c) for c in everywhere}

    def _stages(self, choices: Sequence[Priced], memory: Floats) -> Stages:
        """The figures of every stage: all stages of a recipe take the time of the slowest."""
        seconds = self.knowledge.seconds(choices)[0]
        once = np.array([sum(_share(one, part) for part in ONCE) for one in choices])
        bubble = np.array([_share(one, "bubble") for one in choices])
        repeated = seconds * (1.0 - once - bubble) / self._micro_batches(choices[0])
        shape = (len(memory), 1)
        return Stages(np.tile(repeated, shape), np.tile(seconds * once, shape), memory)

    def _micro_batches(self, one: Priced) -> float:
        """Micro-batches of a step on each data-parallel rank."""
        ranks = self.task.cluster.n_gpus / (one.size("tp") * one.size("pp") * one.size("cp"))
        return int(str(self.task.baseline.get("gbs"))) / (ranks * one.size("mbs"))


def _by_stage(one: Priced) -> Floats:
    """Peak of each stage as a share of the fullest one's."""
    peaks = np.array(one.estimate.stage_memory_bytes or (one.estimate.peak_memory_bytes,))
    return np.asarray(peaks / peaks.max())


def _share(one: Priced, part: str) -> float:
    """What a part has of the predicted step."""
    return one.estimate.breakdown_s.get(part, 0.0) / one.estimate.step_time_s
