"""`predict_file`: every row answered, none raised, measured columns unseen."""

import csv
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.predict import PREDICTED_COLUMNS, predict_file, predict_rows
from simulator.calibration.measurements import load_measurements
from simulator.calibration.points import MEASURED_COLUMNS

HEADER = "id,model,accelerator,n_gpus,seq_len,gbs,mbs,tp,pp,recompute,mem_statistic,step_time_s"
GOOD = "a,llama-3-8b,H100-SXM5-80GB,8,8192,128,1,1,1,full,reserved,99"


def _write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_keep_their_order_and_their_cells(tmp_path):
    points = _write(
        tmp_path / "p.csv", HEADER, GOOD, GOOD.replace("llama-3-8b", "unknown"), GOOD.replace("a,", "c,", 1)
    )
    counts = predict_file(points, tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["id"] for row in rows] == ["a", "a", "c"]
    assert [row["pred_status"] for row in rows] == ["ok", "unsupported", "ok"]
    assert counts == {"ok": 2, "unsupported": 1}
    assert all(row["step_time_s"] == "99" for row in rows)
    assert float(rows[0]["pred_step_time_s"]) > 0
    assert rows[1]["pred_reason"]


def test_the_measured_answer_does_not_move_the_prediction():
    row = dict(zip(HEADER.split(","), GOOD.split(","), strict=True))
    assert predict_rows([row]) == predict_rows([{**row, "step_time_s": "0.001"}])


def test_reserved_memory_is_more_than_allocated():
    row = dict(zip(HEADER.split(","), GOOD.split(","), strict=True))
    reserved, allocated = predict_rows([row, {**row, "mem_statistic": "allocated"}])
    assert float(reserved["pred_peak_mem_gb"]) > float(allocated["pred_peak_mem_gb"])


def test_a_batch_predicts_what_its_rows_predict_alone():
    rows = [dict(zip(HEADER.split(","), GOOD.split(","), strict=True)) for _ in range(3)]
    rows[1]["tp"], rows[1]["pp"], rows[2]["recompute"] = "2", "4", "none"
    together = predict_rows(rows)
    assert together == [predict_rows([row])[0] for row in rows]


def test_predicting_a_predicted_file_replaces_the_old_columns(tmp_path):
    points = _write(tmp_path / "p.csv", HEADER, GOOD)
    predict_file(points, tmp_path / "1.csv")
    predict_file(tmp_path / "1.csv", tmp_path / "2.csv")
    assert (tmp_path / "1.csv").read_text() == (tmp_path / "2.csv").read_text()
    assert (tmp_path / "2.csv").read_text().count(PREDICTED_COLUMNS[0]) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"a,b\n1,2\n", "missing column"),
        (b"\x00\x01", "binary"),
        (b"\xff\xfe\xff", "UTF-8"),
        (HEADER.encode() + b"\n1,2\n", "line 2"),
        (HEADER.encode() + b",id\n", "appears twice"),
    ],
)
def test_files_that_are_no_points_are_refused_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        predict_file(path, tmp_path / "out.csv")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.csv does not exist"):
        predict_file(tmp_path / "nowhere.csv", tmp_path / "out.csv")


SAMPLE = load_measurements()[::100]
UNTOUCHED = predict_rows(SAMPLE)
ANY_CELL = st.one_of(st.text(max_size=12), st.sampled_from(["0", "-1", "1e9", "nan", "2", "8", "full", "selective:x"]))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(SAMPLE), st.dictionaries(st.sampled_from(sorted(SAMPLE[0])), ANY_CELL, max_size=4))
def test_no_text_in_any_cell_stops_a_prediction(row, edits):
    (predicted,) = predict_rows([{**row, **edits}])
    assert predicted["pred_status"] in ("ok", "oom", "invalid", "unsupported")
    assert predicted["pred_reason"] or predicted["pred_status"] == "ok"


@given(st.dictionaries(st.sampled_from(sorted(MEASURED_COLUMNS)), ANY_CELL))
@settings(deadline=None, max_examples=10)
def test_no_measured_column_moves_a_prediction_of_the_data_set(answers):
    assert predict_rows([{**row, **answers} for row in SAMPLE]) == UNTOUCHED


def test_the_data_set_is_a_file_of_points(tmp_path):
    path = files("simulator").joinpath("data", "measurements.csv")
    counts = predict_file(path, tmp_path / "out.csv")
    assert sum(counts.values()) == len(load_measurements())
    assert "invalid" not in counts
