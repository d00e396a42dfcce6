"""`attune gate` on bare curves: what is said of the start, further seeds, and how they are named."""

import pytest


@pytest.fixture
def files(tmp_path):
    losses = {"base": 0.0, "near": 2.6e-4, "other": 0.0, "back": -2.6e-4, "far": 0.05}
    starts = {"other": 9.2, "back": 9.2}  # of another seed
    for name, gap in losses.items():
        rows = "".join(f"{i},{(starts.get(name, 9) - 0.1 * i) * (1 + gap):.7f}\n" for i in range(1, 21))
        (tmp_path / f"{name}.csv").write_text("step,lm_loss\n" + rows)
    return {name: str(tmp_path / f"{name}.csv") for name in losses}


def test_another_start_is_a_question_and_not_a_fault(attune, files):
    pair = ("--baseline", files["base"], "--candidate", files["far"])
    assert attune("gate", *pair, "--json").json["verdict"] == "reject"
    for start in ("differs", "unknown"):
        assert attune("gate", *pair, "--start", start, "--json").json["verdict"] == "inconclusive"


def test_a_second_seed_on_the_other_side_shows_noise(attune, files):
    pair = ("--baseline", files["base"], "--candidate", files["near"])
    assert attune("gate", *pair, "--json").json["verdict"] == "reject"
    again = f"{files['other']}={files['back']}"
    assert attune("gate", *pair, "--again", again, "--json").json["verdict"] == "pass"
    same = f"{files['base']}={files['near']}"
    assert "seed of their own" in attune("gate", *pair, "--again", same, "--json").json["reasons"][0]


@pytest.mark.parametrize("text", ["one.csv", "=b.csv", "a.csv="])
def test_a_seed_that_names_one_run_is_refused_in_one_sentence(attune, files, text):
    refused = attune("gate", "--baseline", files["base"], "--candidate", files["base"], "--again", text)
    assert refused.code != 0
    assert "BASELINE=CANDIDATE" in " ".join(refused.stderr.split())


def test_the_terminal_names_what_was_not_checked_and_cuts_no_outcome_or_figure(attune, files, monkeypatch):
    pair = ("--baseline", files["base"], "--candidate", files["far"], "--start", "unknown")
    monkeypatch.setenv("COLUMNS", "80")
    shown = attune("gate", *pair).stdout
    assert "Not checked: Not both runs came with a recipe" in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "140")
    assert "finding" in attune("gate", *pair).stdout
