"""The tables count what was judged, and text from outside stays text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from attune_lab.gate import Check, Verdict
from attune_lab.gate.verdict import Outcome
from attune_lab.report.tables import Table, markdown, page, wilson
from attune_lab.trainer.config import TrainerConfig
from experiments.faults.judging import LEVELS, Judgement
from experiments.faults.plan import Case, Kind, Run
from experiments.faults.report import findings, tables


def judged(
    name: str, kind: Kind, loss: Outcome, norm: Outcome, signals: Outcome, *, group: str = "g", cost: float = 2.0
) -> Judgement:
    run = Run(name, TrainerConfig(), fault=name if kind == "fault" else None)
    verdicts = {
        level: Verdict(outcome, (f"{name} {outcome}",), (Check("c", outcome, "because"),))
        for level, outcome in zip(LEVELS, (loss, norm, signals, signals), strict=True)
    }
    return Judgement(Case(name, kind, run, run, group=group, note=f"note of {name}"), verdicts, cost)


CASES = [
    judged("F1", "fault", "pass", "reject", "reject", group="a"),
    judged("F2", "fault", "pass", "pass", "reject", group="a", cost=4.0),
    judged("F3", "fault", "reject", "inconclusive", "pass", group="b"),
    judged("dp=2", "legitimate", "pass", "pass", "pass"),
    judged("tp=2", "legitimate", "pass", "inconclusive", "reject"),
]


def table(title: str) -> Table:
    return next(table for table in tables(CASES) if table.title == title)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_that_of_scipy(counts: tuple[int, int]) -> None:
    expected = binomtest(*counts).proportion_ci(0.95, method="wilson")
    assert wilson(*counts, z=1.959963984540054) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_of_nothing_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_recall_by_group_and_by_fault() -> None:
    groups = {row[0]: [cell.split()[0] for cell in row[1:]] for row in table("Faults caught, by group").rows}
    assert groups == {
        "a": ["0/2", "1/2", "2/2", "2/2"],
        "b": ["1/1", "0/1", "0/1", "0/1"],
        "all": ["1/3", "1/3", "2/3", "2/3"],
    }
    assert [row[0] for row in table("Faults caught, by fault").rows] == ["F1", "F2", "F3", "all"]


def test_what_is_missed_is_named_and_explained() -> None:
    assert table("Faults missed with signals").rows == [["F3", "b", "pass", "note of F3"]]


def test_what_is_caught_is_named_with_its_check() -> None:
    assert findings(CASES[:3]).rows == [["F1", "a", "c", "because"], ["F2", "a", "c", "because"]]


def test_false_alarms_are_counted_by_half_and_named() -> None:
    rows = table("Legitimate changes not passed").rows
    assert [row[0] for row in rows] == ["calibration", "held-out"]
    assert sum(int(row[1]) for row in rows) == 2
    assert [sum(int(row[4].split(" / ")[i]) for row in rows) for i in (0, 1)] == [1, 0]
    named = table("Legitimate changes not passed, one by one").rows
    assert [(row[0], row[2], row[3], row[4]) for row in named] == [
        ("tp=2", "loss+norm", "inconclusive", "tp=2 inconclusive"),
        ("tp=2", "signals", "reject", "tp=2 reject"),
        ("tp=2", "signals+twins", "reject", "tp=2 reject"),
    ]


def test_cost_is_that_of_the_probes() -> None:
    assert table("Cost of the probes of both runs").rows[0] == ["fault", "2.7", "4.0", "20 %"]


def test_only_tables_with_rows() -> None:
    assert [t.title for t in tables(CASES[3:4])] == ["Legitimate changes not passed", "Cost of the probes of both runs"]


@given(st.text())
def test_text_is_shown_and_not_obeyed(text: str) -> None:
    made = [Table("t", ["h"], [[text]])]
    assert "<script" not in page("title", "<script>intro", [Table("<script>", ["<script>"], [["<script>" + text]])])
    line = markdown("title", "intro", made).split("\n\n")[-1].splitlines()[2]
    assert line.replace("\\|", "").count("|") == 2
