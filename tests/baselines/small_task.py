"""A small task on a real space, and campaigns on truths that tests make up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from attune_lab.contracts import Proposal, RunReport, TuningTask
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.space import SearchSpace
from tests.attune_lab.recipe.recipes_for_tests import cluster, moe

CLUSTER = cluster()


@dataclass
class SmallBudget:
    total: float = 40.0
    left_for_search: float = 32.0
    run_cost: float = 1.0


@cache
def _space():
    return SearchSpace(moe(), CLUSTER)


@cache
def _cost_model():
    return SimulatedCostModel(CLUSTER)


def small_task(options=None, seed=0, **edits):
    """A task around the small mixture-of-experts recipe with edits."""
    baseline = moe(**edits)
    space = SearchSpace(baseline, CLUSTER) if edits else _space()
    return TuningTask(baseline, CLUSTER, space, _cost_model(), SmallBudget(), seed, options or {})


def ended(label, status, seconds=1.0, peak=40e9):
    """The report of a run that ended so."""
    done = status == "ok"
    return RunReport(
        label=label, status=status, provenance="simulated", steps=8, step_times_s=(seconds,) * 8 if done else (),
        peak_memory_bytes=(peak,) if done else (), memory_capacity_bytes=80e9,
    )  # fmt: skip


def as_predicted(task):
    """A truth that agrees with the cost model: recipe -> (status, seconds, peak bytes)."""

    def answer(recipe):
        estimate = task.cost_model.estimate([recipe])[0]
        return "ok" if estimate.fits else "oom", estimate.step_time_s, estimate.peak_memory_bytes

    return answer


def hungrier(task, factor=1.3):
    """A truth that needs so many times the memory that the cost model expects, and else agrees with it."""
    right = as_predicted(task)

    def answer(recipe):
        _, seconds, peak = right(recipe)
        needed = factor * peak
        return ("oom" if needed > task.cluster.accelerator.memory_bytes else "ok"), seconds, needed

    return answer


def campaign(tuner, task, answer=None, runs=20):
    """Tell the baseline, then ask and tell; returns [(proposal, report)]."""
    answer = answer or as_predicted(task)
    tuner.tell(Proposal(task.baseline), ended("000", *answer(task.baseline)))
    log = []
    while len(log) < runs and (proposal := tuner.ask()) is not None:
        report = ended(f"{len(log) + 1:03d}", *answer(proposal.recipe))
        log.append((proposal, report))
        tuner.tell(proposal, report)
    return log
