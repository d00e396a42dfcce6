"""What is learnt of the cost model's errors: against scikit-learn, and in properties."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from agent_world import BASELINE, SPACE, FakeCostModel, finished, peak, report
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.agent.calibration import (
    FULL,
    REACH,
    TIME,
    Calibration,
    Errors,
    expected_improvement,
    is_too_full,
    normal_cdf,
)
from attune_lab.agent.coordinates import Coordinates
from attune_lab.agent.history import History, Trial
from attune_lab.agent.prices import Draft

MODEL = FakeCostModel()


def drafts(count: int, seed: int = 0) -> list[Draft]:
    rng = np.random.default_rng(seed)
    recipes = list({r.digest: r for r in (SPACE.sample(rng) for _ in range(3 * count))}.values())[:count]
    return [Draft(*pair) for pair in zip(recipes, MODEL.estimate(recipes), strict=True)]


def shared(one: Draft, other: Draft) -> float:
    """Prior covariance of two recipes' errors, written out recipe by recipe."""
    a, b = SPACE.values(one.recipe), SPACE.values(other.recipe)
    sizes = ("tp", "pp", "vpp", "ep", "mbs")
    apart = sum(abs(math.log2(a[key]) - math.log2(b[key])) for key in sizes)
    found = TIME.offset**2 + TIME.nearby**2 * math.exp(-apart / REACH)
    found += TIME.layout**2 * all(a[key] == b[key] for key in sizes)
    for key in ("recompute", "ep_overlap", "moe_permute_fusion"):
        is_lever = key in ("recompute", "ep_overlap")
        found += (a[key] == b[key]) * (TIME.setting**2 + is_lever * TIME.lever**2)
    parts = one.estimate.breakdown_s.keys()
    shares = [[d.estimate.breakdown_s[part] / d.estimate.step_time_s for part in parts] for d in (one, other)]
    return found + TIME.part**2 * float(np.dot(*shares))


@pytest.mark.parametrize("seed", range(3))
def test_errors_are_those_of_a_gaussian_process(seed: int) -> None:
    """Against eq. 2.25-2.26 of Rasmussen & Williams with the covariance written out, by another solver."""
    some = drafts(14, seed)
    known, asked = some[:8], some[8:]
    values = np.random.default_rng(seed).normal(0.1, 0.05, len(known))
    coordinates = Coordinates(SPACE)
    errors = Errors(TIME)
    errors.fit(coordinates.of(known), values, np.full(len(known), 0.005))
    mean, sd = errors.predict(coordinates.of(asked))
    own = np.array([[shared(a, b) for b in known] for a in known]) + 0.005**2 * np.eye(len(known))
    cross = np.array([[shared(a, b) for b in known] for a in asked])
    solved = np.linalg.solve(own, np.column_stack([values, cross.T]))
    assert mean == pytest.approx(cross @ solved[:, 0], abs=1e-4)
    variance = [shared(a, a) - c @ s for a, c, s in zip(asked, cross, solved[:, 1:].T, strict=True)]
    assert sd == pytest.approx(np.sqrt(variance), rel=1e-3)


def test_what_was_measured_is_known_and_its_layout_better_than_others() -> None:
    flagged = SPACE.apply(BASELINE, {"moe_permute_fusion": True})
    recipes = [BASELINE, flagged, SPACE.apply(BASELINE, {"tp": 2})]
    items = [Draft(*pair) for pair in zip(recipes, MODEL.estimate(recipes), strict=True)]
    coordinates, errors = Coordinates(SPACE), Errors(TIME)
    errors.fit(coordinates.of(items[:1]), np.array([0.2]), np.array([0.005]))
    mean, sd = errors.predict(coordinates.of(items))
    assert mean == pytest.approx([0.2] * 3, abs=0.02)
    assert sd[0] < sd[1] < sd[2]


def history_of(*trials: tuple) -> History:
    history = History()
    for number, (recipe, told) in enumerate(trials):
        history.record(recipe, MODEL.estimate([recipe])[0], told.model_copy(update={"label": str(number)}))
    return history


@settings(max_examples=25)
@given(factor=st.floats(0.9, 1.15))
def test_measured_peaks_correct_what_is_expected_to_fit(factor: float) -> None:
    """Every peak is off by the same factor: what fits is told by the corrected peak, surely where it is far off."""
    known = drafts(12, 3)
    told = [(d.recipe, finished("", (1.0,) * 8, {}, factor * peak(d.recipe))) for d in known]
    calibration = Calibration(Coordinates(SPACE))
    calibration.fit(history_of(*told), noise_sd=0.005)
    fresh = [d for d in drafts(60, 4) if all(d.recipe.digest != k.recipe.digest for k in known)]
    for draft in fresh:
        filled = factor * draft.estimate.peak_memory_bytes / draft.estimate.memory_capacity_bytes
        (chance,) = calibration.fit_chance(Coordinates(SPACE).of([draft]))
        assert filled > 0.85 * FULL or chance > 0.9
        assert filled < 1.15 * FULL or chance < 0.1


def test_a_run_out_of_memory_makes_its_like_less_likely_to_fit() -> None:
    tight = replace(MODEL.estimate([BASELINE])[0], peak_memory_bytes=130e9)
    coordinates, calibration, history = Coordinates(SPACE), Calibration(Coordinates(SPACE)), History()
    before = calibration.fit_chance(coordinates.of([Draft(BASELINE, tight)]))[0]
    history.record(BASELINE, tight, report("1", "oom"))
    calibration.fit(history, noise_sd=0.005)
    assert calibration.fit_chance(coordinates.of([Draft(BASELINE, tight)]))[0] < 0.5 * before


def test_a_run_that_fills_the_memory_says_nothing_of_the_step_time() -> None:
    estimate = MODEL.estimate([BASELINE])[0]
    slow = finished("1", (3 * estimate.step_time_s,) * 8, {}, 0.99 * estimate.memory_capacity_bytes)
    calibration, coordinates = Calibration(Coordinates(SPACE)), Coordinates(SPACE)
    calibration.fit(history_of((BASELINE, slow)), noise_sd=0.005)
    assert is_too_full(Trial(BASELINE, estimate, [slow]))
    assert calibration.error(coordinates.of([Draft(BASELINE, estimate)]))[0] == pytest.approx([0.0])


@given(mean=st.floats(-0.3, 0.3), sd=st.floats(0.001, 0.3))
def test_expected_improvement_is_the_integral_over_the_gains(mean: float, sd: float) -> None:
    gains = np.linspace(0.0, max(mean, 0.0) + 10 * sd, 20_001)
    density = np.exp(-0.5 * ((gains - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
    told = expected_improvement(np.array([mean]), np.array([sd]))[0]
    assert told == pytest.approx(np.trapezoid(gains * density, gains), rel=1e-4, abs=1e-7)


@given(st.lists(st.floats(-40, 40), max_size=5))
def test_the_normal_distribution_function_is_scipy_s(z: list[float]) -> None:
    from scipy.special import ndtr

    assert normal_cdf(np.array(z)) == pytest.approx(ndtr(np.array(z)), abs=1e-15)
