"""Layers on pipeline stages: sums, published layouts, and nanotron's own rule."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.calibration.cells import InvalidCell
from simulator.calibration.measurements import load_measurements
from simulator.calibration.splits import leaves_idle_stages, split_by_cost, split_by_layout, split_layers
from simulator.models import model

LLAMA = model("llama-3-8b")


def _like(layers, **columns):
    return replace(LLAMA, layers=layers, **columns)


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 12))
def test_splits_place_every_layer_once(layers, pp, vpp):
    for sizes in (split_layers(_like(layers), pp, vpp), split_by_cost(_like(layers), pp)):
        assert len(sizes) == pp
        assert sum(sizes) == layers
        assert min(sizes) >= 0


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "ends"),
    [
        ("llama-3.1-405b", 8, 4, (15, 15)),  # 126 layers: embedding and head count as one each
        ("qwen3-235b-a22b", 4, 12, (23, 23)),  # 94 layers
        ("deepseek-v3", 16, 1, (4, 1)),  # 61 layers: four a chunk, the last one left over
        ("llama-3-70b", 4, 5, (20, 20)),
    ],
)
def test_splits_of_published_recipes(name, pp, vpp, ends):
    sizes = split_layers(model(name), pp, vpp)
    assert (sizes[0], sizes[-1]) == ends


def test_a_written_layout_is_dealt_out_chunk_by_chunk():
    assert split_by_layout("Et*4|(t*4|)*14tmL", 2) == ((32, 29), 8)
    assert split_by_layout("Ett|(tt|)*6mL", 4) == ((4, 4, 4, 2), 2)
    assert split_by_layout("Et|tL", 2) == ((1, 1), 1)


@pytest.mark.parametrize("text", ["Et|t|tL", "x", "E(t|*2L", "(t*9999|)*9999", "", "t*"])
def test_other_layouts_are_refused_by_name(text):
    with pytest.raises(InvalidCell, match="pp_layout"):
        split_by_layout(text, 2 if text else 3)


@given(st.text(alphabet="EtmL|()*0123456789 x", max_size=40), st.integers(1, 8))
def test_any_layout_is_read_or_refused(text, pp):
    try:
        sizes, vpp = split_by_layout(text, pp)
    except InvalidCell:
        return
    assert len(sizes) == pp
    assert vpp >= 1


def test_layouts_that_nanotron_could_not_start_are_known():
    """All failed in the playbook's sweep but two that ran without data parallelism; the others ran at times."""
    sweep = [row for row in load_measurements() if row["source_id"] == "playbook" and row["pp"]]
    ended = {True: set(), False: set()}
    for row in sweep:
        columns = ("layers", "hidden", "ffn", "vocab", "heads", "kv_heads", "head_dim")
        shape = replace(LLAMA, **{column: int(row[column]) for column in columns})
        ended[leaves_idle_stages(shape, int(row["pp"]))].add((row["failed"], row["id"]))
    assert sum(failed == "1" for failed, _ in ended[True]) == 141
    assert {row for failed, row in ended[True] if failed == "0"} == {"hfu-0543", "hfu-1323"}
    assert sum(failed == "0" for failed, _ in ended[False]) > 1000
