"""The shipped calibration is what the data give, and no figure of the accuracy report has got worse."""

from importlib.resources import files

import numpy as np
import pytest

from simulator.calibration.fit import fit
from simulator.calibration.measurements import data_hash
from simulator.calibration.observations import observe, predict_speed
from simulator.calibration.report import read_figures, worse
from simulator.calibration.validate import validate
from simulator.posterior import POSTERIOR


@pytest.fixture(scope="module")
def observations():
    return observe()


@pytest.fixture(scope="module")
def refitted(observations):
    return fit(observations, start=POSTERIOR)


def test_the_shipped_calibration_is_the_fit_to_the_shipped_data(observations, refitted):
    assert POSTERIOR.fitted["data"] == data_hash(), "the measurements changed: run attune calibrate and attune validate"
    size = len(observations.rows)
    shipped, again = (predict_speed(observations.batches, size, p.physics) for p in (POSTERIOR, refitted.posterior))
    off = np.abs(np.log(again / shipped)[observations.priced])
    assert np.median(off) < 0.003
    assert np.percentile(off, 99) < 0.03


def test_no_figure_of_the_accuracy_report_is_worse_by_more_than_its_noise(observations, refitted):
    shipped = read_figures(files("simulator").joinpath("data", "accuracy.json").read_bytes())
    assert worse(validate(observations, refitted).figures, shipped) == []
