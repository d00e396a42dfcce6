import numpy as np
import pytest

from simulator.hardware import parse_cluster
from simulator.job import joined, make_jobs
from simulator.models import model
from simulator.step import simulate_step


def test_joined_batches_are_the_jobs_in_order():
    shape, cluster = model("llama-3-8b"), parse_cluster("64xH100-SXM5-80GB")
    parts = [
        make_jobs(shape, cluster, gbs=64, seq_len=4096, tp=[1, 2]),
        make_jobs(shape, cluster, gbs=64, seq_len=4096, tp=4, pp=[4, 8, 2]),
    ]
    whole = joined(parts)
    times = np.concatenate([simulate_step(part).step_time_s for part in parts])
    assert simulate_step(whole).step_time_s == pytest.approx(times)
    assert whole.pp.tolist() == [1, 1, 4, 8, 2]
