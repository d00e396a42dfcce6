"""Why a predicted number is what it is: its parts with formulas, constants and sources, and how far it may be off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.explain.accuracy import TypicalError, typical_errors
from simulator.explain.influence import deviations, step_time_sd, with_influences
from simulator.explain.peak_memory import memory_term
from simulator.explain.step_time import step_term
from simulator.explain.terms import Influence, Term, as_data, constants_data
from simulator.job import Jobs
from simulator.memory import peak_memory
from simulator.memory_physics import MEMORY_PRIORS, MemoryPhysics
from simulator.physics import PRIORS, Physics
from simulator.posterior import DEFAULT_PHYSICS, POSTERIOR, Posterior
from simulator.recording import recording
from simulator.step import simulate_step

__all__ = [
    "Explanation",
    "Influence",
    "Term",
    "TypicalError",
    "explain",
    "step_time_sd",
    "typical_errors",
]


@dataclass(frozen=True)
class Explanation:
    """A prediction taken apart.

    Attributes:
        step_time: seconds of one step.  peak_memory: bytes that the fullest stage reserves.
        calibration: data, rows and date that the constants of time were fitted to; empty where they were not.
    """

    step_time: Term
    peak_memory: Term
    calibration: Mapping[str, Any]

    def as_data(self) -> dict[str, Any]:
        """Both trees as plain data, for JSON, and the constants that move anything in them."""
        terms = [term for root in (self.step_time, self.peak_memory) for _, term in root.walk()]
        return {
            "step_time": as_data(self.step_time),
            "peak_memory": as_data(self.peak_memory),
            "constants": constants_data(terms),
            "calibration": dict(self.calibration),
        }


def explain(jobs: Jobs, physics: Physics = DEFAULT_PHYSICS, posterior: Posterior = POSTERIOR) -> Explanation:
    """The step time and the peak memory of one job as trees of terms that add up.

    The job is priced once more for every constant, moved up and down: which constants a term rests on is measured,
    not listed.

    Args:
        jobs: a batch of one.
        physics: the constants used.
        posterior: how well they are known.

    Raises:
        ValueError: more jobs than one, or one that `simulate_step` refuses.
    """
    if jobs.size != 1:
        raise ValueError(f"explain takes one job, not {jobs.size}: pick one with jobs.take([index])")

    def step_time(constants: Physics) -> Term:
        with recording() as calls:
            simulate_step(jobs, constants)
        return step_term(jobs, calls[0])

    def memory(constants: MemoryPhysics) -> Term:
        with recording() as calls:
            peak_memory(jobs, constants)
        return memory_term(jobs, calls[0])

    return Explanation(
        step_time=with_influences(step_time, physics, PRIORS, deviations(posterior)),
        peak_memory=with_influences(memory, physics.memory, MEMORY_PRIORS, {}),
        calibration=posterior.fitted,
    )
