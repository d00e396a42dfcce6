"""Columns of logs that must be equal: found where they differ, and not where they are printed otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.gate.curves_io import printed_quantum, read_log
from attune_lab.gate.log_ledger import check
from attune_lab.gate.run import run_gate

RATES = [1e-4 * t for t in range(1, 21)]


def line(step, **columns):
    loss = 6.0 - 0.05 * step
    known = {
        "consumed samples": 64 * step, "learning rate": f"{RATES[step - 1]:.6E}", "global batch size": 64,
        "lm loss": f"{loss:.6E}", "load_balancing_loss": "1.0320", "grad norm": "1.250",
        "number of skipped iterations": 0,
    }  # fmt: skip
    columns = {name.replace("_", " ") if name not in known else name: value for name, value in columns.items()}
    return f" iteration {step:8d}/      20 | " + " | ".join(f"{k}: {v}" for k, v in {**known, **columns}.items()) + " |"


def log(path, **columns):
    path.write_text("\n".join(line(t, **columns) for t in range(1, 21)))
    return path


@pytest.fixture
def base(tmp_path):
    return log(tmp_path / "base.log")


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"learning_rate": "2.000000E-04"}, "learning_rate"), ({"global_batch_size": 32}, "global_batch_size"),
        ({"consumed_samples": 7}, "consumed_samples"), ({"load_balancing_loss": "2.0640"}, "load_balancing_loss"),
        ({"number_of_skipped_iterations": 1}, "number_of_skipped_iterations"),
    ],
)  # fmt: skip
def test_a_column_that_differs_rejects_a_run_whose_curve_agrees(base, tmp_path, columns, name):
    verdict = run_gate(str(base), str(log(tmp_path / "other.log", **columns)))
    assert verdict.verdict == "reject"
    (found,) = (c for c in verdict.checks if c.name.startswith("ledger.log") and c.outcome == "reject")
    assert found.name == f"ledger.log.{name}"
    assert found.reason in verdict.reasons


def test_equal_logs_pass(base, tmp_path):
    found = check(read_log(base), read_log(log(tmp_path / "again.log")))
    assert {c.outcome for c in found} == {"pass"}
    assert len(found) == 5


def test_a_csv_has_no_columns(tmp_path):
    (tmp_path / "x.csv").write_text("step,lm_loss\n1,6.0\n2,5.9\n")
    assert read_log(tmp_path / "x.csv") == {}
    assert check({}, {1: {"learning rate": "1"}}) == []


@given(value=st.floats(1e-6, 1e6), coarse=st.integers(1, 5), fine=st.integers(1, 9))
def test_one_number_printed_with_other_digits_is_the_same(value, coarse, fine):
    old, new = f"{value:.{coarse}E}", f"{value:.{fine}E}"
    (found,) = check({1: {"learning rate": old}}, {1: {"learning rate": new}})
    assert found.outcome == "pass"


@given(value=st.floats(1e-6, 1e6), digits=st.integers(3, 7), factor=st.floats(1.05, 3))
def test_another_number_is_found(value, digits, factor):
    texts = f"{value:.{digits}E}", f"{factor * value:.{digits}E}"
    (found,) = check(*({1: {"learning rate": text}} for text in texts))
    assert found.outcome == "reject"


@pytest.mark.parametrize(("text", "quantum"), [("1.25", 0.01), ("3", 1.0), ("1.250000E-04", 1e-10), ("2e3", 1000.0)])
def test_quantum_of_a_print(text, quantum):
    assert printed_quantum(text) == pytest.approx(quantum)


@pytest.mark.parametrize("text", ["nan", "inf", "none", "1e999999999", "[1]", "<b>"])
def test_what_is_no_number_differs_without_a_crash(text):
    found = check({1: {"learning rate": "1.0", "z_loss": text}}, {1: {"learning rate": text, "z_loss": "1.0"}})
    assert [c.outcome for c in found if c.name == "ledger.log.learning_rate"] == ["reject"]
