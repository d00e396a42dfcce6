"""One job of a study from beginning to end, in a child process: the campaign, the truth about it, its record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attune_lab.contracts import EnvironmentFault, Proposal, RunReport, Tuner, TuningTask, UserError
from attune_lab.foreign import told

if TYPE_CHECKING:
    from attune_lab.study.jobs import CampaignJob, OracleJob, Status
    from attune_lab.study.rows import Timing


def conduct(job: CampaignJob) -> None:
    """Run, resume or bring to its end the campaign of a job, and leave its record, whatever happens."""
    from attune_lab.campaign.store import read_campaign
    from attune_lab.study.rows import Timing, campaign_row, run_rows
    from attune_lab.study.truth import oracle_of
    from attune_lab.tuning import end_search_of, tune_recipe
    from attune_lab.workbench import tuner_factory

    request, timing = job.request(), Timing()
    begun = time.perf_counter()
    try:
        if job.ended is None:
            result = tune_recipe(request, factory=_timed(tuner_factory(request.tuner), timing))
        else:
            end_search_of(request, job.ended.reason)
            result = tune_recipe(request, factory=_Absent)
        timing.wall_s = time.perf_counter() - begun
        record = read_campaign(job.folder)
        truth = oracle_of(request) if job.spec.oracle else None
        status = _status(job, result)
        row, runs = campaign_row(result, record, timing, truth), run_rows(result)
    except UserError as error:
        job.write("refused", str(error))
    except (EnvironmentFault, OSError) as error:
        job.write("environment", str(error))
    except Exception as error:
        job.write("environment", f"internal error ({told(error)})")
    else:
        job.write(status, result["stop_reason"], row, runs)


def look_up_optimum(job: OracleJob) -> None:
    """Find the optimum of a job's world and leave its record, whatever happens."""
    from attune_lab.study.truth import optimum_row

    try:
        row = optimum_row(job)
    except (UserError, EnvironmentFault, OSError) as error:
        job.write("refused" if isinstance(error, UserError) else "environment", str(error))
    except Exception as error:
        job.write("environment", f"internal error ({told(error)})")
    else:
        job.write("finished", "", row)


def _status(job: CampaignJob, result: dict[str, Any]) -> Status:
    if job.ended is not None:
        return job.ended.status
    return "tuner_failed" if result["tuner_failed"] else "finished"


def _timed(factory: Callable[[TuningTask], Tuner], timing: Timing) -> Callable[[TuningTask], Tuner]:
    """The factory, with the seconds spent in it and its tuner added up in ``timing``."""

    def make(task: TuningTask) -> Tuner:
        with timing:
            tuner = factory(task)
        return _Timed(tuner, timing)

    return make


@dataclass(frozen=True)
class _Timed:
    """A tuner under a stopwatch; everything else about it is its own."""

    tuner: Tuner
    timing: Timing

    def ask(self) -> Proposal | None:
        with self.timing:
            return self.tuner.ask()

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        with self.timing:
            self.tuner.tell(proposal, report)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tuner, name)


class _Absent:
    """Stands for a tuner that is gone; its search has ended, so it is never asked."""

    def __init__(self, task: TuningTask) -> None:
        pass

    def ask(self) -> None:
        """Proposes nothing."""

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Learns nothing."""
