"""What a campaign hands over: the JSON object of ``attune tune``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from attune_lab.campaign.budget import to_gpu_hours
from attune_lab.campaign.finals import BEHIND, DECLINED
from attune_lab.campaign.noise import gain_interval, payback_hours
from attune_lab.campaign.runner import Runner, finite, overrun_gpu_hours
from attune_lab.recipe import Recipe

if TYPE_CHECKING:
    from attune_lab.campaign.baseline import Baseline
    from attune_lab.campaign.finals import Loss, Winner
    from attune_lab.campaign.search import Search
    from attune_lab.campaign.spec import CampaignSpec
    from attune_lab.campaign.store import RunRow


class CampaignResult(BaseModel):
    """The outcome of one campaign. Throughputs in tokens/s/GPU, shares in percent.

    ``shipped`` holds registry settings and, as ``env.NAME``, environment variables; `shipped_recipe` is the whole
    recipe, that of the search run ``shipped_from`` (empty for the baseline); ``shipped_label`` is the run it is judged
    by. A tuner is credited with the re-measured throughput of its finalist. ``lost`` says of every trial that was not
    shipped what it was lost to. ``llm`` is what language models used: tokens and dollars, beside GPU-hours.
    ``decisions``: what the tuner kept, reverted or left out and why, one line each, where it says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str
    cluster: str
    tuner: str
    seed: int
    options: dict[str, Any]
    approvals: tuple[str, ...]
    provenance: str
    carried_over: tuple[dict[str, Any], ...]
    shipped: dict[str, Any]
    shipped_canonical: dict[str, Any]
    shipped_path: str | None
    shipped_label: str
    shipped_from: str = ""
    kept_baseline: bool
    baseline_tokens_per_s_per_gpu: float
    shipped_tokens_per_s_per_gpu: float
    baseline_step_time_s: float
    gain_pct: float
    gain_interval_pct: tuple[float, float]
    noise_band_pct: float
    budget: str
    run_cost_gpu_hours: float
    gpu_hours_budget: float
    gpu_hours_spent: float
    usd_spent: float | None
    payback_hours: float | None
    stop_reason: str
    tuner_failed: bool = False
    llm: dict[str, float] = {}
    decisions: tuple[str, ...] = ()
    gate: dict[str, Any]
    lost: tuple[dict[str, Any], ...]
    runs: tuple[dict[str, Any], ...]

    @property
    def shipped_recipe(self) -> Recipe:
        """The recipe that is shipped: the winner's, or the baseline."""
        return Recipe.from_canonical(self.shipped_canonical)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        plain: dict[str, Any] = self.model_dump(mode="json")
        return plain


def build_result(
    spec: CampaignSpec,
    runner: Runner,
    *,
    baseline: Baseline,
    winner: Winner | None,
    losses: Sequence[Loss],
    search: Search,
    shipped_path: str | None,
) -> CampaignResult:
    """The result of a campaign from its parts; the bill and the list of runs are the runner's."""
    cluster, budget = runner.cluster.spec, runner.budget
    shipped = winner.trial.proposal.recipe if winner else baseline.recipe
    gain = winner.gain if winner else 0.0
    timed = len((winner.report if winner else baseline.runs[0]).timed_step_times_s)
    band = baseline.band.of(timed)
    rate = winner.report.tokens_per_s_per_gpu if winner else baseline.tokens_per_s_per_gpu
    assert rate is not None
    spent = to_gpu_hours(budget.spent_us)
    price = cluster.accelerator.usd_per_gpu_hour
    low, high = gain_interval(gain, band) if winner else (0.0, 0.0)
    return CampaignResult(
        recipe=spec.recipe,
        cluster=spec.cluster,
        tuner=spec.tuner,
        seed=spec.seed,
        options=dict(spec.options),
        approvals=tuple(sorted(spec.approvals)),
        provenance=baseline.runs[0].provenance,
        carried_over=tuple(dict(change) for change in spec.carried_over),
        shipped={key: list(v) if isinstance(v, tuple) else v for key, v in shipped.flat().items()},
        shipped_canonical=shipped.canonical(),
        shipped_path=shipped_path,
        shipped_label=winner.report.label if winner else baseline.runs[0].label,
        shipped_from=winner.trial.label if winner else "",
        kept_baseline=winner is None,
        baseline_tokens_per_s_per_gpu=baseline.tokens_per_s_per_gpu,
        shipped_tokens_per_s_per_gpu=rate,
        baseline_step_time_s=baseline.step_time_s,
        gain_pct=100 * gain,
        gain_interval_pct=(100 * low, 100 * high),
        noise_band_pct=100 * band,
        budget=spec.budget.text,
        run_cost_gpu_hours=to_gpu_hours(baseline.run_cost_us),
        gpu_hours_budget=to_gpu_hours(budget.total_us),
        gpu_hours_spent=spent,
        usd_spent=spent * price if math.isfinite(price) else None,
        payback_hours=payback_hours(spent, cluster.n_gpus, gain),
        stop_reason=search.stop_reason,
        tuner_failed=search.failed,
        llm=dict(search.usage),
        decisions=search.decisions,
        gate=_gate(winner),
        lost=tuple(_lost(loss) for loss in losses),
        runs=tuple(run_json(row) for row in runner.store.runs()),
    )


def in_the_finals(result: CampaignResult) -> list[str]:
    """What the finals made of what the tuner decided, one line each; what is shipped comes last."""
    judged = (loss for loss in result.lost if loss["gain_pct"] is not None and loss["gain_pct"] > result.noise_band_pct)
    lines = [
        f"{loss['label']} is not shipped: {loss['reason']}"
        for loss in judged
        if not loss["reason"].startswith((BEHIND, DECLINED))
    ]
    if result.kept_baseline:
        return [*lines, "the recipe is kept as it was"]
    low, high = result.gain_interval_pct
    return [
        *lines,
        f"shipped {result.shipped_from or result.shipped_label}: measured again {result.gain_pct:+.1f}% "
        f"({low:+.1f} to {high:+.1f}%) over baseline, gate: {result.gate['verdict']}",
    ]


def run_json(row: RunRow) -> dict[str, Any]:
    """One run as a row of the result; of an unfinished run the figures are None."""
    report, proposal = row.report, row.proposal
    charged = row.charged_us or 0
    return {
        "label": row.label,
        "purpose": row.purpose,
        "status": report.status if report else "started",
        "changed": dict(proposal["changed"]),
        "reason": proposal["reason"],
        "lesson": proposal["lesson"],
        "predicted": dict(proposal["predicted"]),
        "tokens_per_s_per_gpu": finite(report.tokens_per_s_per_gpu) if report else None,
        "step_time_s": finite(report.mean_step_time_s) if report else None,
        "peak_memory_bytes": finite(max(report.peak_memory_bytes, default=None)) if report else None,
        "gpu_hours": to_gpu_hours(charged),
        "charged": charged > 0,
        "repeated": row.repeats is not None,
        "repeats": row.repeats,
        "overrun_gpu_hours": 0.0 if row.repeats else overrun_gpu_hours(row),
        "message": report.message if report else "",
        "log_path": report.log_path if report else None,
    }


def _gate(winner: Winner | None) -> dict[str, Any]:
    if winner is None:
        return {"verdict": "pass", "reasons": ["The baseline is kept: nothing was changed."]}
    return {"verdict": winner.verdict.verdict, "reasons": list(winner.verdict.reasons)}


def _lost(loss: Loss) -> dict[str, Any]:
    return {
        "label": loss.label,
        "reason": loss.reason,
        "gain_pct": None if loss.gain is None else 100 * loss.gain,
    }
