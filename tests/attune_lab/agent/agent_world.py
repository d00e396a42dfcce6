"""A small world for the agent: eight parameters, a formula for the cost model, and a truth that differs from it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from attune_lab.contracts import Estimate, Proposal, RunReport, TuningTask
from attune_lab.recipe import Recipe
from simulator.hardware import parse_cluster

CLUSTER = parse_cluster("64xH200-SXM5-141GB")
BASELINE = Recipe(
    "megatron-lm",
    {
        "num_layers": 32, "hidden": 4096, "heads": 32, "kv_groups": 8, "ffn": 8192, "moe_ffn": 1536,
        "num_experts": 64, "topk": 8, "seq_len": 4096, "max_pos": 4096, "gbs": 512, "vocab_size": 128000,
        "tp": 4, "pp": 4, "vpp": 2, "ep": 16, "etp": 1, "mbs": 1, "dispatcher": "alltoall", "grouped_gemm": True,
        "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
        "use_distributed_optimizer": True, "sequence_parallel": True, "bf16": True,
    },
)  # fmt: skip


@dataclass(frozen=True)
class FakeParameter:
    choices: tuple


RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
LEVELS = {
    "none": dict.fromkeys(RECOMPUTE),
    "moe": dict(zip(RECOMPUTE, ("selective", None, None, ("moe",)), strict=True)),
    "full": dict(zip(RECOMPUTE, ("full", "uniform", 1, None), strict=True)),
}


def sizes_divide(tp, pp, ep, mbs):
    return 64 % (tp * pp) == 0 and 64 % (ep * pp) == 0 and 512 % (mbs * (64 // (tp * pp))) == 0


class FakeSpace:
    """Eight parameters; a recipe is legal when its sizes divide."""

    parameters: ClassVar = {
        "tp": FakeParameter((1, 2, 4, 8)),
        "pp": FakeParameter((1, 2, 4, 8)),
        "vpp": FakeParameter((1, 2, 4)),
        "ep": FakeParameter((1, 2, 4, 8, 16, 32)),
        "mbs": FakeParameter((1, 2, 4)),
        "recompute": FakeParameter(("none", "moe", "full")),
        "ep_overlap": FakeParameter((False, True)),
        "moe_permute_fusion": FakeParameter((False, True)),
    }

    def value(self, recipe, key):
        if key == "recompute":
            granularity = recipe.settings.get("recompute_granularity")
            return next(level for level, edits in LEVELS.items() if edits["recompute_granularity"] == granularity)
        return recipe.settings.get(key, self.parameters[key].choices[0])

    def apply(self, recipe, edits):
        plain = {key: value for key, value in edits.items() if key != "recompute"}
        return recipe.with_settings({**plain, **(LEVELS[edits["recompute"]] if "recompute" in edits else {})})

    def problems(self, recipe):
        v = {key: self.value(recipe, key) for key in self.parameters}
        if not sizes_divide(v["tp"], v["pp"], v["ep"], v["mbs"]):
            return ("sizes do not divide",)
        if (v["pp"] == 1) != (v["vpp"] == 1) or (v["ep_overlap"] and v["recompute"] == "full"):
            return ("settings do not go together",)
        return ()

    def sample(self, rng):
        while True:
            edits = {key: p.choices[int(rng.integers(len(p.choices)))] for key, p in self.parameters.items()}
            recipe = self.apply(BASELINE, edits)
            if not self.problems(recipe):
                return recipe

    def values(self, recipe):
        return {key: self.value(recipe, key) for key in self.parameters}

    def neighbours(self, recipe, key):
        return tuple(value for value in self.parameters[key].choices if value != self.value(recipe, key))

    def enumerate_layouts(self):
        rows = itertools.product(*(self.parameters[key].choices for key in ("tp", "pp", "ep", "vpp", "mbs")))
        return [
            {"tp": tp, "pp": pp, "cp": 1, "ep": ep, "etp": 1, "vpp": vpp, "mbs": mbs}
            for tp, pp, ep, vpp, mbs in rows
            if sizes_divide(tp, pp, ep, mbs) and (pp == 1) == (vpp == 1)
        ]

    def changed(self, before, after):
        pairs = {key: (self.value(before, key), self.value(after, key)) for key in self.parameters}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


SPACE = FakeSpace()


def breakdown(recipe, *, bias=None):
    """Seconds by part: a caricature of training in which every parameter matters."""
    v = {key: SPACE.value(recipe, key) for key in SPACE.parameters}
    b = {"tp": 1.0, "ep": 1.0, "compute": 1.0, **(bias or {})}
    redo = {"none": 1.0, "moe": 1.15, "full": 1.33}[v["recompute"]]
    dp = 64 // (v["tp"] * v["pp"])
    micro = 512 // (v["mbs"] * dp)
    fused = 1.0 if v["moe_permute_fusion"] else 1.03
    compute = b["compute"] * 10.0 * redo * fused * (1 + 0.03 * math.log2(v["tp"]) + 0.1 / v["mbs"])
    bubble = compute * (v["pp"] - 1) / (micro * v["vpp"])
    ep = b["ep"] * 1.2 * math.log2(2 * v["ep"]) * (0.3 if v["ep_overlap"] else 1.0)
    tp = b["tp"] * 0.8 * math.log2(v["tp"])
    return {"compute": compute, "bubble": bubble, "exposed_tp": tp, "exposed_ep": ep, "host": 0.2}


def peak(recipe):
    v = {key: SPACE.value(recipe, key) for key in SPACE.parameters}
    states = 200e9 / (v["pp"] * v["ep"]) + 300e9 / (v["tp"] * v["pp"] * 8)
    kept = {"none": 60e9, "moe": 25e9, "full": 8e9}[v["recompute"]] * v["mbs"] / v["tp"]
    return states + kept + 10e9


class FakeCostModel:
    def __init__(self):
        self.asked = 0

    def estimate(self, recipes):
        self.asked += len(recipes)
        return [self._one(recipe) for recipe in recipes]

    def _one(self, recipe):
        problems = tuple(SPACE.problems(recipe))
        if problems:
            return Estimate(math.nan, math.nan, math.nan, 141e9, {}, {}, problems)
        parts = breakdown(recipe)
        step = sum(parts.values())
        return Estimate(step, 512 * 4096 / 64 / step, peak(recipe), 141e9, parts, {"gemm_eff": 0.6})


@dataclass
class FakeBudget:
    total: float = 40.0
    left_for_search: float = 36.0
    run_cost: float = 1.0


@dataclass
class FakeWorld:
    """The truth of one seed: other constants than the cost model's, and noise."""

    seed: int
    statuses: dict[str, str] = field(default_factory=dict)
    memory_factor: float = 1.0
    noise: float = 0.003

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        self.bias = {key: float(np.exp(0.15 * rng.standard_normal())) for key in ("tp", "ep", "compute")}
        self.rng = np.random.default_rng(self.seed + 1000)

    def step_time(self, recipe):
        return sum(breakdown(recipe, bias=self.bias).values())

    def run(self, recipe, label):
        if SPACE.problems(recipe):
            return report(label, "invalid")
        status = self.statuses.get(recipe.digest, "ok")
        memory = peak(recipe) * self.memory_factor
        if memory > 141e9:
            status = "oom"
        if status != "ok":
            return report(label, status)
        parts = breakdown(recipe, bias=self.bias)
        times = self.step_time(recipe) * (1 + self.noise * self.rng.standard_normal(8))
        return finished(label, times, parts, memory)


def report(label, status):
    return RunReport(label=label, status=status, provenance="simulated", steps=8)


def finished(label, times, parts, memory):
    return report(label, "ok").model_copy(
        update={
            "step_times_s": tuple(times), "breakdown_s": parts, "peak_memory_bytes": (memory,),
            "memory_capacity_bytes": 141e9, "diagnostics": {"gemm_eff": 0.6},
        }
    )  # fmt: skip


def make_task(**changes):
    task = TuningTask(BASELINE, CLUSTER, SPACE, FakeCostModel(), FakeBudget(), 0)
    return replace(task, **changes)


def campaign(tuner, world, *, runs=20, start=2):
    """Baseline runs, then ask and tell; returns [(proposal, report)] without the baseline runs."""
    for number in range(start):
        tuner.tell(Proposal(BASELINE), world.run(BASELINE, f"000-baseline-{number}"))
    log = []
    while len(log) < runs and (proposal := tuner.ask()) is not None:
        answer = world.run(proposal.recipe, f"{len(log) + 1:03d}")
        log.append((proposal, answer))
        tuner.tell(proposal, answer)
    return log


def best_true_gain(log, world):
    """Gain of the recipe with the best measured mean step time, by the world's truth."""
    ran = [(r.mean_step_time_s, p.recipe) for p, r in log if r.status == "ok"]
    recipe = min(ran, key=lambda pair: pair[0])[1] if ran else BASELINE
    return world.step_time(BASELINE) / min(world.step_time(recipe), world.step_time(BASELINE)) - 1
