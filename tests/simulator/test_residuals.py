"""Residuals: as wide as declared, one part by layout and one by lever, the same wherever a job is priced."""

from dataclasses import fields

import numpy as np
import pytest

from simulator.draws import LIMIT
from simulator.hardware import parse_cluster
from simulator.job import DEFAULTS, Dispatcher, Recompute, make_jobs
from simulator.models import models
from simulator.residuals import LAYOUT, LAYOUT_SD, LEVERS, LEVERS_SD, residuals

MODEL, CLUSTER = models()["mixtral-8x7b"], parse_cluster("64xH200-SXM5-141GB")


def jobs(**columns):
    return make_jobs(MODEL, CLUSTER, **{"gbs": 256, "seq_len": 4096, "pp": 4, "ep": 8, **columns})


def drawn(count=4000, **columns):
    """Residuals of one job in many worlds, shape (2, count)."""
    job = jobs(**columns)
    return np.concatenate([residuals(seed, job) for seed in range(count)], axis=1)


def test_residuals_have_the_declared_spread():
    found = drawn()
    expected = np.hypot(LAYOUT_SD, LEVERS_SD)
    assert found.std(axis=1) == pytest.approx(expected, rel=0.05)
    assert np.abs(found.mean(axis=1) / expected).max() < 4 / np.sqrt(found.shape[1])
    assert abs(np.corrcoef(found)[0, 1]) < 4 / np.sqrt(found.shape[1])


def test_recipes_of_a_layout_share_its_part():
    """The difference of two recipes that differ in three levers has six of the levers' parts."""
    shared = drawn() - drawn(recompute=Recompute.FULL, nvls=False, dispatcher=Dispatcher.DEEPEP)
    assert shared.std(axis=1) == pytest.approx(LEVERS_SD * np.sqrt(6 / len(LEVERS)), rel=0.05)


@pytest.mark.parametrize("layout", [{"mbs": 2}, {"vpp": 2}, {"stage_layers": [9, 8, 8, 7]}])
def test_another_layout_has_another_part(layout):
    assert (drawn() - drawn(**layout)).std(axis=1) == pytest.approx(LAYOUT_SD * np.sqrt(2), rel=0.05)


def test_a_lever_is_worth_the_same_on_every_layout():
    change = {"recompute": Recompute.MOE_ACT, "host_tuned": 1}
    here, there = (residuals(3, jobs(**at, **change)) - residuals(3, jobs(**at)) for at in ({}, {"pp": 2, "mbs": 4}))
    assert here == pytest.approx(there, abs=1e-12)
    assert np.abs(here).max() <= 4 * LIMIT * LEVERS_SD.max() / np.sqrt(len(LEVERS))


def test_padding_of_stages_changes_nothing():
    together = residuals(5, jobs(pp=[1, 4, 32]))
    alone = [residuals(5, jobs(pp=pp))[:, 0] for pp in (1, 4, 32)]
    assert np.allclose(together.T, alone, rtol=0, atol=1e-14)


def test_layouts_and_levers_are_columns_that_do_not_overlap():
    assert set(LEVERS) <= set(DEFAULTS)
    assert not set(LEVERS) & set(LAYOUT)
    assert {f.name for f in fields(jobs())} >= {*LAYOUT, *LEVERS}
