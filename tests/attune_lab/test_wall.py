"""The wall: nothing a tuner is given leads to the world that answers its runs."""

import ast
import gc
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import attune_lab
import baselines
from attune_lab.cluster import SimulatedCluster
from attune_lab.contracts import TuningTask
from simulator.draws import generator
from simulator.hardware import parse_cluster
from simulator.world import World

FORBIDDEN = ("simulator.world", "simulator.curves", "simulator.draws", "attune_lab.cluster")
ROOMS = [Path(attune_lab.__file__).parent / "agent", Path(baselines.__file__).parent]
SOURCES = sorted(file for room in ROOMS for file in room.rglob("*.py"))


def reachable(root, limit=2_000_000):
    """Every object reachable from ``root``, not walking through modules, classes' globals or interpreter state."""
    seen, stack = {id(root): root}, [root]
    while stack and len(seen) < limit:
        for item in gc.get_referents(stack.pop()):
            if id(item) not in seen and not isinstance(item, ModuleType | type | FunctionType):
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


def test_a_task_leads_to_no_world_or_cluster():
    spec = parse_cluster("64xH200-SXM5-141GB")
    world_cluster = SimulatedCluster(spec, 1)
    world = world_cluster._world
    task = TuningTask(baseline=None, cluster=spec, space=None, cost_model=None, budget=None, seed=1)
    found = [o for o in reachable(task) if isinstance(o, World | SimulatedCluster)]
    assert found == []
    assert world in list(reachable(world_cluster)), "the walk must be able to find a world where there is one"


def test_a_tuner_that_seeds_numpy_with_its_seed_learns_nothing_of_the_world():
    import numpy as np

    for seed in range(20):
        plain = np.random.default_rng(seed).normal(size=4)
        assert not np.allclose(plain, generator(seed, "physics").normal(size=4))


def test_importing_a_tuner_does_not_load_the_world():
    import subprocess

    code = "import attune_lab.agent, baselines, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & set(FORBIDDEN)
