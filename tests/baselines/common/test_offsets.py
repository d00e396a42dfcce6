"""Errors shared by level: against the textbook formula, and against what must hold of it."""

from __future__ import annotations

import numpy as np
import pytest

from attune_lab.contracts import Estimate
from attune_lab.recipe import Recipe
from baselines.common.offsets import Offsets
from baselines.common.pricelist import Priced

LEVELS = (((), 0.3), (("tp",), 0.05), (("tp", "mbs"), 0.03))
OWN = 0.02


def at(tp, mbs, name=0):
    values = {"tp": tp, "mbs": mbs, "name": name}
    return Priced(Recipe("megatron-lm", values), values, Estimate(1.0, 1.0, 1.0, 2.0, {}, {}))


def covariance(a, b):
    same = 0.3**2 + (a.values["tp"] == b.values["tp"]) * 0.05**2
    return same + (a.values["tp"] == b.values["tp"] and a.values["mbs"] == b.values["mbs"]) * 0.03**2


def test_agrees_with_the_gaussian_conditional() -> None:
    seen = [at(1, 1), at(2, 1), at(2, 2), at(4, 2)]
    errors = np.array([0.05, 0.12, 0.10, 0.02])
    new = at(2, 2, name=1)
    offsets = Offsets(LEVELS, OWN)
    offsets.fit(seen, errors)
    mean, sd = offsets.predict([new])
    k = np.array([[covariance(a, b) for b in seen] for a in seen]) + OWN**2 * np.eye(4)
    cross = np.array([covariance(new, b) for b in seen])
    assert mean[0] == pytest.approx(cross @ np.linalg.solve(k, errors))
    variance = covariance(new, new) + OWN**2 - cross @ np.linalg.solve(k, cross)
    assert sd[0] == pytest.approx(np.sqrt(variance))


def test_before_anything_is_measured_it_expects_no_error() -> None:
    offsets = Offsets(LEVELS, OWN)
    offsets.fit([], [])
    mean, sd = offsets.predict([at(1, 1)])
    assert mean[0] == 0.0
    assert sd[0] == pytest.approx(np.sqrt(0.3**2 + 0.05**2 + 0.03**2 + OWN**2))


def test_what_is_alike_is_believed_to_err_alike() -> None:
    offsets = Offsets(LEVELS, OWN)
    offsets.fit([at(1, 1), at(2, 1)], [0.0, 0.1])
    (same, other), (sd_same, sd_other) = offsets.predict([at(2, 1, name=1), at(8, 8)])
    assert same > other
    assert sd_same < sd_other


def test_one_run_on_a_slow_node_is_set_aside() -> None:
    seen = [at(2, 1, name) for name in range(6)]
    offsets = Offsets(LEVELS, OWN)
    offsets.fit(seen, [0.03, 0.03, 0.03, 0.03, 0.03, 0.25])
    mean, _ = offsets.predict([at(2, 1, name=9)])
    assert mean[0] == pytest.approx(0.03, abs=0.01)
