"""The report of a study: what it says, that it holds all it shows, and that texts in it are only texts."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from attune_lab.study import plots, report

sys.path.insert(0, str(Path(__file__).parent))
from test_figures import frame, runs_of

PROVENANCE = {"study": "small", "version": "0", "commit": None, "date": "2026-11-30", "machine": "2 cores"}
EVIL = "<script>alert($x_1$)</script>|"


@pytest.fixture(scope="module")
def study() -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    names = ["attune", "random", EVIL]
    campaigns = pd.concat(
        [frame({name: list(rng.normal(5, 3, 6)) for name in names}, scenario=where) for where in ("a", "b")]
    ).assign(stop_reason="the tuner stopped")
    campaigns.iloc[0, campaigns.columns.get_loc("status")] = "hung"
    runs = pd.concat([runs_of([1.0, -2.0, 5.0], name, world) for name in names for world in range(6)])
    return campaigns, runs.assign(status=["ok", "oom", "ok"] * 18, repeated=False)


def test_it_writes_markdown_and_one_page(study, tmp_path):
    paths = report.write_report(tmp_path, *study, PROVENANCE)
    assert [path.name for path in paths] == ["report.md", "report.html"]
    text, page = (path.read_text() for path in paths)
    assert "All figures are simulated. 36 campaigns of 3 tuners on 2 scenarios (35 finished, 1 hung)" in text
    for title in ("All scenarios", "## a", "## b", "Ranking", "against the others", "What the gate is worth"):
        assert title in text
    assert "| a | attune | hung | the tuner stopped | 1 |" in text
    assert page.count("<svg") == 4
    assert all(word not in page for word in ("<script", "http-equiv", "src=", "<link"))


def test_pictures_are_well_formed_and_the_same_again(study):
    order = ["attune", EVIL, "random"]
    first, again = (plots.pictures(*study, order) for _ in range(2))
    assert first == again
    for svg in first.values():
        ElementTree.fromstring(svg)
        assert "<script" not in svg


def test_a_study_without_a_judged_campaign_says_why(study, tmp_path):
    campaigns, runs = study
    refused = campaigns.assign(status="refused", stop_reason="the baseline cannot start")
    report.write_report(tmp_path, refused, runs, PROVENANCE)
    assert "the baseline cannot start" in (tmp_path / "report.md").read_text()


def test_tuners_without_a_common_world_are_not_compared_and_the_report_says_so(study, tmp_path):
    campaigns, runs = study
    apart = campaigns[(campaigns["tuner"] == "attune") == (campaigns["world"] < 3)]
    report.write_report(tmp_path, apart, runs, PROVENANCE)
    assert "No world was finished by every tuner." in (tmp_path / "report.md").read_text()
    one_scenario = pd.concat([campaigns[campaigns["scenario"] == "a"], apart[apart["scenario"] == "b"]])
    assert "b" not in [table.title for table in report.tables(one_scenario)]


@pytest.mark.parametrize("name", ["$\\frac$", "$", "_hidden", "a_b^c", "100 %"])
def test_any_name_is_shown_as_text(study, name):
    campaigns, runs = (part.assign(tuner=part["tuner"].replace("random", name)) for part in study)
    for svg in plots.pictures(campaigns, runs, [name, "attune", EVIL]).values():
        assert name in "".join(ElementTree.fromstring(svg).itertext())


def test_one_tuner_alone_is_not_ranked(study):
    campaigns, _ = study
    titles = [table.title for table in report.tables(campaigns[campaigns.tuner == "attune"])]
    assert "Ranking" not in titles
    assert titles[0] == "All scenarios"


def test_without_matplotlib_the_page_says_what_is_missing(study, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "attune_lab.study.plots", None)
    report.write_report(tmp_path, *study, PROVENANCE)
    page = (tmp_path / "report.html").read_text()
    assert "attune-lab[plots]" in page
    assert "<svg" not in page
