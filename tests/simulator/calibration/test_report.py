import json
from dataclasses import replace

import numpy as np
import pytest

from simulator.calibration.observations import observe
from simulator.calibration.report import as_json, as_markdown, plots, read_figures, worse
from simulator.calibration.validate import Figure, Validation

ERROR = Figure(0.10, 0.12, 0.02, 50, False, "some error")
ORDER = Figure(0.80, 0.85, 0.02, 50, True, "some order")
FIGURES = {"error": ERROR, "order": ORDER, "free": replace(ERROR, target=None)}
ROW = {"group": "a|b", "time_rows": 3, "memory_rows": 0, "time_bias": 0.01, "time_median": 0.02, "time_mean": 0.03}


@pytest.fixture
def validation():
    speed = np.array([100.0, 200.0, np.nan])
    return Validation(FIGURES, {"source": [ROW]}, speed, speed, speed)


def test_targets_are_met_from_their_own_side():
    assert (ERROR.met, ORDER.met, FIGURES["free"].met) == (True, False, None)


def test_figures_survive_the_file(validation):
    assert read_figures(json.dumps(as_json(validation, {"data": "x"}))) == FIGURES


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"figures": {"a": 1}}', '{"figures": {"a": {"value": 1}}}'])
def test_what_is_no_report_is_refused(content):
    with pytest.raises(ValueError, match=r"another form|Expecting"):
        read_figures(content)


def test_worse_is_more_than_noise_and_only_in_the_bad_direction():
    def moved(name, by):
        return FIGURES | {name: replace(FIGURES[name], value=FIGURES[name].value + by)}

    assert worse(FIGURES, FIGURES) == []
    assert worse(moved("error", 0.004), FIGURES) == []
    assert worse(moved("error", -0.05), FIGURES) == []
    assert worse(moved("order", 0.05), FIGURES) == []
    assert len(worse(moved("error", 0.02), FIGURES)) == 1
    assert len(worse(moved("order", -0.02), FIGURES)) == 1
    assert "missing" in worse({}, FIGURES)[0]


def test_the_page_names_misses(validation):
    page = as_markdown(validation, {"data": "abc", "date": "2026-01-01"})
    assert "| some order | 0.800 | ≥ 0.85 | **no** |" in page
    assert "| some error | 0.100 | ≤ 0.12 | yes |" in page
    assert "| a\\|b | 3 | 1.0 | 2.0 | 3.0 | 0 |" in page


def test_plots_are_pictures(validation):
    row = {
        "id": "1", "source_id": "s", "model": "llama-3-8b", "accelerator": "H100-SXM5-80GB", "n_gpus": "8", "gbs": "8",
        "seq_len": "4096", "tokens_per_s_per_gpu_std": "120", "peak_mem_gb": "50",
    }  # fmt: skip
    observations = observe([row, row | {"id": "2", "tokens_per_s_per_gpu_std": "190"}, row | {"id": "3", "model": "?"}])
    pictures = plots(observations, validation)
    assert list(pictures) == ["accuracy-time.png", "accuracy-memory.png"]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
