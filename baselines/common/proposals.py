"""How the tuners here write a proposal."""

from __future__ import annotations

from attune_lab.contracts import Estimate, Proposal, TuningTask
from attune_lab.recipe import Recipe


def propose(task: TuningTask, recipe: Recipe, reason: str, estimate: Estimate | None = None) -> Proposal:
    """A proposal of ``recipe`` with its changes against the task's baseline and, if given, what is expected of it."""
    predicted = {}
    if estimate is not None and not estimate.problems:
        predicted = {"step_time_s": estimate.step_time_s, "peak_memory_bytes": estimate.peak_memory_bytes}
    return Proposal(recipe, task.space.changed(task.baseline, recipe), reason, predicted=predicted)
