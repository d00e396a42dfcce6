"""The Megatron ladder: the rules of thumb by which layouts are set up by hand, rung by rung.

Keep tensor parallelism inside the node; make the model-parallel size just large enough for memory; raise the
micro-batch; interleave the pipeline; recompute as little as fits; then switch on what overlaps. Each rung is one run,
kept if it is faster. What runs out of memory runs again with more recomputation.

**Source:** the takeaways of Megatron-LM, arXiv 2104.04473 (sections 3 and 5), for parallel sizes, micro-batch and
interleaving; the MoE guide of Megatron-Core (NVIDIA/Megatron-LM, docs) for expert parallelism and fusions. Faithful:
the rules and their order, and that no model of the runs is kept. Reconstructed: the recipe's own layout is climbed
first; "fits" is the cost model's word, and it also chooses among layouts of the same model-parallel size and passes
over slow ones; when a ladder is climbed, the next larger size follows, with the switches that were found good.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence

from attune_lab.contracts import Proposal, TuningTask
from attune_lab.recipe import Recipe, Value
from baselines.common.history import Trial
from baselines.common.moves import applicable
from baselines.common.options import read_options
from baselines.common.planned import Plan, PlannedTuner
from baselines.common.pricing import Pricing
from baselines.common.proposals import propose
from baselines.common.recomputation import stronger

SWITCHES: tuple[tuple[str, Value], ...] = (
    ("sequence_parallel", True),
    ("grouped_gemm", True),
    ("overlap_grad_reduce", True),
    ("overlap_param_gather", True),
    ("tp_comm_overlap", True),
    ("dispatcher", "flex:deepep"),
    ("dispatcher", "flex:hybridep"),
    ("ep_overlap", True),
    ("delay_wgrad", True),
    ("shared_expert_overlap", True),
    ("moe_permute_fusion", True),
    ("moe_router_fusion", True),
    ("cross_entropy_fusion", True),
    ("manual_gc", True),
    ("cuda_graph", "te:attn"),
    ("env.PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
)
"""The last rungs, in the order in which the guides name them."""

SLOWEST = 1.25
"""A layout is not climbed if it is expected to take more than this many times the step time of the best recipe."""

Runs = Generator[Proposal, Trial, Recipe]
"""Some runs, and where the ladder stands after them."""


class MegatronLadder(PlannedTuner):
    """Climbs the ladder from the recipe's layout, then from the smallest layouts that fit. It takes no options.

    Raises:
        UserError: the task has options.
    """

    name = "megatron-ladder"

    def __init__(self, task: TuningTask) -> None:
        read_options(self.name, task.options)
        super().__init__(task)
        self._pricing = Pricing(task, self.history)

    def plan(self) -> Plan:
        """One ladder after the other."""
        here = yield from self._memory_rungs(self.task.baseline)
        yield from self._switch_rungs(here)
        for edits in self._layouts():
            start = self._start(edits)
            if start is None or not self._promising(start):
                continue
            sizes = ", ".join(f"{key} {edits[key]}" for key in ("tp", "pp", "ep") if key in edits)
            here = yield from self._try(start, f"the next larger model-parallel size that fits: {sizes}")
            here = yield from self._memory_rungs(here)
            if here.digest == self._best().digest:
                yield from self._switch_rungs(here)
        return "every layout that is expected to fit has been climbed"

    def _memory_rungs(self, here: Recipe) -> Runs:
        """The rungs that memory limits: micro-batch, virtual stages, less recomputation."""
        space = self.task.space
        for key, rule in (("mbs", "a larger micro-batch"), ("vpp", "more virtual stages shrink the bubble")):
            here = yield from self._rungs(here, key, self._beyond(here, key), rule)
        weaker = space.parameters["recompute"].choices[::-1]
        own = space.value(here, "recompute")
        weaker = weaker[weaker.index(own) + 1 :] if own in weaker else ()
        return (yield from self._rungs(here, "recompute", weaker, "less recomputation"))

    def _switch_rungs(self, here: Recipe) -> Runs:
        """The rungs that cost no memory to speak of."""
        parameters = self.task.space.parameters
        for key, value in SWITCHES:
            if key in parameters and value in parameters[key].choices and key in applicable(self.task, here):
                here = yield from self._rungs(here, key, [value], "one more overlap or fusion")
        return here

    def _beyond(self, recipe: Recipe, key: str) -> Sequence[Value]:
        choices, own = self.task.space.parameters[key].choices, self.task.space.value(recipe, key)
        return choices[choices.index(own) + 1 :] if own in choices else ()

    def _rungs(self, here: Recipe, key: str, values: Sequence[Value], rule: str) -> Runs:
        """Set ``key`` to one value after the other as long as that pays; values that are not legal are stepped over."""
        for value in values:
            recipe = self.task.space.apply(here, {key: value})
            if self.task.space.problems(recipe) or self.task.space.value(here, key) == value:
                continue
            reached = yield from self._try(recipe, f"{rule}: {key} {value}")
            if self._seconds(reached) >= self._seconds(here):
                break
            here = reached
        return here

    def _try(self, recipe: Recipe, reason: str) -> Runs:
        """Run ``recipe``; while it runs out of memory, again with the next level of recomputation that should fit."""
        trial = yield self._proposal(recipe, reason)
        for repaired in stronger(self.task.space, recipe):
            if trial.status != "oom":
                break
            if self._fits(repaired):
                level = self.task.space.value(repaired, "recompute")
                trial = yield self._proposal(repaired, f"out of memory: the same with recompute {level}")
        return trial.recipe

    def _layouts(self) -> Iterator[dict[str, Value]]:
        """For each model-parallel size TP x PP, smallest first, the layout and recomputation expected to be fastest.

        Then the second fastest of each size, and so on. The micro-batch is 1, experts keep whole matrices, and a
        pipeline begins with two virtual stages.
        """
        by_size: dict[int, list[tuple[float, dict[str, Value]]]] = defaultdict(list)
        rows = [row for row in self.task.space.enumerate_layouts() if self._by_the_rules(row)]
        levels = self.task.space.parameters["recompute"].choices
        plain = [{key: size for key, size in row.items() if key in self.task.space.parameters} for row in rows]
        edits: list[dict[str, Value]] = [{**row, "recompute": level} for row in plain for level in levels]
        estimates = self._pricing.of([self.task.space.apply(self.task.baseline, one) for one in edits])
        fits = self._pricing.fits(estimates)
        for number, row in enumerate(rows):
            own = range(number * len(levels), (number + 1) * len(levels))
            fitting = [(estimates[place].step_time_s, place) for place in own if fits[place]]
            if fitting:
                seconds, place = min(fitting)
                by_size[row["tp"] * row["pp"]].append((seconds, edits[place]))
        ranked = [sorted(by_size[size], key=lambda pair: pair[0]) for size in sorted(by_size)]
        for round_ in itertools.zip_longest(*ranked):
            yield from (pair[1] for pair in round_ if pair is not None)

    def _by_the_rules(self, row: Mapping[str, int]) -> bool:
        """Whether a layout is one that the guides would set up."""
        context = self.task.space.value(self.task.baseline, "cp")
        interleaved = row["vpp"] == (1 if row["pp"] == 1 else 2)
        in_node = row["tp"] <= self.task.cluster.gpus_per_node
        return row["mbs"] == 1 and row["etp"] == 1 and row["cp"] == context and interleaved and in_node

    def _start(self, edits: Mapping[str, Value]) -> Recipe | None:
        """The layout with the best recipe's switches, or the baseline's where those do not go with it."""
        recipes = [self.task.space.apply(base, edits) for base in (self._best(), self.task.baseline)]
        return next((recipe for recipe in recipes if not self.task.space.problems(recipe)), None)

    def _promising(self, start: Recipe) -> bool:
        """Whether a layout is expected to fit, and not to be so slow that no rung would make up for it."""
        new, best = self._pricing.of([start, self._best()])
        return self._fits(start) and new.step_time_s <= SLOWEST * best.step_time_s

    def _fits(self, recipe: Recipe) -> bool:
        return self._pricing.fits(self._pricing.of([recipe]))[0]

    def _best(self) -> Recipe:
        best = self.history.best
        return best.recipe if best is not None else self.task.baseline

    def _seconds(self, recipe: Recipe) -> float:
        trial = self.history.get(recipe)
        return trial.step_time_s if trial is not None and trial.step_time_s is not None else math.inf

    def _proposal(self, recipe: Recipe, reason: str) -> Proposal:
        return propose(self.task, recipe, reason, self._pricing.of([recipe])[0])
