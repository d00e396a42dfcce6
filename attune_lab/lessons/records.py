"""What is kept of finished campaigns: one observation for every lever tried, in a file that only grows.

A campaign is known by a digest of what it ran and saw, so it counts once however often it is learnt. Two files are
merged by taking both; the order does not matter. What turned out to be wrong is retracted, not deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from filelock import FileLock, Timeout
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.lessons.notes import Line, Note
from attune_lab.recipe.text_files import read_bytes
from attune_lab.writing import refuse_unwritable, write_file

DEFAULT_FILE = Path("campaigns") / "lessons.json"
"""Beside the campaigns that `attune tune` keeps in the current folder."""

LARGEST_FILE = 200_000_000
"""Bytes that a file is read up to."""

_PATIENCE_S = 60.0
"""How long to wait for another process that writes the same file; it needs a second or two."""

Outcome = Literal["gain", "no-gain", "loss", "oom", "crash", "hang", "timeout", "diverged", "rejected", "refused"]
"""How a try ended. ``rejected``: by the gate, after a run; ``refused``: by the gate on its settings alone, at no cost.
What the infrastructure broke, and what could not start, is no try."""

FAILED: frozenset[str] = frozenset({"crash", "hang", "timeout", "diverged", "rejected"})
"""Outcomes of runs that make a lever unsafe; running out of memory is judged apart, by memory."""

Scalar: TypeAlias = bool | int | FiniteFloat | Annotated[str, Field(max_length=200)] | None


def as_scalar(value: Any) -> Any:
    """A value of the search space as the file keeps it: lists and tuples as one text."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


LogGain: TypeAlias = Annotated[float, Field(ge=-20, le=20)]
"""Log of a ratio of throughputs; positive is faster."""

Share: TypeAlias = Annotated[float, Field(ge=0, le=1000)]
"""Peak memory as a fraction of capacity."""

Count: TypeAlias = Annotated[int, Field(ge=0, le=10**15)]
Digest: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Observation(_Part):
    """One lever tried in one campaign.

    Attributes:
        label: the first run of it in the campaign.
        lesson: the lesson that proposed it, None where the tuner named none.
        edits: parameter of the search space -> (value before, value after).
        base, recipe: digests of the recipe it was derived from and of the one that ran.
        expected, measured: log gain in tokens/s over ``base``, by the cost model and by the runs; None where there is
            none. ``measured`` is None too where the gate rejected the recipe: it may be fast because it is wrong.
        se: standard error of ``measured``, from the campaign's noise band.
        expected_memory, measured_memory: peak as a fraction of capacity.
        message: of a failure.
    """

    label: Annotated[Line, Field(max_length=64)]
    lesson: Annotated[Line, Field(max_length=80)] | None = None
    edits: dict[Annotated[Line, Field(max_length=80)], tuple[Scalar, Scalar]] = Field(min_length=1, max_length=64)
    base: Digest
    recipe: Digest
    outcome: Outcome
    expected: LogGain | None = None
    measured: LogGain | None = None
    se: Annotated[float, Field(gt=0, le=10)] | None = None
    expected_memory: Share | None = None
    measured_memory: Share | None = None
    message: Annotated[str, Field(max_length=300)] = ""

    @model_validator(mode="after")
    def _figures_go_together(self) -> Observation:
        if (self.measured is None) != (self.se is None):
            raise ValueError("measured and se go together")
        if (self.measured is None) != (self.outcome not in ("gain", "no-gain", "loss")):
            raise ValueError(f"an outcome {self.outcome} and measured = {self.measured} do not go together")
        return self

    @property
    def surprise(self) -> float | None:
        """Measured minus expected log gain; None where one is missing."""
        return None if self.measured is None or self.expected is None else self.measured - self.expected


class Traits(_Part):
    """See `attune_lab.lessons.context.Context`."""

    build: Annotated[Line, Field(max_length=120)]
    dense: bool
    experts: Count
    parameters: Count
    seq_len: Count
    accelerator: Annotated[Line, Field(max_length=80)]
    n_gpus: Count
    nodes: Count
    nvlink_domain: Count
    versions: Annotated[str, Field(max_length=300)]


class Standing(_Part):
    """Whether a campaign counts. Of two standings the one changed more often is the later one."""

    changes: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    retracted: bool = False
    why: Annotated[str, Field(max_length=500)] = ""


class LearntCampaign(_Part):
    """What is kept of one finished campaign.

    Attributes:
        digest: SHA-256 over what it was asked and what its runs reported.
        name: for print: recipe, cluster, tuner and seed.
        model: see `Context.model`.
        place: what its runs have in common (a simulated world, a cluster): tries of one place are not independent.
        provenance: where its figures come from.
        version: of attune, when it was learnt.
        stack: versions of the libraries that its runs reported.
        cost_model: digest of the data behind the expected figures.
        notes: what a language model wrote down; for people.
    """

    digest: Digest
    name: Annotated[Line, Field(max_length=300)]
    model: Annotated[Line, Field(max_length=120)]
    traits: Traits
    place: Annotated[Line, Field(max_length=300)]
    tuner: Annotated[Line, Field(max_length=120)]
    seed: Annotated[int, Field(ge=0, le=2**64)]
    provenance: Literal["simulated", "measured"]
    version: Annotated[Line, Field(max_length=40)]
    stack: dict[Annotated[Line, Field(max_length=40)], Annotated[str, Field(max_length=80)]] = {}
    cost_model: Annotated[Line, Field(max_length=80)]
    observations: tuple[Observation, ...] = Field(default=(), max_length=10_000)
    notes: tuple[Note, ...] = Field(default=(), max_length=100)
    standing: Standing = Standing()


def _by_digest(campaigns: tuple[LearntCampaign, ...]) -> tuple[LearntCampaign, ...]:
    if len({campaign.digest for campaign in campaigns}) < len(campaigns):
        raise ValueError("a campaign is there twice")
    return tuple(sorted(campaigns, key=lambda campaign: campaign.digest))


class Records(_Part):
    """All that is kept, in the order of the digests."""

    format: Literal["attune-evidence"] = "attune-evidence"
    version: Literal[1] = 1
    campaigns: Annotated[tuple[LearntCampaign, ...], AfterValidator(_by_digest)] = ()

    def __add__(self, other: Records) -> Records:
        """Both, each campaign once; the same whichever comes first."""
        merged: dict[str, LearntCampaign] = {}
        for campaign in (*self.campaigns, *other.campaigns):
            known = merged.get(campaign.digest)
            merged[campaign.digest] = campaign if known is None else _merged(known, campaign)
        return Records(campaigns=tuple(merged.values()))

    def by_model(self) -> dict[str, list[LearntCampaign]]:
        """The campaigns of each model, models sorted."""
        models = sorted({campaign.model for campaign in self.campaigns})
        return {model: [campaign for campaign in self.campaigns if campaign.model == model] for model in models}

    def find(self, name: str) -> LearntCampaign:
        """The campaign called ``name``, else the one whose digest or name begins so.

        Raises:
            UserError: none, or more than one.
        """
        found = [campaign for campaign in self.campaigns if campaign.name == name]
        if not found and len(name) >= 4:
            found = [c for c in self.campaigns if c.digest.startswith(name) or c.name.startswith(name)]
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(campaign.digest[:12] for campaign in found[:5])
            raise UserError(f"{name} is the name of {len(found)} campaigns; give the digest of one: {several}")
        raise UserError(f"no campaign is called {name} or has a digest that begins so; attune lessons show lists them")

    def retracted(self, name: str, why: str, *, undo: bool = False) -> Records:
        """The same records in which one campaign does not count (``undo``: counts again).

        Raises:
            UserError: no such campaign, or it stands so already.
        """
        campaign = self.find(name)
        if campaign.standing.retracted is not undo:
            raise UserError(f"campaign {name} {'counts already' if undo else 'is retracted already'}")
        standing = Standing(changes=campaign.standing.changes + 1, retracted=not undo, why=why)
        changed = campaign.model_copy(update={"standing": standing})
        others = [other for other in self.campaigns if other is not campaign]
        return Records(campaigns=(*others, changed))


def _merged(one: LearntCampaign, other: LearntCampaign) -> LearntCampaign:
    """One of two accounts of the same campaign under the later standing. Accounts differ where versions of the
    program read the same campaign differently; which is kept must only not depend on the order."""
    standing = max((one.standing, other.standing), key=lambda s: (s.changes, s.retracted, s.why))
    kept = max((one, other), key=lambda c: (c.version, c.model_dump_json(exclude={"standing"})))
    return kept.model_copy(update={"standing": standing})


def campaign_digest(spec: Mapping[str, Any], runs: Iterable[tuple[str, str, str]]) -> str:
    """SHA-256 over what a campaign was asked and its runs (label, recipe digest, report as JSON), 64 hex digits."""
    text = json.dumps([spec, list(runs)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_records(path: Path) -> tuple[Records, str]:
    """The records in a file, and the SHA-256 of its bytes.

    Raises:
        UserError: no such file, or not what `write_records` leaves; the message names the campaign.
    """
    data = read_bytes(path, "file of attune lessons learn", LARGEST_FILE)
    return parse_records(data, str(path)), hashlib.sha256(data).hexdigest()


def parse_records(data: bytes, path: str) -> Records:
    """The records in what `write_records` left in ``path``.

    Raises:
        UserError: see `read_records`.
    """
    try:
        return Records.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["loc"] == ("version",):
            raise UserError(f"{path} was written by another version of attune; use that one, or learn anew") from error
        where = ".".join(str(step)[:40] for step in first["loc"]) or "top level"
        raise UserError(
            f"{path}: {where}: {first['msg']}; give a file that attune lessons learn wrote, or write it anew"
        ) from error


def update_records(path: Path, change: Callable[[Records], Records]) -> Records:
    """The records in ``path`` after ``change``; a missing file holds none.

    One process at a time, and the file is replaced whole: a kill leaves the old file or the new one, and two processes
    that learn at once lose nothing.

    Raises:
        UserError: see `read_records`; or it would grow beyond `LARGEST_FILE`.
        EnvironmentFault: it cannot be written, or another process holds it.
    """
    path = Path(os.path.realpath(path))  # a link to a shared file stays one, and all who share it share the lock
    refuse_unwritable(path)
    try:
        with FileLock(path.with_name(f"{path.name}.lock"), timeout=_PATIENCE_S):
            before = read_records(path)[0] if path.exists() else Records()
            after = change(before)
            if after != before or not path.exists():
                data = after.model_dump_json(indent=1).encode()
                if len(data) > LARGEST_FILE:
                    raise UserError(f"{path} would be larger than is ever read again; learn into another file")
                write_file(path, data)
    except Timeout as error:
        raise EnvironmentFault(f"another process has been writing {path} for a minute; end it, or wait") from error
    return after
