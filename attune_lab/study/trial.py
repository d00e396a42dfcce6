"""Every tuner of a study is set up once before anything runs, so that all mistakes of its file are named at once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.study.jobs import CampaignJob, Death
from attune_lab.study.spec import StudySpec
from attune_lab.study.worker import run_job
from attune_lab.writing import write_file

TRIAL_S = 60.0
"""Seconds after which setting up a tuner is given up; what hangs there hangs in its campaigns too, which say so."""


@dataclass(frozen=True)
class TrialJob:
    """The tuner of a campaign, set up for nothing in a child process; see `attune_lab.study.jobs.Job`.

    Attributes:
        campaign: of whose tuner.
        folder: where a refusal is left.
    """

    campaign: CampaignJob
    folder: Path

    @property
    def spec(self) -> StudySpec:
        """See `Job.spec`."""
        return self.campaign.spec

    @property
    def world(self) -> int:
        """See `Job.world`."""
        return self.campaign.world

    @property
    def time_limit_s(self) -> float:
        """See `Job.time_limit_s`."""
        return min(self.campaign.time_limit_s, TRIAL_S)

    @property
    def refusal(self) -> Path:
        """The file that says why the tuner cannot be used; missing where it can."""
        return self.folder / "refusal.txt"

    def run(self) -> None:
        """See `Job.run`."""
        from attune_lab.tuning import refuse_unusable_tuner

        try:
            with suppress(EnvironmentFault):  # may have passed when the campaigns run; they say so if not
                refuse_unusable_tuner(self.campaign.request())
        except UserError as error:
            write_file(self.refusal, str(error).encode(errors="backslashreplace"))

    def after(self, death: Death) -> None:
        """Nothing is left: a tuner that dies or hangs is a row of the study."""


def refuse_unusable_tuners(campaigns: Sequence[CampaignJob]) -> None:
    """Return if every tuner of these campaigns can be set up; nothing is run for it, and no service is asked.

    Raises:
        UserError: some cannot, all named.
    """
    refusals = []
    with tempfile.TemporaryDirectory(prefix="attune-trial-") as folder:
        tuners = {job.tuner.label: job for job in reversed(campaigns)}
        for number, (label, campaign) in enumerate(sorted(tuners.items())):
            trial = TrialJob(campaign, Path(folder) / str(number))
            run_job(trial)
            if trial.refusal.exists():
                refusals.append(f"{label}: {trial.refusal.read_text()}")
    if refusals:
        raise UserError(f"of the study's tuners, {'; '.join(refusals)}")
