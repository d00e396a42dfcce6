"""The timeline of a step: its length, its trace, its picture."""

import json
import struct
import warnings
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.hardware import parse_cluster
from simulator.job import Schedule, make_jobs
from simulator.models import model
from simulator.picture import png
from simulator.timeline import chrome_trace, timeline

H100 = "-SXM5-80GB"
CASES = {
    "one stage": ("llama-3-8b", "8xH100", {"gbs": 128}),
    "plain": ("llama-3-70b", "64xH100", {"tp": 8, "pp": 8, "gbs": 32}),
    "interleaved": ("llama-3-70b", "64xH100", {"tp": 4, "pp": 4, "vpp": 5, "gbs": 128}),
    "blocking": ("llama-3-70b", "64xH100", {"tp": 4, "pp": 4, "vpp": 5, "gbs": 128, "overlap_p2p": False}),
    "very many": ("llama-3.1-405b", "2048xH100", {"tp": 8, "pp": 16, "vpp": 8, "gbs": 16384}),
    "no whole rounds": ("llama-3-70b", "64xH100", {"tp": 4, "pp": 4, "vpp": 5, "gbs": 168}),
    "gpipe": ("llama-3-70b", "64xH100", {"tp": 8, "pp": 8, "gbs": 32, "schedule": Schedule.GPIPE}),
    "zb-h1": ("llama-3-70b", "64xH100", {"tp": 8, "pp": 8, "gbs": 64, "schedule": Schedule.ZB_H1}),
    "zb-v": ("llama-3-70b", "64xH100", {"tp": 8, "pp": 8, "gbs": 64, "schedule": Schedule.ZB_V}),
    "dualpipe": ("llama-3-70b", "64xH100", {"tp": 4, "pp": 16, "gbs": 512, "schedule": Schedule.DUALPIPE}),
    "dualpipe-v": ("llama-3-70b", "64xH100", {"tp": 8, "pp": 8, "gbs": 64, "schedule": Schedule.DUALPIPE_V}),
}


def lines(case):
    name, cluster, columns = CASES[case]
    return timeline(make_jobs(model(name), parse_cluster(cluster + H100), seq_len=8192, **columns))


@pytest.mark.parametrize("case", CASES)
def test_a_timeline_is_as_long_as_the_predicted_step(case):
    """Within what the closed form of the schedule may be off."""
    line = lines(case)
    exact = line.schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
    assert line.seconds == pytest.approx(line.predicted_seconds, rel=0.02 if exact else 0.05)
    assert max(r.end for r in line.recorded) == pytest.approx(line.seconds)
    assert min(r.start for r in line.recorded) == 0
    assert len(line.recorded) < 40_000


@pytest.mark.parametrize("case", CASES)
def test_micro_batches_have_the_numbers_of_the_job(case):
    line = lines(case)
    passes = [r for r in line.recorded if r.kind in ("F", "B", "I", "W")]
    assert len({(r.stage, r.kind, r.chunk, r.microbatch) for r in passes}) == len(passes)
    numbers = {r.microbatch for r in passes}
    assert min(numbers) == 0
    assert max(numbers) == line.microbatches - 1
    assert (line.cut is None) == (line.left_out == 0)


@pytest.mark.parametrize("case", CASES)
def test_the_trace_is_one_that_viewers_read(case):
    """ "Trace Event Format": complete events with these keys, one after the other on every track."""
    line = lines(case)
    trace = json.loads(chrome_trace(line, "a title"))
    assert trace["otherData"]["provenance"] == "simulated"
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert {"name", "ph", "pid", "tid"} <= set(event)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert set(tracks) - named <= {(line.stages, len(tracks) - 1)}  # what is not drawn
    for spans in tracks.values():
        assert all(one[1] <= after[0] + 1e-3 for one, after in pairwise(sorted(spans)))
    assert max(end for spans in tracks.values() for _, end in spans) == pytest.approx(1e6 * line.seconds)


@pytest.mark.parametrize("case", CASES)
def test_the_picture_is_a_png_of_readable_size(case):
    pytest.importorskip("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = png(lines(case), "title with $, \\, ü and 模型")
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width == 1760
    assert 200 < height < 2000


@given(
    pp=st.sampled_from([1, 2, 4, 8]), vpp=st.sampled_from([1, 2, 5]), schedule=st.sampled_from(Schedule),
    rounds=st.integers(2, 40),
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_any_job_has_a_timeline(pp, vpp, schedule, rounds):
    if schedule == Schedule.DUALPIPE and pp == 1:
        schedule = Schedule.ONE_F_ONE_B
    vpp = vpp if pp > 1 and schedule == Schedule.ONE_F_ONE_B else 1
    columns = {"tp": 8, "pp": pp, "vpp": vpp, "schedule": schedule, "gbs": 64 // 8 // pp * pp * rounds, "seq_len": 4096}
    line = timeline(make_jobs(model("llama-3-70b"), parse_cluster("64xH100-SXM5-80GB"), **columns))
    assert line.seconds == pytest.approx(line.predicted_seconds, rel=0.10)
    assert {r.stage for r in line.recorded} == set(range(pp))


def test_a_timeline_is_of_one_job():
    jobs = make_jobs(model("llama-3-8b"), parse_cluster("8xH100-SXM5-80GB"), gbs=[8, 16], seq_len=4096)
    with pytest.raises(ValueError, match="one job, not 2"):
        timeline(jobs)
    assert timeline(jobs.take(np.array([0]))).microbatches == 1
