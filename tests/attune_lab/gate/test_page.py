"""The evidence page: complete, self-contained, and deaf to what runs are called."""

import html.parser

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.gate import charts
from attune_lab.gate.curve import Curve
from attune_lab.gate.page import render
from attune_lab.gate.run import compare_runs
from attune_lab.gate.run_files import Run
from tests.attune_lab.gate.evidence.signals_for_tests import run, scaled

EVIL = "<script>alert('x')</script>&{{ 7*7 }}"


def curve(seed=0, steps=20):
    noise = np.random.default_rng(seed).normal(0, 1e-5, steps)
    noise[:3] = 0  # of these steps the signals tell the loss
    loss = 6.2 - 0.05 * np.arange(1, steps + 1)
    return Curve(np.arange(1, steps + 1), loss * (1 + noise), np.zeros(steps), {"grad_norm": 1.0 + noise})


def faulty(name="candidate"):
    return Run(name, curve(1), signals=run(1, lambda g: scaled(g, 2.0, "experts")))


class Reader(html.parser.HTMLParser):
    """Tags, addresses and text of a page; every tag must be closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.addresses, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href", "action", "onload", "onclick")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_shows_verdict_reasons_groups_ledger_and_checks():
    base, twin = Run("baseline", curve(), signals=run()), Run("twin", curve(2), signals=run(2))
    verdict = compare_runs(base, faulty(), [twin])
    page = read(render(verdict, base, faulty(), [twin]))
    text = " ".join(page.text)
    assert verdict.verdict == "reject"
    assert all(reason in text for reason in verdict.reasons)
    assert all(check.name in text for check in verdict.checks)
    assert "expert gradients" in text
    assert page.tags.count("svg") == 3
    assert page.tags.count("polyline") == 3 + 2 + 3
    assert page.tags.count("tbody") == 3


def test_the_page_loads_nothing_and_runs_nothing():
    base = Run(EVIL, curve(), signals=run(settings={"tp": EVIL}))
    page = read(render(compare_runs(base, faulty(EVIL)), base, faulty(EVIL)))
    assert page.addresses == []
    assert "script" not in page.tags
    assert EVIL in " ".join(page.text)


def test_a_page_of_bare_curves_has_no_empty_tables():
    base, other = Run("a", curve()), Run("b", Curve(np.arange(1, 21), curve(1).loss, np.zeros(20)))
    page = read(render(compare_runs(base, other), base, other))
    assert page.tags.count("tbody") == 1
    assert "Ledgers" not in " ".join(page.text)


def test_losses_that_are_no_numbers_are_left_out_of_the_lines():
    loss = curve().loss.copy()
    loss[5:] = np.nan
    base, other = Run("a", curve()), Run("b", Curve(np.arange(1, 21), loss, np.zeros(20)))
    assert (
        "nan"
        not in render(compare_runs(base, other), base, other).split("All checks", maxsplit=1)[0].split("<svg", 1)[1]
    )


@settings(max_examples=40)
@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=30),
    st.sampled_from([1e-9, 1.0, 1e9]),
)
def test_lines_and_ticks_stay_inside_the_chart(values, scale):
    y = np.array(values) * scale
    chart = charts.draw("x", [charts.Series("a", "baseline", np.arange(y.size, dtype=float), y)])
    points = [tuple(map(float, p.split(","))) for p in chart.lines[0][2].split()]
    assert len(points) == y.size
    assert all(charts.LEFT <= a <= charts.WIDTH - charts.RIGHT for a, _ in points)
    assert all(charts.TOP <= b <= charts.HEIGHT - charts.BOTTOM for _, b in points)
    assert all(charts.TOP - 1 <= t.at <= charts.HEIGHT - charts.BOTTOM + 1 for t in chart.y_ticks)
    assert 1 <= len(chart.y_ticks) <= 12


def test_a_chart_without_points_is_none():
    assert charts.draw("x", []) is None
    assert charts.draw("x", [charts.Series("a", "baseline", np.ones(1), np.full(1, np.nan))]) is None
