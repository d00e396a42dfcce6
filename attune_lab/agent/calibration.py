"""What this campaign teaches about the cost model: by how much it is off, in step time and in memory, and where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attune_lab.agent.coordinates import Coordinates, Points, Priced
from attune_lab.agent.history import History, Trial

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spreads:
    """Prior standard deviations of the parts that a log error (measured / predicted) is the sum of.

    Attributes:
        offset: shared by all recipes: the model is off as a whole.
        layout: of each layout by itself, whatever its settings.
        nearby: shared by layouts that are alike, less with every doubling of a size (`REACH`).
        setting: of each value of each setting, on every layout the same.
        lever: the same of those settings that move much of the step (`attune_lab.enumeration.LEVERS`), in addition.
        part: of each kind of work (computation, exposed communication, bubble ...), in proportion to its predicted
            share of the step: what one layout shows of a network speaks for all that wait for it.
    """

    offset: float
    layout: float
    nearby: float
    setting: float
    lever: float
    part: float


REACH = 4.0
"""Doublings of parallel sizes over which the error that like layouts share falls to 1/e of its variance."""

TIME = Spreads(offset=0.3, layout=0.025, nearby=0.01, setting=0.003, lever=0.008, part=0.2)
MEMORY = Spreads(offset=0.05, layout=0.025, nearby=0.0, setting=0.004, lever=0.006, part=0.0)
"""Chosen by the likelihood of held-out runs on simulated clusters, in worlds that no table uses (seeds from 100 on):
Qwen3-235B and Mixtral-8x22B on 64 H200, gpt-oss-120b on 64 H100, DeepSeek-V3 on 256 H100. Of these models Mixtral is
tuned in the main table too. What remains after a calibration of the model is mostly an error of each layout by itself,
so that one run of a layout says much of it and little of others."""

MEMORY_NOISE = 0.004
"""Spread of a measured peak from run to run: routing and the allocator's rounding."""

FULL = 0.97
"""Share of the memory beyond which a run counts as too full: close to the limit the allocator flushes its cache and
retries, which costs step time, and routing can still end the run."""

LIKELY = 0.2
"""What fits with a smaller probability is not run: a run that is out of memory ends early and costs little."""


class Errors:
    """Gaussian process over the log errors of some recipes.

    **Source:** Rasmussen & Williams, Gaussian Processes for Machine Learning, eq. 2.25-2.26.
    """

    def __init__(self, spreads: Spreads) -> None:
        self._spreads = spreads
        self._known: Points | None = None
        self._inverse: Floats = np.empty((0, 0))
        self._weights: Floats = np.empty(0)

    def fit(self, points: Points, errors: Floats, noise_sd: Floats) -> None:
        """Replace what is known by these measurements; ``errors`` and the noise of each have shape (n,)."""
        self._known = points
        covariance = self._covariance(points, points) + np.diag(noise_sd**2 + 1e-10)
        self._inverse = np.asarray(np.linalg.inv(covariance))
        self._weights = self._inverse @ errors

    def predict(self, points: Points) -> tuple[Floats, Floats]:
        """Expected error and its standard deviation at each point, shapes (n,)."""
        variance = self._variance(points)
        if self._known is None:
            return np.zeros(variance.size), np.sqrt(variance)
        cross = self._covariance(points, self._known)
        explained = np.einsum("ij,ij->i", cross @ self._inverse, cross)
        return cross @ self._weights, np.sqrt(np.maximum(variance - explained, 0.0))

    def _variance(self, points: Points) -> Floats:
        s = self._spreads
        shared = s.offset**2 + s.layout**2 + s.nearby**2 + self._of_settings(points).sum()
        return np.asarray(shared + s.part**2 * (points.shares**2).sum(axis=1))

    def _of_settings(self, points: Points) -> Floats:
        """Prior variance that each setting adds, shape (settings,)."""
        return np.asarray(self._spreads.setting**2 + self._spreads.lever**2 * points.is_lever)

    def _covariance(self, a: Points, b: Points) -> Floats:
        s = self._spreads
        apart = np.abs(a.sizes[:, None, :] - b.sizes[None, :, :]).sum(axis=2)
        alike = (a.settings[:, None, :] == b.settings[None, :, :]) @ self._of_settings(a)
        same = a.layouts[:, None] == b.layouts[None, :]
        covariance: Floats = s.offset**2 + s.layout**2 * same + s.nearby**2 * np.exp(-apart / REACH)
        covariance += alike + s.part**2 * (a.shares @ b.shares.T)
        return covariance


class Calibration:
    """The cost model corrected by the runs of this campaign."""

    def __init__(self, coordinates: Coordinates) -> None:
        self._coordinates = coordinates
        self._time, self._memory = Errors(TIME), Errors(MEMORY)

    def fit(self, history: History, *, noise_sd: float) -> None:
        """Take in everything measured so far. ``noise_sd``: spread of one run's log step time."""
        ran = [trial for trial in history if trial.step_time_s and trial.estimate.step_time_s > 0]
        if steady := [trial for trial in ran if not is_too_full(trial)]:
            points = self._coordinates.of(steady)
            log_s = np.log([trial.step_time_s or math.nan for trial in steady])
            noise = noise_sd / np.sqrt([len(trial.ok) for trial in steady])
            self._time.fit(points, log_s - points.log_times, noise)
        self._fit_memory([trial for trial in ran if trial.peak_memory_bytes], history)

    def _fit_memory(self, ran: Sequence[Trial], history: History) -> None:
        """Measured peaks first; then what ran out of memory, as far over the limit as the peaks let expect."""
        filled = np.array([(t.peak_memory_bytes or 0.0) / t.estimate.memory_capacity_bytes for t in ran])
        larger, noise = np.zeros(0), np.full(len(ran), MEMORY_NOISE)
        if ran:
            points = self._coordinates.of(ran)
            larger = np.log(filled / points.fills)
            self._memory.fit(points, larger, noise)
        if full := [t for t in history if not t.ok and t.ran_out_of_memory and not t.estimate.problems]:
            points = self._coordinates.of(full)
            expected, sd = self._memory.predict(points)
            beyond = np.maximum(-np.log(points.fills), expected) + 0.5 * sd
            errors, spread = np.concatenate([larger, beyond]), np.concatenate([noise, 0.5 * sd])
            self._memory.fit(self._coordinates.of([*ran, *full]), errors, spread)

    def error(self, points: Points) -> tuple[Floats, Floats]:
        """Expected log(measured / predicted) step time and its standard deviation, shapes (n,)."""
        return self._time.predict(points)

    def fit_chance(self, points: Points) -> Floats:
        """Probability of each recipe to run without filling the memory beyond `FULL`, shape (n,)."""
        error, sd = self._memory.predict(points)
        return normal_cdf((math.log(FULL) - np.log(points.fills) - error) / np.hypot(sd, MEMORY_NOISE))

    def fits(self, item: Priced) -> bool:
        """Whether a recipe is likely enough to fit to be run (`LIKELY`)."""
        return not item.estimate.problems and bool(self.fit_chance(self._coordinates.of([item]))[0] >= LIKELY)


def is_too_full(trial: Trial) -> bool:
    """Whether a run was measured to fill the memory beyond `FULL`, which slows it down."""
    return (trial.peak_memory_bytes or 0.0) > FULL * trial.estimate.memory_capacity_bytes


def normal_cdf(z: Floats) -> Floats:
    """Standard normal distribution function, element by element."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z.tolist()])


def expected_improvement(mean: Floats, sd: Floats) -> Floats:
    """E[max(0, G)] of gains G ~ N(mean, sd), element by element.

    **Source:** Jones, Schonlau & Welch 1998, Efficient Global Optimization of Expensive Black-Box Functions, eq. 15.
    """
    wide = np.maximum(sd, 1e-12)
    z = mean / wide
    return np.asarray(mean * normal_cdf(z) + wide * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))
