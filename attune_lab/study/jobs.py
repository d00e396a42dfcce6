"""What a study is made of: one job a campaign and one an optimum, each with a record it leaves in the study's folder.

A job is done when its record says so; what a study has done is therefore read from its folder alone, by any process,
at any time, whichever machine did it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args
from urllib.parse import quote

from attune_lab.contracts import EnvironmentFault
from attune_lab.foreign import one_line
from attune_lab.study.spec import RecipeOfStudy, StudySpec, TunerOfStudy
from attune_lab.tuning import TuneRequest
from attune_lab.writing import write_file

Status: TypeAlias = Literal["finished", "tuner_failed", "hung", "died", "refused", "environment"]
"""How a campaign ended; those of a failed, hung or dead tuner went on with their finals."""

TRIED_AGAIN: frozenset[str] = frozenset({"refused", "environment"})
"""Nothing was decided: the next start of the study tries these again."""

_FINALS_S = 600
"""A campaign may take so long to end once its tuner is gone."""

CAMPAIGNS, ORACLES = "campaigns", "oracles"


@dataclass(frozen=True)
class Death:
    """How the process of a job ended before the job did: ``hung`` (and was ended) or ``died``, with a sentence."""

    status: Literal["hung", "died"]
    reason: str


class Job(Protocol):
    """Work for one child process."""

    @property
    def folder(self) -> Path:
        """Where it leaves its record, and what it printed."""
        ...

    @property
    def spec(self) -> StudySpec:
        """The study it belongs to."""
        ...

    @property
    def world(self) -> int:
        """The simulated world it is about."""
        ...

    @property
    def time_limit_s(self) -> float:
        """Wall seconds after which its process counts as hung."""
        ...

    def run(self) -> None:
        """Do the work and leave the record; runs in a child process."""
        ...

    def after(self, death: Death) -> Job | None:
        """The job that is left once its process has died; None when the record says so already."""
        ...


@dataclass(frozen=True)
class _InWorld(ABC):
    """What both kinds of jobs share.

    Attributes:
        spec: the study.
        out: its folder.
        recipe, cluster, world: where in the study.
    """

    spec: StudySpec
    out: Path
    recipe: RecipeOfStudy
    cluster: str
    world: int

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where it is kept."""

    @property
    def time_limit_s(self) -> float:
        """See `Job.time_limit_s`."""
        return self.spec.time_limit_s

    @property
    def record(self) -> Path:
        """The file that says how it ended."""
        return self.folder / "record.json"

    @property
    def identity(self) -> dict[str, Any]:
        """What fixes it, JSON-ready; a record with another identity belongs to another study."""
        spec = self.spec
        return {
            "recipe": self.recipe.digest,
            "conditions": spec.conditions.model_dump(),
            "approvals": sorted(spec.approvals),
            "carry_over": spec.carry_over,
        }

    def request(self) -> TuneRequest:
        """The recipe in its world as `attune tune` would be asked for it."""
        spec = self.spec
        return TuneRequest(
            recipe=self.recipe.source,
            cluster=self.cluster,
            budget=spec.budget,
            seed=self.world,
            out=self.folder,
            carry_over=spec.carry_over,
            approvals=spec.approvals,
            conditions=tuple((name, factor) for name, factor in spec.conditions if factor != 1),
        )

    def write(
        self,
        status: Status,
        message: str,
        row: Mapping[str, Any] | None = None,
        runs: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Leave the record."""
        said = one_line(message)
        content = {"identity": self.identity, "status": status, "message": said, "row": row or {}, "runs": runs}
        write_file(self.record, json.dumps(content).encode())


@dataclass(frozen=True)
class CampaignJob(_InWorld):
    """One tuner in one world.

    Attributes:
        tuner: which of the study's.
        ended: how the process of its tuner died; the campaign is brought to its end without it.
    """

    tuner: TunerOfStudy
    ended: Death | None = None

    @property
    def scenario(self) -> str:
        """What its tuners are compared on: ``recipe|cluster|budget``."""
        return f"{self.recipe.name}|{self.cluster}|{self.spec.budget}"

    @property
    def folder(self) -> Path:
        """Where the campaign is kept."""
        scenario = f"{self.recipe.name}-{self.cluster}-{self.spec.budget}"
        return self.out / CAMPAIGNS / scenario / quote(self.tuner.label, safe=" +=@,()") / f"world-{self.world}"

    @property
    def time_limit_s(self) -> float:
        """See `Job.time_limit_s`; a limit meant for tuners does not cut the finals short."""
        return self.spec.time_limit_s if self.ended is None else max(self.spec.time_limit_s, _FINALS_S)

    @property
    def identity(self) -> dict[str, Any]:
        """See `_InWorld.identity`."""
        tuner, spec = self.tuner, self.spec
        how = {"rules": spec.rules.model_dump(), "gate": spec.gate}
        return {**super().identity, "tuner": tuner.name, "options": tuner.options, **how}

    def request(self) -> TuneRequest:
        """The campaign as `attune tune` would be asked for it."""
        from attune_lab.campaign.rules import AnswerRules

        return replace(
            super().request(),
            tuner=self.tuner.name,
            options=tuple(self.tuner.options.items()),
            rules=AnswerRules(**self.spec.rules.model_dump()),
            gate=self.spec.gate,
            logs=self.spec.logs,
        )

    def run(self) -> None:
        """See `Job.run`."""
        from attune_lab.study.conduct import conduct

        conduct(self)

    def after(self, death: Death) -> CampaignJob | None:
        """The same campaign without its tuner; a second death leaves it without figures."""
        if self.record.exists():  # the process died once all was done
            return None
        if self.ended is None:
            return replace(self, ended=death)
        self.write(death.status, f"{self.ended.reason}; then, without it: {death.reason}")
        return None


@dataclass(frozen=True)
class OracleJob(_InWorld):
    """The optimum of one recipe on one cluster in one world; every tuner shares it."""

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return self.out / ORACLES / f"{self.recipe.name}-{self.cluster}" / f"world-{self.world}"

    def run(self) -> None:
        """See `Job.run`."""
        from attune_lab.study.conduct import look_up_optimum

        look_up_optimum(self)

    def after(self, death: Death) -> None:
        """The optimum stays unknown, and the record says why."""
        if not self.record.exists():
            self.write("environment", death.reason)


def campaign_jobs(spec: StudySpec, out: Path) -> Iterator[CampaignJob]:
    """Every campaign of a study, world by world, so that tuners can be compared long before the last world."""
    for world in spec.worlds.seeds:
        for recipe in spec.recipes:
            for cluster in spec.clusters:
                for tuner in spec.tuners:
                    yield CampaignJob(spec, out, recipe, cluster, world, tuner)


def oracle_jobs(spec: StudySpec, out: Path) -> Iterator[OracleJob]:
    """Every optimum of a study; none when it does without."""
    if not spec.oracle:
        return
    for world in spec.worlds.seeds:
        for recipe in spec.recipes:
            for cluster in spec.clusters:
                yield OracleJob(spec, out, recipe, cluster, world)


def read_record(job: CampaignJob | OracleJob) -> dict[str, Any] | None:
    """What a job left, None when it is not done.

    Raises:
        EnvironmentFault: the file cannot be read, or is none of ours.
    """
    try:
        record = json.loads(job.record.read_bytes())
        if not _is_record(record):
            raise ValueError("it is not as it was written")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise EnvironmentFault(
            f"{job.record} cannot be read ({error}); remove it, and its campaign is read again"
        ) from error
    return dict(record)


def _is_record(record: object) -> bool:
    """Whether this is what `_InWorld.write` leaves; figures are judged where they become a table."""
    return (
        isinstance(record, dict)
        and record.keys() == {"identity", "status", "message", "row", "runs"}
        and isinstance(record["identity"], dict)
        and record["status"] in get_args(Status)
        and isinstance(record["message"], str)
        and isinstance(record["row"], dict)
        and isinstance(record["runs"], list)
        and all(isinstance(run, dict) for run in record["runs"])
    )
