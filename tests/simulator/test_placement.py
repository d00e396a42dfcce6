from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware import parse_cluster
from simulator.job import Jobs, make_jobs
from simulator.models import ModelShape, layer_kinds, model
from simulator.placement import dense_layers, layer_parts

LETTERS = {"attention": "*", "mamba": "M", "mlp": "-", "moe": "E"}


def jobs(shape: str | ModelShape, **columns: Any) -> Jobs:
    known = model(shape) if isinstance(shape, str) else shape
    return make_jobs(known, parse_cluster("64xH100-SXM5-80GB"), **{"gbs": 64, "seq_len": 4096} | columns)


def test_first_dense_layers_live_on_the_first_chunks() -> None:
    plain = dense_layers(jobs("deepseek-v3", pp=4, stage_layers=[[16, 15, 15, 15]]))
    assert plain.tolist() == [[3, 0, 0, 0]]
    interleaved = dense_layers(jobs("deepseek-v3", pp=4, vpp=8, stage_layers=[[16, 16, 16, 13]]))
    assert interleaved.tolist() == [[2, 1, 0, 0]]
    many = replace(model("deepseek-v3"), layers=8, first_dense_layers=6)
    assert dense_layers(jobs(many, pp=2, vpp=4, gbs=512)).tolist() == [[3, 3]]


@given(st.text("M*E-", min_size=1, max_size=40), st.integers(1, 8))
def test_a_stage_of_a_hybrid_holds_the_letters_dealt_to_it(pattern: str, pp: int) -> None:
    shape = replace(model("nemotron-3-nano-30b-a3b"), layers=len(pattern), hybrid=pattern)
    one = jobs(shape, pp=pp)
    ends = np.cumsum(one.stage_layers[0])
    for part, held in layer_parts(one).items():
        dealt = [pattern[a:b].count(LETTERS[part]) for a, b in zip([0, *ends], ends, strict=False)]
        assert held[0].tolist() == dealt


@given(
    st.sampled_from(["deepseek-v3", "llama-3-8b", "nemotron-3-super-120b-a12b"]), st.integers(1, 4), st.integers(1, 3)
)
def test_all_stages_together_hold_the_model(name: str, pp: int, vpp: int) -> None:
    kinds = layer_kinds(model(name))
    held = {part: float(count.sum()) for part, count in layer_parts(jobs(name, pp=pp, vpp=vpp)).items()}
    expected = {"attention": kinds.attention, "mamba": kinds.mamba, "mlp": kinds.dense, "moe": kinds.moe}
    assert np.allclose([held[part] for part in expected], list(expected.values()))
