"""What goes wrong between agents, read off the trace of a campaign without a judge.

**Source:** the modes are those of MAST (arXiv 2503.13657) that a log alone can show; MAST itself labels by a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 10
"""Runs in a row without a gain after which an arrangement should know that it has converged."""

GAIN = 0.01
"""A gain below this is none: published repeats of one configuration leave so much open."""


@dataclass
class Step:
    """A draft that was put forward.

    Attributes:
        changes: what the space took of it.
        lever: the parameter the reasoning was about.
        dropped: changes that were no parameter of the space, or no choice of it.
        repeats: how the same recipe had ended before, empty if it was new.
        illegal: it could not start, or changed nothing.
        vetoed: the arrangement's own checker had been against it.
        stray: no agent's draft: a random legal recipe.
        ran, status, gain: whether it ran, how it ended, and the gain on the best before it.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    lever: str = ""
    dropped: int = 0
    repeats: str = ""
    illegal: bool = False
    vetoed: bool = False
    stray: bool = False
    ran: bool = False
    status: str = ""
    gain: float = 0.0


def labels(trace: Sequence[Step]) -> dict[str, int]:
    """How often each mode occurred in a campaign.

    ``step_repetition``: a recipe put forward again. ``loss_of_history``: one known to run out of memory.
    ``reasoning_action_mismatch``: the lever named is not among the changes. ``ignored_input``: run against
    the checker's veto. ``unaware_of_termination``: runs after `PATIENCE` runs without a gain.
    ``fields_outside_space`` and ``illegal`` count the agents' errors, ``strays`` what was run in their place.
    """
    agents = [step for step in trace if not step.stray]
    return {
        "step_repetition": sum(bool(step.repeats) for step in agents),
        "loss_of_history": sum(step.repeats == "oom" for step in agents),
        "reasoning_action_mismatch": sum(bool(step.changes) and step.lever not in step.changes for step in agents),
        "ignored_input": sum(step.vetoed and step.ran for step in agents),
        "unaware_of_termination": _after_convergence(trace),
        "fields_outside_space": sum(step.dropped for step in agents),
        "illegal": sum(step.illegal for step in agents),
        "strays": sum(step.stray for step in trace),
    }


def _after_convergence(trace: Sequence[Step]) -> int:
    """Runs made after `PATIENCE` in a row had gained nothing."""
    idle = late = 0
    for step in trace:
        if not step.ran:
            continue
        late += idle >= PATIENCE
        idle = 0 if step.gain > GAIN else idle + 1
    return late
