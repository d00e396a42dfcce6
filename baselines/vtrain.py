"""vTrain: price every layout, run the best ones in order.

The published system sweeps all combinations of tensor, data and pipeline parallelism with a profiling-driven simulator
and recommends the fastest plan that fits. **Source:** vTrain, arXiv 2312.12391; VIA-Research/vTrain@f8dda84.

Faithful: the exhaustive sweep, a ranking by predicted time alone, no learning from how fast anything ran.
Reconstructed: the simulator is this project's cost model, which also ranks recomputation, token dispatcher and the
two overlaps; the paper stops at a recommendation, here the ranking is run from the top until the budget ends. A
margin of memory is left free because a predicted peak is uncertain, and what looks like recipes refused before their
run comes last.
"""

from __future__ import annotations

from attune_lab.contracts import TuningTask
from baselines.common.options import Option, read_options
from baselines.common.planned import Plan, PlannedTuner
from baselines.common.proposals import propose
from baselines.common.ranking import ranked_recipes
from baselines.common.refusals import Refusals

OPTIONS = {"k": Option(80, least=1, most=1000), "margin": Option(0.03, least=0.0, most=0.9)}


class VTrain(PlannedTuner):
    """Runs the cost model's ranking from the top.

    Options of the task: ``k`` (recipes ranked), ``margin`` (share of memory that must be left free).

    Raises:
        UserError: an unknown option or value.
    """

    name = "vtrain"

    def __init__(self, task: TuningTask) -> None:
        self._options = read_options(self.name, task.options, OPTIONS)
        super().__init__(task)

    def plan(self) -> Plan:
        """The ranking, from the fastest on; what looks like recipes that were refused comes last."""
        limit = 1.0 - self._options["margin"]
        ranking = ranked_recipes(self.task.baseline, self.task.cluster, self._options["k"], memory_limit=limit)
        refusals, left_out = Refusals(self.task, self.history), []
        for rank, found in enumerate(ranking, start=1):
            proposal = propose(self.task, found.recipe, f"rank {rank} by the cost model", found.estimate)
            if refusals.expects(found.recipe):
                left_out.append(proposal)
            else:
                yield proposal
        for proposal in left_out:  # a list cannot be sent what came of it
            yield proposal
        return f"the {len(ranking)} recipes ranked highest have been run"
