"""A dynamic programme over pipeline stages, pruned by memory, for throughput or for tokens per dollar.

Sailor (arXiv 2504.17096, SOSP 2025; code eth-easl/sailor) chooses resources and a parallel plan together, on
heterogeneous and distributed GPUs, for throughput or for cost. Heuristics drop what memory or capacity rule out; a
dynamic programme assigns layers and GPUs to the stages; a simulator of time and memory judges the plans.

Faithful: the two heuristics (for each stage only the smallest tensor parallelism that fits, and only stages of equal
capacity on equal GPUs), the programme over stages and layers, the objective as an option. Reconstructed: a stage's
profile, which comes from the cost model's estimates of whole recipes. All stages of a recipe use one tensor
parallelism here and layers are split evenly: the plan is rounded to its most frequent stage. Added: measured step
times and peaks correct the profile before the next plan.

``objective=cost``: the cluster is fixed and rented as a whole, so the plan with the most tokens per second is also the
one with the most tokens per dollar, and both objectives rank plans alike. What differs is what the search itself may
cost: under ``cost`` a plan is only tried while the GPU-hours that it is expected to save in a day of training, weighed
with the chance that it runs, exceed what trying it takes; the search then ends early and says so.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from attune_lab.contracts import Proposal
from attune_lab.recipe import Value
from baselines.common.options import Option
from baselines.common.planner import Planner
from baselines.common.pricelist import ROOM, Priced, ranked

PROFILE = ("pp", "cp", "ep", "etp", "vpp", "mbs", "recompute", "dispatcher", "ep_overlap")
"""What a profile is taken for, beside the tensor parallelism that the programme chooses."""

IN_LAYERS = ("weights", "gradients", "optimizer", "activations")
"""Parts of the memory that grow with the layers of a stage."""

SLACK = 1
"""Layers that a stage may have more or less than an even share."""

MAX_PROFILES = 24
"""Profiles planned for; the others are slower at their best."""

PAYBACK_H = 24.0
"""Hours of training in which a trial must be expected to pay for itself under ``objective=cost``."""


@dataclass(frozen=True)
class StageOption:
    """One way to run a pipeline stage.

    Attributes:
        seconds: of one micro-batch for each of its layers.
        fixed, per_layer: memory of the stage as a share of the accelerator's.
        size: GPUs that share a layer; of the options that fit, a stage takes the smallest.
    """

    seconds: float
    fixed: float
    per_layer: float
    size: int

    def fits(self, layers: int, room: float) -> bool:
        """Whether a stage with so many layers fits."""
        return self.fixed + layers * self.per_layer <= room


def smallest_fitting(options: Sequence[StageOption], layers: int, room: float) -> StageOption | None:
    """The heuristic of memory: more GPUs a layer than memory needs only add communication."""
    fitting = [option for option in options if option.fits(layers, room)]
    return min(fitting, key=lambda option: (option.size, option.seconds), default=None)


Plan: TypeAlias = tuple[float, float, tuple[tuple[int, StageOption], ...]]
"""Time of the slowest stage, of all together, and the stages."""


def plan_pipeline(
    options: Sequence[StageOption], *, layers: int, stages: int, micro_batches: float, room: float, slack: int
) -> tuple[float, tuple[tuple[int, StageOption], ...]]:
    """(seconds of a step, layers and option of each stage); (inf, ()) where no split fits.

    Equal GPUs have equal capacity: a stage has at most ``slack`` layers more or less than an even share. A step takes
    (G - 1) max t + sum t with G micro-batches and t the stages' times. For each number of stages and layers the
    programme keeps the (max, sum) that no other betters in both.

    **Source:** arXiv 2504.17096, the planner's recurrence, for GPUs of one kind.
    """
    share = layers / stages
    counts = range(max(math.ceil(share) - slack, 1), math.floor(share) + slack + 1)
    chosen = [(n, option) for n in counts if (option := smallest_fitting(options, n, room))]
    reached: dict[int, list[Plan]] = {0: [(0.0, 0.0, ())]}
    for _ in range(stages):
        following: dict[int, list[Plan]] = {}
        for (before, plans), (n, option) in itertools.product(reached.items(), chosen):
            time = n * option.seconds
            extended = [(max(slowest, time), total + time, (*plan, (n, option))) for slowest, total, plan in plans]
            following.setdefault(before + n, []).extend(extended)
        reached = {count: _undominated(plans) for count, plans in following.items() if count <= layers}
    ends = [((micro_batches - 1) * slowest + total, plan) for slowest, total, plan in reached.get(layers, [])]
    return min(ends, key=lambda end: end[0], default=(math.inf, ()))


def _undominated(plans: Sequence[Plan]) -> list[Plan]:
    """Plans that no other betters in the slowest stage and in the sum; the earlier of equals."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: plan[:2]):
        if not kept or plan[1] < kept[-1][1]:
            kept.append(plan)
    return kept


class Sailor(Planner):
    """Plans each profile by `plan_pipeline` and runs the plans, for throughput or for cost."""

    name = "sailor"
    options: ClassVar[Mapping[str, Option]] = {"objective": Option("throughput", choices=("throughput", "cost"))}

    def plans(self) -> Mapping[Priced, str]:
        """The most frequent stage of the plan for each of the best profiles."""
        profiles: dict[tuple[Value, ...], dict[int, Priced]] = defaultdict(dict)
        for one in ranked(self.knowledge.prices.good, self.hopeless):
            if not self.knowledge.history.known(one.recipe):
                profiles[tuple(one.values.get(key) for key in PROFILE)].setdefault(one.size("tp"), one)
        found = {}
        for by_size in list(profiles.values())[:MAX_PROFILES]:
            _, plan = self._plan(list(by_size.values()))
            if plan:
                ((size, stages),) = Counter(option.size for _, option in plan).most_common(1)
                found[by_size[size]] = f"tensor parallelism {size} on {stages} of {len(plan)} stages is the best plan"
        return found

    def _plan(self, recipes: Sequence[Priced]) -> tuple[float, tuple[tuple[int, StageOption], ...]]:
        """The plan for one profile, whose recipes differ in tensor parallelism alone."""
        layers, stages = int(str(self.task.baseline.get("num_layers"))), recipes[0].size("pp")
        micro_batches = min(self._micro_batches(one) for one in recipes)
        filled, seconds = self.knowledge.filled(recipes), self.knowledge.seconds(recipes)[0]
        options = []
        for one, full, step_s in zip(recipes, filled, seconds, strict=True):
            parts, whole = one.estimate.memory_parts_bytes, one.estimate.peak_memory_bytes
            in_layers = full * sum(parts.get(name, 0.0) for name in IN_LAYERS) / whole
            busy_s = step_s * (1.0 - one.estimate.breakdown_s.get("bubble", 0.0) / one.estimate.step_time_s)
            of_layer = stages / layers
            options.append(
                StageOption(busy_s / micro_batches * of_layer, full - in_layers, in_layers * of_layer, one.size("tp"))
            )
        return plan_pipeline(options, layers=layers, stages=stages, micro_batches=micro_batches, room=ROOM, slack=SLACK)

    def _micro_batches(self, one: Priced) -> float:
        """Micro-batches of a step on each data-parallel rank."""
        ranks = self.task.cluster.n_gpus / (one.size("tp") * one.size("pp") * one.size("cp"))
        return int(str(self.task.baseline.get("gbs"))) / (ranks * one.size("mbs"))

    def ask(self) -> Proposal | None:
        """As `Planner.ask`; under ``objective=cost`` None once no trial is expected to pay for itself."""
        proposal = super().ask()
        if proposal is None or self.chosen_options["objective"] == "throughput" or self._pays(proposal):
            return proposal
        self.stop_reason = f"no plan is expected to save in {PAYBACK_H:.0f} h of training what trying it costs"
        return None

    def _pays(self, proposal: Proposal) -> bool:
        """Whether the GPU-hours it is expected to save in `PAYBACK_H` exceed those of a run."""
        points = self.knowledge.prices.price([proposal.recipe])
        saved = self.knowledge.hope(points) * PAYBACK_H * self.task.cluster.n_gpus
        return not points or float(saved[0]) > self.task.budget.run_cost
