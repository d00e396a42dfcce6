"""Expected improvement against drawing."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.common.improvement import expected_improvement


def test_expected_improvement_agrees_with_drawing() -> None:
    rng = np.random.default_rng(0)
    gain, spread = np.array([0.1, -0.1, 0.0]), np.array([0.05, 0.1, 0.2])
    drawn = np.maximum(rng.normal(gain, spread, size=(200_000, 3)), 0.0).mean(axis=0)
    assert expected_improvement(gain, spread) == pytest.approx(drawn, abs=1e-3)
