"""The wall: nothing a tuner is given leads to the world that answers its runs.

What it cannot hold, in one process, is a tuner that looks for the world on purpose; see `world_seed`.
"""

import ast
import gc
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest

import attune_lab
import baselines
from attune_lab.cluster import SimulatedCluster, world_seed
from attune_lab.contracts import Proposal, TuningTask
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.recipe import Recipe
from attune_lab.space import SearchSpace
from simulator.draws import generator
from simulator.hardware import parse_cluster
from simulator.world import World

FORBIDDEN = (
    "simulator.world", "simulator.residuals", "simulator.curves", "simulator.draws", "attune_lab.cluster",
    "attune_lab.study",
)  # fmt: skip
BASE = Recipe(
    "megatron-lm",
    {
        "tp": 1, "pp": 4, "mbs": 1, "gbs": 256, "seq_len": 4096, "num_layers": 32, "hidden": 4096, "heads": 32,
        "ffn": 14336, "swiglu": True, "vocab_size": 32000, "bf16": True, "use_distributed_optimizer": True,
        "untie_embeddings": True, "add_bias_linear": False, "position_embedding": "rope", "overlap_grad_reduce": True,
        "max_pos": 4096,
    },
)  # fmt: skip
ROOMS = [Path(attune_lab.__file__).parent / "agent", Path(baselines.__file__).parent]
SOURCES = sorted(file for room in ROOMS for file in room.rglob("*.py"))


class Budget:
    """A budget as a tuner sees it."""

    total, left_for_search, run_cost = 40.0, 30.0, 1.0


def reachable(root, limit=2_000_000):
    """Every object reachable from ``root``: attributes, containers, closures; not modules, classes and globals."""
    seen, stack = {id(root): root}, [root]
    while stack and len(seen) < limit:
        here = stack.pop()
        held = (here.__closure__, here.__defaults__) if isinstance(here, FunctionType) else gc.get_referents(here)
        for item in held:
            if id(item) not in seen and not isinstance(item, ModuleType | type):
                seen[id(item)] = item
                stack.append(item)
    return seen.values()


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_tuners_import_nothing_of_the_world(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        assert not [n for n in names if n.startswith(FORBIDDEN)], f"{file} imports {names}"


@pytest.fixture(scope="module")
def behind_the_wall():
    spec = parse_cluster("64xH200-SXM5-141GB")
    cluster = SimulatedCluster(spec, world_seed(1))
    report = cluster.run(BASE, 8, label="baseline")
    return cluster, report


@pytest.mark.parametrize("name", ["task alone", *(point.name for point in entry_points(group="attune.tuners"))])
def test_a_tuner_and_its_task_lead_to_no_world_or_cluster(name, behind_the_wall):
    cluster, report = behind_the_wall
    space = SearchSpace(BASE, cluster.spec)
    task = TuningTask(BASE, cluster.spec, space, SimulatedCostModel(cluster.spec), Budget(), seed=1)
    root = [task]
    if name != "task alone":
        (point,) = entry_points(group="attune.tuners", name=name)
        tuner = point.load()(task)
        tuner.tell(Proposal(BASE), report)
        root += [tuner, tuner.ask()]
    assert not [o for o in reachable(root) if isinstance(o, World | SimulatedCluster)]


def test_the_walk_can_find_a_world_where_there_is_one(behind_the_wall):
    cluster, _ = behind_the_wall
    assert any(isinstance(o, World) for o in reachable(cluster))
    assert any(isinstance(o, World) for o in reachable([lambda: cluster]))


def test_a_tuner_seed_is_not_the_seed_of_its_world():
    assert len({world_seed(seed) for seed in range(1000)} | set(range(1000))) == 2000


def test_a_tuner_that_seeds_numpy_with_its_seed_learns_nothing_of_the_world():
    for seed in range(20):
        plain = np.random.default_rng(seed).normal(size=4)
        assert not np.allclose(plain, generator(seed, "physics").normal(size=4))


def test_importing_a_tuner_does_not_load_the_world():
    code = "import attune_lab.agent, baselines, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & set(FORBIDDEN)
