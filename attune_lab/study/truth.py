"""What is true in the world of a study's job: found by the oracle, kept from every tuner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attune_lab.cluster.simulated import world_seed
from attune_lab.space import search_space
from attune_lab.study.oracle import Oracle
from attune_lab.workbench import open_workbench
from simulator.world import Conditions, World

if TYPE_CHECKING:
    from attune_lab.study.jobs import OracleJob
    from attune_lab.tuning import TuneRequest


def oracle_of(request: TuneRequest) -> Oracle:
    """The oracle of the world that a request's campaign runs in.

    Raises:
        UserError: the recipe cannot start there.
    """
    bench = open_workbench(request.recipe, request.cluster, carry_over=request.carry_over)
    space = search_space(bench.baseline, bench.cluster, request.approvals)
    world = World.draw(world_seed(request.seed), bench.cluster, conditions=Conditions(**dict(request.conditions)))
    return Oracle(space, world)


def optimum_row(job: OracleJob) -> dict[str, Any]:
    """What the optimum of a job's world adds to the rows of its campaigns, and for the record what it is."""
    optimum = oracle_of(job.request()).optimum()
    return {
        "oracle_gain_pct": 100 * optimum.gain,
        "proven": optimum.proven,
        "evaluated": optimum.evaluated,
        "point": {key: list(v) if isinstance(v, tuple) else v for key, v in optimum.point.items()},
    }
