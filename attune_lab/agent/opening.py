"""From the options of a task to the agent: the catalog policy, offline, or Claude with tools."""

from __future__ import annotations

from attune_lab.contracts import Tuner, TuningTask, UserError

POLICIES = ("catalog", "claude")
"""What decides which lever is next: rules over the catalog of lessons, or a language model by tools."""


def attune_tuner(task: TuningTask) -> Tuner:
    """Tunes a recipe by diagnosis, lessons and the cost model, one lever at a time.

    Options of the task: ``policy`` (``catalog`` or ``claude``) and those of the policy's tuner.

    Raises:
        UserError: an unknown option or policy.
    """
    policy = task.options.get("policy", "catalog")
    if policy not in POLICIES:
        raise UserError(f"policy {policy!r} is not in this version; available: {', '.join(POLICIES)}")
    if policy == "claude":
        from attune_lab.agent.claude import ClaudeTuner

        return ClaudeTuner(task)
    from attune_lab.agent.tuner import AttuneTuner

    return AttuneTuner(task)
