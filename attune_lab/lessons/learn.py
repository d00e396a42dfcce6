"""From a finished campaign to what it says of every lever it tried."""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.agent.early import early_fault
from attune_lab.agent.history import SLOW_RUN
from attune_lab.campaign.baseline import Baseline, stored_baseline
from attune_lab.campaign.database import MISUNDERSTANDINGS
from attune_lab.campaign.finals import REFUSED, judged
from attune_lab.campaign.noise import CONFIDENCE, NoiseBand, unbiased_sd
from attune_lab.campaign.store import CampaignRecord, RunRow, read_campaign
from attune_lab.contracts import INFRASTRUCTURE_FAULTS, EnvironmentFault, Estimate, Gate, UserError
from attune_lab.foreign import one_line
from attune_lab.lessons.context import context_of
from attune_lab.lessons.notes import plain, read_notes
from attune_lab.lessons.records import (
    LearntCampaign,
    Observation,
    Outcome,
    Records,
    Traits,
    as_scalar,
    campaign_digest,
    read_records,
)
from attune_lab.recipe import Recipe

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace
    from simulator.hardware import ClusterSpec

_HALF_WIDTHS = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
"""Standard errors in the half-width of a noise band."""

Edits = dict[str, tuple[Any, Any]]


class Unfinished(UserError):
    """The campaign has no result yet."""


@dataclass(frozen=True)
class Learning:
    """What campaigns said, and which were left out, each with a sentence that says why; ``failed`` says of those whose
    tuner failed how: their runs count like any other.
    """

    records: Records
    left_out: tuple[tuple[Path, str], ...]
    failed: tuple[tuple[Path, str], ...] = ()


def learn_from(paths: Iterable[Path]) -> Learning:
    """What campaigns (folders) and files of what was learnt before say; what cannot be used is left out and named."""
    records, left_out, failed = Records(), [], []
    for path in paths:
        try:
            if path.is_file():
                records += read_records(path)[0]
                continue
            record = _finished(path)
            records += Records(campaigns=(_understood(record, path),))
            if why := _tuner_failure(record):
                failed.append((path, f"{path}: {why}"))
        except (UserError, EnvironmentFault) as error:
            left_out.append((path, str(error)))
        except OSError as error:
            left_out.append((path, f"{path} cannot be read ({error.strerror}); check its permissions"))
    return Learning(records, tuple(left_out), tuple(failed))


def learn_campaign(folder: Path) -> LearntCampaign:
    """What the finished campaign in ``folder`` says; its store is only read.

    Raises:
        Unfinished: it has no result yet: what the gate says of its levers is not known.
        UserError: no campaign, one whose baseline does not run, or of a recipe or cluster that is not known here.
        EnvironmentFault: its database fails.
    """
    return _understood(_finished(folder), folder)


def _finished(folder: Path) -> CampaignRecord:
    record = read_campaign(folder)
    if record.state != "finished" or record.result is None:
        _refuse_hopeless(record, folder)
        raise Unfinished(f"{folder} is unfinished; run its attune tune command again, then learn it")
    return record


def _tuner_failure(record: CampaignRecord) -> str:
    """Why the search of a campaign ended, where its tuner failed; else empty."""
    result = json.loads(record.result or "{}")
    return one_line(str(result.get("stop_reason"))) if result.get("tuner_failed") else ""


def _understood(record: CampaignRecord, folder: Path) -> LearntCampaign:
    try:
        return _learnt(record, folder)
    except MISUNDERSTANDINGS as error:
        cause = one_line(f"{type(error).__name__}: {error}", 200)
        raise UserError(f"{folder} does not say what a campaign says ({cause}); leave it out") from error


def campaign_digest_of(record: CampaignRecord) -> str:
    """What a campaign is known by."""
    reports = [(r.label, r.recipe.digest, r.report.model_dump_json() if r.report else "") for r in record.runs]
    return campaign_digest(record.spec, reports)


def _refuse_hopeless(record: CampaignRecord, folder: Path) -> None:
    """Raise `UserError` for a campaign that never had a baseline to beat: it cannot finish, however often it is run."""
    reports = [row.report for row in record.runs if row.report is not None]
    if not reports or any(report.status == "ok" for report in reports):
        return
    last = reports[-1]
    if last.status not in INFRASTRUCTURE_FAULTS:
        why = one_line(f"{last.status}: {last.message or 'no message'}", 300)
        raise UserError(f"{folder} has nothing to learn, as its baseline does not run ({why})")


def _learnt(record: CampaignRecord, folder: Path) -> LearntCampaign:
    from attune_lab import __version__
    from attune_lab.gate import CampaignGate
    from attune_lab.space import search_space
    from simulator.hardware import parse_cluster

    spec, cluster = record.spec, parse_cluster(record.spec["cluster"])
    baseline = Recipe.from_canonical(spec["baseline"])
    space = search_space(baseline, cluster, tuple(spec["approvals"]))
    measured = stored_baseline(record.runs)
    gate = CampaignGate(cluster, approvals=tuple(spec["approvals"]))
    rejected = _rejected(record, measured, gate)
    doubtful = _doubtful(record, measured)
    campaign = _Campaign.open(record.runs, space, cluster, measured.band)
    context = context_of(baseline, cluster)
    first, *_ = (row.report for row in record.runs if row.report)
    provenance = first.provenance
    where = f"seed {spec['seed']} {json.dumps(spec.get('world', {}))}" if provenance == "simulated" else "measured"
    return LearntCampaign(
        digest=campaign_digest_of(record),
        name=one_line(f"{spec['recipe']} {spec['cluster']} {spec['tuner']} seed {spec['seed']}", 280),
        model=context.model,
        traits=Traits(**context.traits),
        place=f"{context.traits['build']} | {spec['cluster']} | {where}",
        tuner=spec["tuner"],
        seed=spec["seed"],
        provenance=provenance,
        version=__version__,
        stack={one_line(name, 40): one_line(version, 80) for name, version in sorted(first.versions.items())},
        cost_model=_cost_model_digest(),
        observations=tuple(_observations(record.runs, rejected, doubtful, campaign)),
        notes=read_notes(folder),
    )


def _cost_model_digest() -> str:
    """Which constants the expected figures rest on."""
    posterior = files("simulator").joinpath("data", "posterior.json")
    return hashlib.sha256(posterior.read_bytes()).hexdigest()[:16]


def _rejected(record: CampaignRecord, baseline: Baseline, gate: Gate) -> dict[str, str]:
    """Digest -> why, of the recipes that the gate rejected in the finals, or rejects by any timed run of theirs.

    The finals judge only what could have been shipped; a trial that was slower than the winner may be as wrong.
    """
    lost = {loss["label"]: loss["reason"] for loss in json.loads(record.result or "{}")["lost"]}
    found: dict[str, str] = {}
    for row in record.runs:
        if lost.get(row.label, "").startswith(f"{REFUSED} reject"):
            found[row.recipe.digest] = lost[row.label]
        elif row.report and row.purpose in ("search", "finalist") and _tells(row) and _timed(row):
            verdict = judged(row.recipe, row.report, baseline, gate)
            if verdict.verdict == "reject":
                found.setdefault(row.recipe.digest, " ".join(verdict.reasons))
    return found


def _doubtful(record: CampaignRecord, baseline: Baseline) -> frozenset[str]:
    """Digests of recipes with a run whose first steps show a fault, too few for the gate to say so.

    What was shipped passed the gate with all of its steps.
    """
    shipped = Recipe.from_canonical(json.loads(record.result or "{}")["shipped_canonical"]).digest
    timed = [row for row in record.runs if row.report and _tells(row) and _timed(row)]
    found = {row.recipe.digest for row in timed if row.report and early_fault(baseline.runs, row.report)}
    return frozenset(found - {shipped, baseline.recipe.digest})


@dataclass
class _Tried:
    """One recipe with all of its runs that say something of it, in order."""

    recipe: Recipe
    values: dict[str, Any]
    rows: list[RunRow]
    estimate: Estimate

    @cached_property
    def _fair(self) -> list[tuple[float, ...]]:
        """Timed steps of its runs, those on slow nodes left out."""
        runs = [timed for row in self.rows if (timed := _timed(row))]
        fastest = min(map(statistics.median, runs), default=math.inf)
        return [timed for timed in runs if statistics.median(timed) <= SLOW_RUN * fastest]

    @property
    def step_time_s(self) -> float | None:
        """Mean over its runs of the median timed step, which a passing hiccup does not move; None without one."""
        return statistics.fmean(map(statistics.median, self._fair)) if self._fair else None

    @property
    def timed_steps(self) -> int:
        return sum(map(len, self._fair))

    @property
    def error(self) -> float:
        """Standard error of the log of its step time by how far its runs disagree; 0 where there is one."""
        times = [math.log(statistics.median(timed)) for timed in self._fair]
        return unbiased_sd(times) / math.sqrt(len(times)) if len(times) > 1 else 0.0


def _timed(row: RunRow) -> tuple[float, ...]:
    """Timed steps of a run that ended well."""
    return row.report.timed_step_times_s if row.report and row.report.status == "ok" else ()


@dataclass
class _Campaign:
    """The recipes of a campaign by digest, in the order first run; the baseline is the first."""

    tried: dict[str, _Tried]
    band: NoiseBand

    @classmethod
    def open(cls, runs: Iterable[RunRow], space: SearchSpace, cluster: ClusterSpec, band: NoiseBand) -> _Campaign:
        from attune_lab.cost_model import SimulatedCostModel

        told = [row for row in runs if _tells(row)]
        recipes = list({row.recipe.digest: row.recipe for row in told}.values())
        estimates = SimulatedCostModel(cluster).estimate(recipes)
        tried = {
            recipe.digest: _Tried(recipe, space.values(recipe), [r for r in told if r.recipe == recipe], estimate)
            for recipe, estimate in zip(recipes, estimates, strict=True)
        }
        return cls(tried, band)

    def derived_from(self, row: RunRow) -> _Tried:
        """The measured recipe that a trial was derived from.

        The latest one from which the edits that the tuner named lead to the trial; where its words fit none, the one
        that differs in the fewest parameters.
        """
        trial = self.tried[row.recipe.digest]
        earlier: list[_Tried] = []
        for tried in self.tried.values():
            if tried is trial:
                break
            if tried.step_time_s is not None:
                earlier.insert(0, tried)
        said = {key: tuple(pair) for key, pair in row.proposal["changed"].items()}
        stated = next((tried for tried in earlier if edits_between(tried.values, trial.values) == said), None)
        return stated or min(earlier, key=lambda tried: len(edits_between(tried.values, trial.values)))


def _tells(row: RunRow) -> bool:
    """Whether a run says something of its recipe: what the infrastructure broke, or could not start, does not."""
    if row.report is None or row.repeats or row.report.status in INFRASTRUCTURE_FAULTS:
        return False
    return row.report.status != "invalid" or row.report.message.startswith("the gate would reject")


def edits_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Edits:
    """Parameter -> (value before, value after), where two recipes differ."""
    return {key: (before[key], after[key]) for key in before if before[key] != after[key]}


def _observations(
    runs: Iterable[RunRow], rejected: Mapping[str, str], doubtful: Set[str], campaign: _Campaign
) -> Iterable[Observation]:
    """One observation for every recipe of the search that is not doubtful, in the order first run."""
    seen = {next(iter(campaign.tried))}
    for row in runs:
        digest = row.recipe.digest
        if row.purpose != "search" or not _tells(row) or digest in seen:
            continue
        seen.add(digest)
        base, trial = campaign.derived_from(row), campaign.tried[digest]
        edits = edits_between(base.values, trial.values)
        # Where the recipe it was derived from is faulty, neither its speed nor a rejection is this lever's doing.
        is_unfair = base.recipe.digest in {*rejected, *doubtful} and trial.step_time_s is not None
        if edits and not is_unfair and (digest in rejected or digest not in doubtful):
            yield _observation(row, edits, base, trial, campaign.band, rejected=rejected.get(digest))


def _observation(
    row: RunRow, edits: Edits, base: _Tried, trial: _Tried, band: NoiseBand, *, rejected: str | None
) -> Observation:
    assert base.step_time_s is not None
    last = trial.rows[0].report
    assert last is not None
    noise = band.of(max(min(base.timed_steps, trial.timed_steps), 1)) / _HALF_WIDTHS
    se = max(noise, math.hypot(base.error, trial.error))
    gain = None if trial.step_time_s is None else math.log(base.step_time_s / trial.step_time_s)
    outcome: Outcome
    if rejected is not None or last.status == "invalid":
        outcome, gain = "refused" if rejected is None else "rejected", None
    elif gain is None:
        outcome = last.status  # type: ignore[assignment]  # an ok run has timed steps, what is left is a failure
    else:
        outcome = "gain" if gain > se * _HALF_WIDTHS else "loss" if gain < -se * _HALF_WIDTHS else "no-gain"
    return Observation(
        label=row.label,
        lesson=row.proposal["lesson"],
        edits={key: (as_scalar(before), as_scalar(after)) for key, (before, after) in edits.items()},
        base=base.recipe.digest,
        recipe=trial.recipe.digest,
        outcome=outcome,
        expected=_expected(base.estimate, trial.estimate),
        measured=gain,
        se=None if gain is None else se,
        expected_memory=_share(trial.estimate.peak_memory_bytes, trial.estimate.memory_capacity_bytes),
        measured_memory=max((share for run in trial.rows if (share := _measured_share(run)) is not None), default=None),
        message="" if gain is not None else str(plain(rejected or last.message))[:300],
    )


def _expected(base: Estimate, trial: Estimate) -> float | None:
    if base.problems or trial.problems:
        return None
    return math.log(base.step_time_s / trial.step_time_s)


def _measured_share(row: RunRow) -> float | None:
    report = row.report
    if report is None or report.status != "ok" or not report.peak_memory_bytes or not report.memory_capacity_bytes:
        return None
    return _share(max(report.peak_memory_bytes), report.memory_capacity_bytes)


def _share(peak: float, capacity: float) -> float | None:
    return peak / capacity if math.isfinite(peak) and capacity > 0 else None


def find_campaigns(path: Path) -> list[Path]:
    """The campaign folders in a folder or anywhere below it, sorted; a file stands for itself.

    Folders that cannot be looked into are among them: `learn_from` names them.

    Raises:
        UserError: there is none.
    """
    from attune_lab.campaign.store import DATABASE

    if path.is_file():
        return [path]
    closed: list[Path] = []

    def note(error: OSError) -> None:
        if isinstance(error, PermissionError):
            closed.append(Path(error.filename))

    found = sorted([Path(folder) for folder, _, names in os.walk(path, onerror=note) if DATABASE in names] + closed)
    if not found:
        raise UserError(f"{path} holds no campaign; give the --out folder of attune tune, or a folder above it")
    return found
