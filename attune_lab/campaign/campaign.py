"""One campaign: from the baseline runs to the shipped recipe.

The protocol, the same for every tuner::

    budget |----------------------------------------------------------------------------------|
           | baseline | baseline | twin     | search ...                  | final 1 | final 2 |
           | 20 steps | 20 steps | 20 steps | 8 steps a run               |  20 steps each    |
           '------------- noise band, A/A pair ----'                      '- reserved early --'

1. **Baseline.** Two runs of the recipe as it came in and one of a legitimate variant (a *twin*). They give the
   throughput to beat, the noise band, and what the gate compares with. The first run prices a budget of ``40x``:
   one ``x`` is its start-up, its warm-up and 5 of its steps. Two final runs are reserved at once.
2. **Search.** ``ask``, check, run, ``tell``. A proposal that cannot start, one whose settings the gate would reject,
   and a repeat that is not asked to be measured again are answered for free. A run is
   reserved at its upper bound before it starts and settled at what it cost, so the budget cannot be exceeded. What
   the infrastructure broke is charged and retried.
3. **Finals.** Trials that gained more than the noise are run again, fastest first, and judged by the gate. The first
   that still gains and passes is shipped at its re-measured throughput; if none does, the baseline is kept, and
   the result says what every trial was lost to.

A campaign keeps no state but its stored runs. To resume, the same program runs again from the start and is
answered from the store (see `attune_lab.campaign.runner`); tuners are deterministic, so they ask the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.campaign.baseline import Baseline, measure_baseline, opening_budget
from attune_lab.campaign.budget import Budget, Reservation, TunerBudget, to_gpu_hours
from attune_lab.campaign.finals import finals
from attune_lab.campaign.result import CampaignResult, build_result
from attune_lab.campaign.runner import BoundsKept, Observer, Runner
from attune_lab.campaign.seals import ORIGIN
from attune_lab.campaign.search import Search, search
from attune_lab.campaign.spec import CampaignSpec
from attune_lab.contracts import Cluster, CostModel, Desk, Gate, Tuner, TuningTask

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from attune_lab.space import SearchSpace


def run_campaign(  # noqa: PLR0913 - the parts are injected by name
    spec: CampaignSpec,
    out: Path,
    *,
    cluster: Cluster,
    tuner_factory: Callable[[TuningTask], Tuner],
    space: SearchSpace,
    cost_model: CostModel,
    gate: Gate,
    observer: Observer | None = None,
    ship: Callable[[Recipe], Path] | None = None,
    render: Callable[[Recipe], object] | None = None,
    desk: Desk | None = None,
    origin: Mapping[str, Any] | None = None,
    url: str | None = None,
) -> CampaignResult:
    """The result of the campaign in folder ``out``: begun, resumed, or (when it is finished) read back.

    Args:
        spec: what fixes the campaign.
        out: its folder; created when missing.
        cluster, tuner_factory, space, cost_model, gate: the parts it is made of.
        observer: told what happens, for display.
        ship: writes the shipped recipe and returns where; called again when a kill left that open.
        render: raises UserError for a recipe that the user's file cannot say; that one is not run, as it cannot ship.
        desk: for tuners that work on the user's own file.
        origin: what else the campaign comes from, JSON-ready; stored before its first run (`attune_lab.origin`).
        url: database to use instead of a file in ``out``.

    Raises:
        UserError: budget too small, the baseline does not run, or ``out`` is not this campaign's.
        EnvironmentFault: another process drives it, the database fails, or the cluster breaks its contract.
    """
    from attune_lab.campaign.database import understood
    from attune_lab.campaign.store import open_store

    observer = observer or Observer()
    with open_store(out, spec, url=url) as store:
        text = store.read().result
        if origin is not None and not store.runs():
            store.add_event(ORIGIN, dict(origin))
        if text is None:
            runner = Runner(BoundsKept(cluster, store), store, Budget(0), observer, spec.rules.retries)
            text = (
                _Campaign(spec, runner, space, cost_model, gate, render, desk).go(tuner_factory, ship).model_dump_json()
            )
            store.finish_campaign(text)
    with understood(f"the result stored in {out}"):
        result = CampaignResult.model_validate_json(text)
    observer.finished(result)
    return result


class _Campaign:
    def __init__(
        self,
        spec: CampaignSpec,
        runner: Runner,
        space: SearchSpace,
        cost_model: CostModel,
        gate: Gate,
        render: Callable[[Recipe], object] | None,
        desk: Desk | None,
    ) -> None:
        self.spec, self.runner, self.space, self.cost_model = spec, runner, space, cost_model
        self.gate, self.render, self.desk = gate, render, desk

    def go(self, factory: Callable[[TuningTask], Tuner], ship: Callable[[Recipe], Path] | None) -> CampaignResult:
        """Walk through the phases; what is stored already costs nothing."""
        runner, spec = self.runner, self.spec
        runner.observer.phase("baseline")
        baseline, held = self._baseline()
        if held is None:
            ended = Search([], "not enough budget was left after the first baseline run for a final run", {})
        else:
            runner.observer.phase("search")
            ended = search(
                self._task(baseline),
                factory,
                baseline=baseline,
                space=self.space,
                gate=self.gate,
                runner=runner,
                rules=spec.rules,
                render=self.render,
            )
            runner.budget.release(held)
        runner.observer.phase("finalists")
        winner, losses = finals(ended.trials, baseline=baseline, gate=self.gate, runner=runner, choice=ended.choice)
        shipped = winner.trial.proposal.recipe if winner else baseline.recipe
        return build_result(
            spec,
            runner,
            baseline=baseline,
            winner=winner,
            losses=losses,
            search=ended,
            shipped_path=str(ship(shipped)) if ship else None,
        )

    def _baseline(self) -> tuple[Baseline, Reservation | None]:
        spec, runner = self.spec, self.runner
        total, step_s = opening_budget(spec.budget, spec.baseline, self.cost_model, runner.cluster)
        runner.budget.set_total(total)
        return measure_baseline(
            spec.budget, spec.baseline, step_s=step_s, space=self.space, cost_model=self.cost_model, runner=runner
        )

    def _task(self, baseline: Baseline) -> TuningTask:
        return TuningTask(
            baseline=baseline.recipe,
            cluster=self.runner.cluster.spec,
            space=self.space,
            cost_model=self.cost_model,
            budget=TunerBudget(self.runner.budget, to_gpu_hours(baseline.run_cost_us)),
            seed=self.spec.seed,
            options=self.spec.options,
            desk=self.desk,
        )
