"""Measured tables in, calibration out, calibration used."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attune_lab import calibration
from attune_lab.calibration import calibrate_kernels, calibrate_to, observations_of, own_runs, validate_to
from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.predict import predict_rows, read_calibration
from attune_lab.workbench import open_workbench
from simulator.calibration.measurements import load_measurements
from simulator.calibration.validate import Figure, Validation
from simulator.posterior import POSTERIOR

ROW = {
    "id": "mine-1", "source_id": "mine", "model": "llama-3-8b", "accelerator": "H100-SXM5-80GB", "n_gpus": "8",
    "seq_len": "8192", "gbs": "128", "mbs": "1", "recompute": "full", "tokens_per_s_per_gpu_std": "9000",
}  # fmt: skip


def table(path, rows):
    path.write_text("\n".join([",".join(ROW), *(",".join(row.values()) for row in rows)]) + "\n")
    return path


def slower(tmp_path):
    """A calibration whose products run slower by three standard deviations."""
    shifts = POSTERIOR.shifts.copy()
    shifts[POSTERIOR.constants.index("gemm_speed")] -= 3
    path = tmp_path / "calibration.json"
    path.write_text(replace(POSTERIOR, shifts=shifts).to_json())
    return path


def test_a_users_points_join_the_published_ones(tmp_path):
    observations = observations_of([table(tmp_path / "mine.csv", [ROW, ROW | {"id": "mine-2"}])])
    assert len(observations.rows) == len(load_measurements()) + 2
    assert observations.speed[-2:].tolist() == [9000, 9000]
    assert observations.priced[-2:].all()


def test_a_user_learns_how_the_runs_fit_and_which_are_left_out(tmp_path):
    unknown = ROW | {"id": "mine-2", "model": "no-such-model"}
    observations = observations_of([table(tmp_path / "mine.csv", [ROW, unknown])])
    own = own_runs(observations, read_calibration(slower(tmp_path)))
    (predicted,) = predict_rows([ROW])
    assert own["before"] == pytest.approx(abs(float(predicted["pred_tokens_per_s_per_gpu"]) / 9000 - 1), rel=1e-4)
    assert own["after"] != own["before"]
    assert (own["rows"], own["compared"], list(own["refused"])) == (2, 1, ["mine-2"])
    assert own_runs(observations_of([]), POSTERIOR) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,accelerator,n_gpus,seq_len\nllama-3-8b,H100,8,8192\n", "missing column id, source_id"),
        (",".join(ROW) + "\n" + ",".join((ROW | {"tokens_per_s_per_gpu_std": "fast"}).values()) + "\n", "mine-1"),
        ("", "is empty"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        observations_of([path])
    assert "\n" not in str(error.value)


def test_a_calibration_moves_what_it_is_given_to(tmp_path):
    posterior = read_calibration(slower(tmp_path))
    here, there = predict_rows([ROW]), predict_rows([ROW], posterior)
    assert float(there[0]["pred_step_time_s"]) > 1.05 * float(here[0]["pred_step_time_s"])
    benches = [open_workbench("glm-4.5", "64xH200", posterior=p) for p in (None, posterior)]
    first, second = (bench.cost_model.estimate([bench.baseline])[0].step_time_s for bench in benches)
    assert second > 1.05 * first
    assert isinstance(benches[1].cost_model, SimulatedCostModel)


@pytest.mark.parametrize("content", ["", "[]", '{"constants": []}', "\0\0"])
def test_what_is_no_calibration_is_refused(tmp_path, content):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"is no calibration|is empty"):
        read_calibration(path)
    with pytest.raises(UserError, match="does not exist"):
        read_calibration(tmp_path / "none.json")


def test_a_calibration_survives_the_file(tmp_path):
    again = read_calibration(slower(tmp_path))
    assert np.allclose(again.covariance, POSTERIOR.covariance)
    assert json.loads(again.to_json())["fitted"] == dict(POSTERIOR.fitted)


def test_kernel_tables_that_are_not_there_are_named(tmp_path):
    with pytest.raises(UserError, match=r"gemm\.parquet"):
        calibrate_kernels(tmp_path, tmp_path / "kernels.json")


def test_a_report_to_compare_with_must_be_one(tmp_path):
    path = tmp_path / "accuracy.json"
    path.write_text("{}")
    with pytest.raises(UserError, match="is no accuracy report"):
        validate_to([], None, path)


@pytest.mark.parametrize(
    "content", ["[]", "[" * 100_000, '{"figures": {"a": 1}}', '{"figures": {"a": {"value": NaN}}}']
)
def test_no_other_text_is_a_report(tmp_path, content):
    path = tmp_path / "accuracy.json"
    path.write_text(content)
    with pytest.raises(UserError, match="is no accuracy report"):
        validate_to([], None, path)


def test_files_that_never_end_are_refused_unopened(tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="pipe"):
        read_calibration(pipe)
    with pytest.raises(UserError, match="pipe"):
        validate_to([], None, pipe)


def test_where_nothing_can_be_written_is_known_before_the_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("attune_lab.calibration.fit", None)
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "c.json", Path()):
        with pytest.raises(EnvironmentFault, match="cannot write"):
            calibrate_to([], out)
    with pytest.raises(EnvironmentFault, match="cannot write"):
        validate_to([], tmp_path / "file", None)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("speed", ["0", "-5", "inf", "nan"])
def test_a_speed_is_a_number_above_zero(tmp_path, speed):
    with pytest.raises(UserError, match="mine-1"):
        observations_of([table(tmp_path / "mine.csv", [ROW | {"tokens_per_s_per_gpu_std": speed}])])


def test_without_matplotlib_the_report_comes_without_plots(tmp_path, monkeypatch):
    figure = Figure(0.05, 0.04, 0.01, 1, False, "step time: median absolute error")
    nothing = np.empty(0)
    validation = Validation({"time_median": figure}, {}, nothing, nothing, nothing)
    monkeypatch.setattr(calibration, "fit", lambda *_, **__: None)
    monkeypatch.setattr("simulator.calibration.validate.validate", lambda *_, **__: validation)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)  # as if not installed
    data = validate_to([], tmp_path, None)
    assert data["written"] == [str(tmp_path / "accuracy.json"), str(tmp_path / "accuracy.md")]
    assert "pip install 'attune-lab[plots]'" in data["left_out"]
    assert "step time: median absolute error | 0.050" in (tmp_path / "accuracy.md").read_text()
