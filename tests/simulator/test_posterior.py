import json

import numpy as np
import pytest

from simulator.physics import PRIORS, Physics
from simulator.posterior import DEFAULT_PHYSICS, POSTERIOR, Posterior


def small(**changes):
    held = {
        "fitted": {}, "constants": ["launch_s", "nic_eff"], "shifts": [1.0, -1.0],
        "covariance": [[0.04, 0.0], [0.0, 0.09]], "stacks": {"nanotron": {"launch_s": 1.0}}, "versions": {"x 1": 0.9},
    }  # fmt: skip
    return held | changes


def written(tmp_path, content):
    path = tmp_path / "posterior.json"
    path.write_text(content)
    return path


def test_a_stack_adds_its_shifts_and_a_version_its_pace(tmp_path):
    posterior = Posterior.load(written(tmp_path, json.dumps(small())))
    general, own = posterior.physics(), posterior.physics("nanotron", "x 1")
    assert general.launch_s == pytest.approx(PRIORS["launch_s"].moved(1.0))
    assert own.launch_s == pytest.approx(PRIORS["launch_s"].moved(2.0))
    assert (general.pace, own.pace) == (1.0, 0.9)
    assert own.nic_eff == general.nic_eff
    assert general.sync_s == Physics().sync_s


def test_what_is_written_is_read_back(tmp_path):
    posterior = Posterior.load(written(tmp_path, json.dumps(small())))
    again = Posterior.load(written(tmp_path, posterior.to_json()))
    assert again.physics("nanotron", "x 1") == posterior.physics("nanotron", "x 1")
    assert np.array_equal(again.covariance, posterior.covariance)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "\0", json.dumps(small(constants=["no_such", "nic_eff"])), json.dumps(small(shifts=[1.0])),
     json.dumps(small(covariance=[[1]])), json.dumps(small(shifts=["a", "b"]))],
)  # fmt: skip
def test_a_file_that_is_no_posterior_is_refused_in_one_sentence(tmp_path, content):
    with pytest.raises(ValueError, match="calibration") as error:
        Posterior.load(written(tmp_path, content))
    assert "\n" not in str(error.value)


def test_draws_have_the_covariance_and_the_differences_between_stacks(tmp_path):
    posterior = Posterior.load(written(tmp_path, json.dumps(small())))
    random = np.random.default_rng(0)
    draws = [posterior.draw(random, 1.0) for _ in range(2000)]
    for name, mean, own in (("launch_s", 1.0, 0.2), ("nic_eff", -1.0, 0.3)):
        values = np.log([getattr(draw, name) / PRIORS[name].value for draw in draws]) / PRIORS[name].sd
        assert values.mean() == pytest.approx(mean, abs=0.1)
        assert values.std() == pytest.approx(np.hypot(own, 1.0), rel=0.1)
    assert posterior.draw(random, 0.0) == posterior.physics()


def test_the_shipped_calibration_is_of_the_constants_there_are():
    assert set(POSTERIOR.constants) <= {name for name, prior in PRIORS.items() if prior.sd > 0}
    assert np.linalg.eigvalsh(POSTERIOR.covariance).min() > -1e-4
    assert POSTERIOR.physics() == DEFAULT_PHYSICS
