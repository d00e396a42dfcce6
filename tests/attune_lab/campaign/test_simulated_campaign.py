"""A campaign on the simulated cluster, killed for real."""

from __future__ import annotations

import multiprocessing
import random
import signal
from functools import cache
from pathlib import Path
from typing import Any

from attune_lab.campaign import CampaignSpec, parse_budget, run_campaign
from attune_lab.cluster.simulated import SimulatedCluster
from attune_lab.gate import CampaignGate
from attune_lab.space import SearchSpace
from attune_lab.testing import ScriptedTuner
from attune_lab.workbench import Workbench, open_workbench

EDITS = ({"mbs": 2}, {"mbs": 3}, {"tp": 4}, {"recompute_granularity": "full"}, {"mbs": 2}, {"mbs": 4})


@cache
def _bench() -> Workbench:
    return open_workbench("glm-4.5", "64xH200-SXM5-141GB", carry_over=True)


def _campaign(out: Path) -> Any:
    bench = _bench()
    spec = CampaignSpec("glm-4.5", bench.baseline, bench.cluster.name, parse_budget("16x"), "scripted")
    return run_campaign(
        spec,
        out,
        cluster=SimulatedCluster(bench.cluster, 0),
        tuner_factory=lambda task: ScriptedTuner(task.baseline, EDITS),
        space=SearchSpace(bench.baseline, bench.cluster),
        cost_model=bench.cost_model,
        gate=CampaignGate(bench.cluster),
    )


def test_killed_again_and_again_it_ends_like_the_undisturbed_campaign(tmp_path: Path) -> None:
    rng, fork = random.Random(0), multiprocessing.get_context("fork")
    reference = _campaign(tmp_path / "reference")
    assert {run["purpose"] for run in reference.runs} >= {"baseline", "twin", "search"}
    assert reference.gpu_hours_spent <= reference.gpu_hours_budget
    kills = campaigns = 0
    while kills < 20:
        campaigns += 1
        out = tmp_path / str(campaigns)
        while True:
            driver = fork.Process(target=_campaign, args=(out,))
            driver.start()
            driver.join(timeout=rng.uniform(0, 0.4))
            driver.kill()
            driver.join()
            assert driver.exitcode in (0, -signal.SIGKILL)
            if driver.exitcode == 0:
                break
            kills += 1
        assert _campaign(out) == reference
