"""The noise band: how far apart two measurements of one recipe may lie. Fractions of a throughput."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from attune_lab.contracts import RunReport

FLOOR = 0.01
"""No gain below 1 % is believed: two baseline runs can agree by luck. Published repeats of one configuration differ by
0.4 % (NVIDIA-NeMo/Megatron-Bridge performance summary), and 1.96 x 0.4 % x sqrt(1 + 1/2) is 1 %."""

CONFIDENCE = 0.95


@dataclass(frozen=True)
class NoiseBand:
    """The spread of repeated runs of the baseline, as fractions of its mean step time.

    Attributes:
        step_sd: standard deviation of one step inside a run, pooled over the runs.
        run_sd: standard deviation of a run's mean from run to run; 0 with a single run.
        steps: timed steps of the baseline, all runs together.
        runs: baseline runs.
    """

    step_sd: float
    run_sd: float
    steps: int
    runs: int

    def of(self, steps: int) -> float:
        """Half-width of the band around "no gain" for a run of ``steps`` timed steps.

        The largest of the floor, the within-run part ``t * step_sd * sqrt(1/steps + 1/baseline steps)`` (the
        interval of a difference of two means, t of Student with the pooled degrees of freedom) and the
        between-run part ``z * run_sd * sqrt(1 + 1/runs)`` (a new run against the mean of the old ones).
        """
        from scipy.special import ndtri, stdtrit

        tail = (1 + CONFIDENCE) / 2
        freedom = max(self.steps - self.runs, 1)
        within = float(stdtrit(freedom, tail)) * self.step_sd * math.sqrt(1 / max(steps, 1) + 1 / self.steps)
        between = float(ndtri(tail)) * self.run_sd * math.sqrt(1 + 1 / self.runs)
        return max(FLOOR, within, between)


def noise_band(baselines: Sequence[RunReport]) -> NoiseBand:
    """The noise band of one or more ``ok`` runs of the baseline.

    Within-run variance is pooled over the runs; the between-run standard deviation is that of the run means,
    divided by c4(n) because with two or three runs the sample value is too small on average.

    **Source:** c4(n) = sqrt(2 / (n - 1)) Gamma(n / 2) / Gamma((n - 1) / 2); Montgomery, Introduction to
    Statistical Quality Control, section 4.

    Raises:
        ValueError: no run, or a run without timed steps.
    """
    timed = [run.timed_step_times_s for run in baselines]
    if not timed or not all(timed):
        raise ValueError("the noise band needs baseline runs with timed steps")
    means = [sum(times) / len(times) for times in timed]
    mean = sum(means) / len(means)
    squares = sum((t - m) ** 2 for times, m in zip(timed, means, strict=True) for t in times)
    steps = sum(len(times) for times in timed)
    step_sd = math.sqrt(squares / max(steps - len(timed), 1)) / mean
    run_sd = unbiased_sd(means) / mean if len(means) > 1 else 0.0
    return NoiseBand(step_sd, run_sd, steps, len(timed))


def unbiased_sd(values: Sequence[float]) -> float:
    """Standard deviation of two or more normal samples, without the bias of small numbers."""
    n = len(values)
    c4 = math.sqrt(2 / (n - 1)) * math.exp(math.lgamma(n / 2) - math.lgamma((n - 1) / 2))
    return statistics.stdev(values) / c4


def gain_interval(gain: float, band: float) -> tuple[float, float]:
    """Lowest and highest true gain that a measured ``gain`` is compatible with, given the band's half-width."""
    return (1 + gain) * (1 - band) - 1, (1 + gain) * (1 + band) - 1


def payback_hours(spent_gpu_hours: float, n_gpus: int, gain: float) -> float | None:
    """Hours of training with the shipped recipe after which the tuning has paid for itself; None without a gain.

    In H hours the shipped recipe does what the baseline needs ``H * (1 + gain)`` hours for, so it saves
    ``n_gpus * H * gain`` GPU-hours; equal to what tuning cost at ``H = spent / (n_gpus * gain)``.
    """
    return spent_gpu_hours / (n_gpus * gain) if gain > 0 else None
