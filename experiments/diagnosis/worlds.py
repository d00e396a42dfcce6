"""Worlds, recipes and layouts that the diagnosis is tried on, with the report of each and the truth behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attune_lab.cluster.simulated import SimulatedCluster
from attune_lab.contracts import Estimate, RunReport, UserError
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.enumeration import fastest_recipes
from attune_lab.recipe import Recipe
from attune_lab.recipe.carry import carry_over
from attune_lab.recipe.constraints import errors
from attune_lab.recipe.effective import effective
from attune_lab.recipe.files import load
from attune_lab.recipe.jobs import jobs_for
from attune_lab.space import SearchSpace
from experiments.diagnosis.counterfactuals import dominant, dominant_memory, saved
from simulator.hardware import ClusterSpec, parse_cluster
from simulator.job import Jobs
from simulator.world import World

STEPS = 20

_LLAMA_1B: Mapping[str, Any] = {"num_layers": 16, "hidden": 2048, "ffn": 8192, "heads": 32, "kv_channels": 64,
                                "gbs": 256}  # fmt: skip
_LLAMA_8B: Mapping[str, Any] = {"num_layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "gbs": 256}
_LLAMA_70B: Mapping[str, Any] = {"num_layers": 80, "hidden": 8192, "ffn": 28672, "heads": 64, "gbs": 512}

SCENARIOS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("qwen3-235b-a22b", "64xH200-SXM5-141GB", {}),
    ("mixtral-8x22b", "64xH100-SXM5-80GB", {}),
    ("mixtral-8x22b", "128xB200-SXM-180GB", {}),
    ("deepseek-v3", "256xH100-SXM5-80GB", {}),
    ("kimi-k2", "256xB200-SXM-180GB", {}),
    ("gpt-oss-120b", "64xH100-SXM5-80GB", {}),
    ("glm-4.5-air", "32xH200-SXM5-141GB", {}),
    ("glm-5", "256xH200-SXM5-141GB", {}),
    ("llama-3.1-405b", "256xB200-SXM-180GB", {}),
    ("llama-3.1-405b", "512xH100-SXM5-80GB", {}),
    ("llama-3.1-405b", "64xH200-SXM5-141GB", _LLAMA_70B),
    ("llama-3.1-405b", "128xA100-SXM4-80GB", _LLAMA_70B),
    ("llama-3.1-405b", "64xA100-SXM4-80GB", _LLAMA_8B),
    ("llama-3.1-405b", "32xH100-SXM5-80GB", _LLAMA_8B),
    ("llama-3.1-405b", "16xA100-SXM4-40GB", _LLAMA_1B),
)
"""Shipped recipe, cluster, and settings that make another model of it. Neither of the models and clusters that studies
report on is among them."""

CHANCE_OF_SOUND = 0.2
"""Of these draws the recipe is one of the best that the cost model finds, where computation may dominate."""

SOUND = 5
"""So many of the best recipes are drawn from."""

CHANCE_OF_FEW = 0.4
"""Of these draws the global batch is cut to few micro-batches, down to one a rank: a full batch hides bubbles, the
reduction of gradients and the fixed parts of a step."""

CHANCE_OF_SERIAL = 0.2
"""Of these draws the overlap of data-parallel communication is switched off."""

CHANCE_OF_WIDE = 0.1
"""Of these draws every layer is recomputed and the micro-batch is large, so that logits may fill the last stage."""

_SERIAL = dict.fromkeys(
    ("overlap_grad_reduce", "overlap_param_gather", "overlap_param_gather_with_optimizer_step"), False
)
_WIDE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
         "recompute_modules": None}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One recipe in one world.

    Attributes:
        scenario: recipe and cluster.
        world_seed: of the world.
        report: what the simulated cluster said, noise included.
        estimate: the cost model's.
        settings: effective ones.
    """

    scenario: str
    world_seed: int
    report: RunReport
    estimate: Estimate
    settings: Mapping[str, Any]
    job: Jobs
    world: World

    @cached_property
    def savings(self) -> dict[str, float]:
        """What each term costs, by the world's own physics."""
        return saved(self.job, self.world)

    @property
    def truth(self) -> str | None:
        """The dominant term of a run that finished, the dominant part of memory of one that did not fit."""
        return dominant_memory(self.job, self.world) if self.report.status == "oom" else dominant(self.savings)


def trials(draws: int, seed: int) -> Iterator[Trial]:
    """``draws`` recipes of every scenario, each in a world of its own, with seeds from ``seed`` on."""
    for index, (name, cluster_name, edits) in enumerate(SCENARIOS):
        cluster = parse_cluster(cluster_name)
        model = SimulatedCostModel(cluster)
        written = load(name).recipe.with_settings(edits)
        baseline = carry_over(written, cluster, model).recipe
        space, random = SearchSpace(baseline, cluster), np.random.default_rng([seed, index])
        sound = [found.recipe for found in fastest_recipes(baseline, cluster, SOUND, memory_limit=0.9)]
        for world_seed in range(seed, seed + draws):
            recipe = drawn(space, sound, cluster, random)
            yield _trial(f"{name} {edits.get('num_layers', '')} {cluster_name}", recipe, cluster, model, world_seed)


def drawn(space: SearchSpace, sound: Sequence[Recipe], cluster: ClusterSpec, random: np.random.Generator) -> Recipe:
    """A recipe of the search space, now and then a sound one, or one with few micro-batches, serial or wide."""
    chances = (CHANCE_OF_SOUND, CHANCE_OF_FEW, CHANCE_OF_SERIAL, CHANCE_OF_WIDE)
    is_sound, few, serial, wide = (random.random() < chance for chance in chances)
    if is_sound and sound:
        return sound[int(random.integers(len(sound)))]
    recipe, count = space.sample(random), 2 ** int(random.integers(6))
    edits: dict[str, Any] = {**(_SERIAL if serial else {}), **(_WIDE if wide else {})}
    if few or wide:
        values = effective(recipe, cluster)
        stages = int(values["pp"]) if values["vpp"] else 1  # interleaving needs whole rounds of micro-batches
        edits["mbs"] = int(values["mbs"]) * (8 if wide else 1)
        edits["gbs"] = edits["mbs"] * int(values["dp"]) * max(count, stages)
    changed = recipe.with_settings(edits)
    return recipe if _broken(changed, cluster) else changed


def _broken(recipe: Recipe, cluster: ClusterSpec) -> bool:
    try:
        return bool(errors(recipe, cluster))
    except UserError:
        return True


def _trial(scenario: str, recipe: Recipe, cluster: ClusterSpec, model: SimulatedCostModel, seed: int) -> Trial:
    return Trial(
        scenario=scenario,
        world_seed=seed,
        report=SimulatedCluster(cluster, seed).run(recipe, STEPS, label="1"),
        estimate=model.estimate([recipe])[0],
        settings=effective(recipe, cluster),
        job=jobs_for([recipe], cluster),
        world=World.draw(seed, cluster),
    )
