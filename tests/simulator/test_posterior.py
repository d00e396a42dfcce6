import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware import parse_cluster
from simulator.job import make_jobs
from simulator.models import models
from simulator.physics import PRIORS, Physics
from simulator.posterior import DEFAULT_PHYSICS, POSTERIOR, Posterior
from simulator.step import simulate_step


def small(**changes):
    held = {
        "fitted": {}, "constants": ["launch_s", "nic_eff"], "shifts": [1.0, -1.0],
        "covariance": [[0.04, 0.0], [0.0, 0.09]], "stacks": {"nanotron": {"launch_s": 1.0}}, "versions": {"x 1": 0.9},
    }  # fmt: skip
    return held | changes


def test_a_stack_adds_its_shifts_and_a_version_its_pace():
    posterior = Posterior.from_json(json.dumps(small()))
    general, own = posterior.physics(), posterior.physics("nanotron", "x 1")
    assert general.launch_s == pytest.approx(PRIORS["launch_s"].moved(1.0))
    assert own.launch_s == pytest.approx(PRIORS["launch_s"].moved(2.0))
    assert (general.pace, own.pace) == (1.0, 0.9)
    assert own.nic_eff == general.nic_eff
    assert general.sync_s == Physics().sync_s


def test_what_is_written_is_read_back():
    posterior = Posterior.from_json(json.dumps(small()))
    again = Posterior.from_json(posterior.to_json())
    assert again.physics("nanotron", "x 1") == posterior.physics("nanotron", "x 1")
    assert np.array_equal(again.covariance, posterior.covariance)


NAN = float("nan")
BROKEN = [
    {"constants": ["no_such", "nic_eff"]}, {"constants": ["launch_s", "launch_s"]}, {"constants": 5},
    {"constants": [["launch_s"], "nic_eff"]}, {"shifts": [1.0]}, {"shifts": ["a", "b"]}, {"shifts": [NAN, 0.0]},
    {"shifts": [1e6, 0.0]}, {"shifts": [10**400, 0.0]}, {"covariance": [[1]]}, {"covariance": [[NAN, 0], [0, 1]]},
    {"covariance": [[-1.0, 0], [0, 1]]}, {"stacks": []}, {"stacks": {"nanotron": 3}},
    {"stacks": {"nanotron": {"launch_s": "x"}}}, {"stacks": {"nanotron": {"launch_s": NAN}}},
    {"stacks": {"nanotron": {"no_such": 1.0}}}, {"stacks": {"nanotron": {"gemm_speed": 1.0}}},
    {"versions": {"x 1": "fast"}}, {"versions": {"x 1": 0.0}}, {"versions": {"x 1": NAN}}, {"versions": []},
    {"fitted": "yes"}, {"fitted": None}, {"fitted": []}, {"fitted": {"date": "2026-01-01"}},
    {"fitted": {"rows_fitted": "many", "date": "2026-01-01"}},
]  # fmt: skip


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "\0", b"\xff\xfe\xff", "[" * 100_000, *(json.dumps(small(**one)) for one in BROKEN)]
)
def test_what_is_no_posterior_is_refused_in_one_sentence(content):
    with pytest.raises(ValueError, match=r"[a-z]") as error:
        Posterior.from_json(content)
    assert "\n" not in str(error.value)


@given(st.lists(st.floats(-10, 10), min_size=4, max_size=4), st.floats(0, 10))
def test_every_posterior_that_is_read_draws_finite_constants(shifts, sd):
    launch, nic, own, own_nic = shifts
    stacks = {"nanotron": {"launch_s": own, "nic_eff": own_nic}}
    held = small(shifts=[launch, nic], covariance=[[sd**2, 0.0], [0.0, sd]], stacks=stacks)
    posterior = Posterior.from_json(json.dumps(held))
    for physics in (posterior.physics("nanotron"), posterior.draw(np.random.default_rng(0), 1.0)):
        assert all(0 < getattr(physics, name) < min(PRIORS[name].below, 1e9) for name in posterior.constants)


def test_draws_have_the_covariance_and_the_differences_between_stacks():
    posterior = Posterior.from_json(json.dumps(small()))
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


def test_the_widest_draw_leaves_no_part_of_a_step_negative():
    jobs = make_jobs(models()["llama-3-8b"], parse_cluster("8xH100-SXM5-80GB"), gbs=8, seq_len=4096, host_tuned=2)
    shifts = POSTERIOR.shifts + 6 * (np.array(POSTERIOR.constants) == "host_tuning")
    step = simulate_step(jobs, replace(POSTERIOR, shifts=shifts).physics())
    assert all(seconds.min() >= 0 for seconds in step.breakdown_s.values())
