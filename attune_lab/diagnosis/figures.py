"""From one report to figures: shares of the step, of memory and of what they lose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from attune_lab.contracts import Estimate, RunReport
from attune_lab.diagnosis.work import expert_share, expert_skew, product_share, replayed, replayed_experts

SOUND_GEMM = {8: 0.77, 9: 0.69, 10: 0.60}
"""Share of the peak that large products reach in a long run, by major compute capability; Hopper's where unknown.
**Source:** kernel tables of ai-dynamo/aiconfigurator@095f58a (0.85, 0.82, 0.71), less what the clocks of a training run
take from those of a benchmark (0.84; 0.91 on Ampere): the fit of this project's calibration."""

CLOCKS = 0.9
"""Below this share of a sound rate it is the products that are slow: the clocks of two clusters of one accelerator
differ by some 8 % (spread of the calibration), so that what is nearer to 1 says nothing of their shapes."""

FULL = 0.95
"""From this share of the memory on the allocator starts to return and ask again for its segments."""

RETRIES = 0.25
"""What that can take of a step where memory is full: a prior, growing with the square of how near it is."""

LOSSES = (
    "exposed_tp_frac", "exposed_ep_frac", "exposed_dp_frac", "exposed_cp_frac", "exposed_pp_frac", "bubble_frac",
    "host_gap_frac", "imbalance_frac", "gemm_loss_frac", "replay_frac", "skew_frac", "retry_frac",
)  # fmt: skip
"""Metrics that are fractions of the step which somebody could save."""

_PIPELINED = ("compute", "exposed_tp", "exposed_ep", "exposed_cp", "host")
"""Parts of a breakdown that the slowest stage repeats for every micro-batch."""


_MEASURED = frozenset({"mem_peak_frac", "frag_frac", "model_state_frac"})
"""Ratios of memory: of a run that did fit, an expectation says less than nothing."""


def metrics(report: RunReport, settings: Mapping[str, Any], estimate: Estimate | None = None) -> dict[str, Any]:
    """Metric variables of ``report``; a metric that nothing tells is absent.

    Args:
        report: one run.
        settings: the effective settings of the recipe that ran.
        estimate: what the cost model expects of it; stands in for a breakdown and for diagnostics that a finished run
            does not have, and ``by_estimate`` says so.
    """
    found: dict[str, Any] = {
        "oom": report.status == "oom",
        "trial_failed": report.status not in ("ok", "oom"),
        "full_recompute": float(settings.get("recompute_level") == 3),
        "timed_iterations": len(report.timed_step_times_s),
        "startup_s": report.startup_s,
    }
    parts, ratios = _finite(report.breakdown_s), _finite(report.diagnostics)
    found["by_estimate"] = estimate is not None and not parts and report.status == "ok" and not estimate.problems
    if estimate is not None and found["by_estimate"]:
        expected = {name: x for name, x in _finite(estimate.diagnostics).items() if name not in _MEASURED}
        parts, ratios = _finite(estimate.breakdown_s), {**expected, **ratios}
    found |= ratios
    found |= _fractions(parts)
    if not parts and report.status == "ok" and report.timed_step_times_s:
        found |= bounds(settings)
    found |= _memory(report)
    found |= _losses(found, settings, report.mfu)
    found |= _spread(report.timed_step_times_s)
    if _serial(settings) and "exposed_dp_frac" in found:
        found["serial_dp_frac"] = found["exposed_dp_frac"]
    return found


def _serial(settings: Mapping[str, Any]) -> bool:
    """Whether data-parallel overlap is on where one hardware queue puts its kernels behind all others.

    With tensor or context parallelism a single queue is what orders communication before computation; without, it
    only serialises. Blackwell's queues do not.  **Source:** NVIDIA/Megatron-LM#1468.
    """
    alone = all((settings.get(axis) or 1) == 1 for axis in ("tp", "cp", "pp"))
    asked = settings.get("overlap_grad_reduce") or settings.get("overlap_param_gather")
    return bool(asked and alone and settings.get("cdmc") == "1" and (settings.get("gpu_arch_major") or 0) < 10)


def _finite(figures: Mapping[str, float]) -> dict[str, float]:
    """Those that are numbers and not negative, as no share of anything is."""
    return {name: float(value) for name, value in figures.items() if math.isfinite(value) and value >= 0}


def _fractions(breakdown_s: Mapping[str, float]) -> dict[str, float]:
    """Shares of the step by part of the breakdown."""
    whole = sum(breakdown_s.values())
    if not (math.isfinite(whole) and whole > 0):
        return {}
    names = {"bubble": "bubble_frac", "host": "host_gap_frac"}
    found = {names.get(part, f"{part}_frac"): seconds / whole for part, seconds in breakdown_s.items()}
    return {**found, "pipelined_frac": sum(breakdown_s.get(part, 0.0) for part in _PIPELINED) / whole}


def bounds(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings alone say of a step that nobody took apart: the most that each of these can be of it.

    Bubble of even stages, recomputation and uneven experts, if nothing else took time; ``by_settings`` says so.

    **Source:** arXiv 2104.04473 section 2.2, (p - 1) / (v m + p - 1).
    """
    found: dict[str, Any] = {"by_settings": True, "replay_frac": replay_bound(settings)}
    found["expert_skew"] = skew = expert_skew(settings)
    found["skew_frac"] = expert_share(settings) * (1 - 1 / skew)
    stages, batches = settings.get("pp") or 1, settings.get("num_microbatches") or 0
    if batches > 0:
        found["bubble_frac"] = (stages - 1) / ((settings.get("vpp") or 1) * batches + stages - 1)
    return found


def replay_bound(settings: Mapping[str, Any]) -> float:
    """Share of the computation that is recomputation, 0 to 1/4: of a forward, a backward of two, and the replay."""
    again = replayed(settings)
    return again / (3 + again)


def _memory(report: RunReport) -> dict[str, float]:
    """The fullest stage over the accelerator's memory."""
    peaks = [peak for peak in report.peak_memory_bytes if math.isfinite(peak) and peak > 0]
    capacity = report.memory_capacity_bytes or 0.0
    return {"mem_peak_frac": max(peaks) / capacity} if peaks and capacity > 0 else {}


def _losses(found: Mapping[str, Any], settings: Mapping[str, Any], mfu: float | None) -> dict[str, float]:
    """Fractions of the step lost in what a breakdown does not name, and the largest of all `LOSSES`."""
    lost: dict[str, float] = {}
    full = found.get("mem_peak_frac", 0.0)
    if full > FULL:
        lost["retry_frac"] = RETRIES * min((full - FULL) / (1 - FULL), 1.0) ** 2
    if "compute_frac" in found:
        lost["replay_frac"] = _replay_loss(found, settings)
        lost["expert_skew"] = skew = expert_skew(settings)
        # An all-gather sends every token everywhere: nobody waits for a rank that gets more.
        sent = 0.0 if settings.get("dispatcher") == "allgather" else found.get("exposed_ep_frac", 0.0)
        lost["skew_frac"] = (found["compute_frac"] * expert_share(settings) + sent) * (1 - 1 / skew)
        uneven = found.get("stage_imbalance", 1.0)
        lost["imbalance_frac"] = found["pipelined_frac"] * max(1 - 1 / uneven, 0.0) if uneven > 0 else 0.0
        lost |= _product_loss(found, settings, mfu)
    known = {**found, **lost}
    if "compute_frac" in found:
        lost["largest_loss_frac"] = max(known.get(name, 0.0) for name in LOSSES)
    room = 1 - found.get("mem_peak_frac", 1.0)
    lost["room_frac"] = max(room, 0.0) * max(known.get("replay_frac", 0.0), known.get("gemm_loss_frac", 0.0))
    return lost


def _replay_loss(found: Mapping[str, Any], settings: Mapping[str, Any]) -> float:
    """What recomputation takes: computation, the communication that it repeats, and its part of the bubble.

    Of three passes' worth of work a replay is a fourth; of two passes' communication it is a third.
    """
    again, experts = replayed(settings), replayed_experts(settings)  # forward passes, of all layers and of experts
    layers = again if settings.get("recompute_level") == 3 else 0.0
    waits = {axis: float(found.get(f"exposed_{axis}_frac", 0.0)) for axis in ("tp", "cp", "ep")}
    repeated = (waits["tp"] + waits["cp"]) * layers / (2 + layers) + waits["ep"] * experts / (2 + experts)
    busy, bubble = float(found["pipelined_frac"]), float(found.get("bubble_frac", 0.0))
    computed = float(found["compute_frac"]) * replay_bound(settings)
    return (computed + repeated) * (1 + bubble / busy if busy else 1.0)


def _product_loss(found: Mapping[str, Any], settings: Mapping[str, Any], mfu: float | None) -> dict[str, float]:
    """What matrix products lose against `SOUND_GEMM` beyond `CLOCKS`: their time follows from MFU and their rate."""
    rate = found.get("gemm_eff")
    if not rate:
        return {}
    of_sound = rate / SOUND_GEMM.get(settings.get("gpu_arch_major", 9), SOUND_GEMM[9])
    products = product_share(settings)
    time = found["compute_frac"] * products
    if mfu is not None and math.isfinite(mfu) and mfu > 0:
        narrow = 0.5 if settings.get("fp8") else 0.25 if settings.get("fp4") else 1.0  # MFU is of BF16's peak
        time = min(mfu * narrow * products * (1 + replayed(settings) / 3) / rate, time)
    return {"gemm_of_sound": of_sound, "gemm_loss_frac": time * max(1 - of_sound / CLOCKS, 0.0)}


def _spread(timed: tuple[float, ...]) -> dict[str, float]:
    """Relative standard deviation of the timed steps."""
    times = [seconds for seconds in timed if math.isfinite(seconds) and seconds > 0]
    return {"step_cv": statistics.stdev(times) / statistics.fmean(times)} if len(times) > 1 else {}
