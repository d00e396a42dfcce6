"""What a campaign keeps of itself can be read again, and what was edited since does not fit its seal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import BASELINE, Stubborn, campaign, quick_by_tp, spec_for

from attune_lab.campaign import CampaignSpec, parse_budget
from attune_lab.campaign.rules import AnswerRules
from attune_lab.campaign.seals import ORIGIN, broken_seal
from attune_lab.campaign.store import CampaignRecord, open_store, read_campaign
from attune_lab.contracts import UserError
from attune_lab.testing import FakeCluster

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
specs = st.builds(
    CampaignSpec,
    recipe=st.text(max_size=9),
    baseline=st.just(BASELINE),
    cluster=st.just("8xFAKE-80GB"),
    budget=st.sampled_from(["16x", "0.5h", "3"]).map(parse_budget),
    tuner=st.text(max_size=9),
    seed=st.integers(0, 9),
    options=st.dictionaries(st.text(max_size=5), plain, max_size=3),
    approvals=st.lists(st.sampled_from(["fp8", "mxfp8"]), max_size=2),
    rules=st.builds(AnswerRules, repeats=st.sampled_from(["stored", "run"]), retries=st.integers(0, 3)),
    world=st.dictionaries(st.sampled_from(["failures", "defects"]), st.floats(0, 9), max_size=2),
    gate=st.booleans(),
)


@given(specs)
def test_a_spec_survives_its_plain_form(spec: CampaignSpec) -> None:
    stored = json.loads(json.dumps(spec.to_json()))
    again = CampaignSpec.from_json(stored)
    assert again.to_json() == stored
    assert again == replace(spec, approvals=again.approvals, options=again.options, carried_over=again.carried_over)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> CampaignRecord:
    out = tmp_path_factory.mktemp("sealed")
    campaign(out, origin={"file": "as it came in"})
    return read_campaign(out)


def test_a_campaign_fits_its_seals_killed_or_not(record: CampaignRecord) -> None:
    assert len(record.runs) > 5
    assert broken_seal(record) is None
    cut = replace(record.runs[-1], report=None, charged_us=None)
    cut_off = replace(record, runs=(*record.runs[:-1], cut))
    assert (
        broken_seal(cut_off)
        == f"{len(record.runs)} runs were sealed when they finished and {len(record.runs) - 1} are stored"
    )
    assert broken_seal(replace(cut_off, events=record.events[:-1])) is None


EDITS = {
    "label": "999-search",
    "purpose": "twin",
    "recipe": BASELINE.with_settings({"tp": 7}),
    "proposal": {"changed": {}, "reason": "another", "lesson": None, "predicted": {}},
    "reserved_us": 1,
    "charged_us": 1,
    "repeats": "000-baseline",
}


@pytest.mark.parametrize("field", EDITS)
@pytest.mark.parametrize("place", [0, 3, -1])
def test_an_edit_of_any_field_of_any_run_is_named(record: CampaignRecord, field: str, place: int) -> None:
    runs = list(record.runs)
    runs[place] = replace(runs[place], **{field: EDITS[field]})
    assert str(broken_seal(replace(record, runs=tuple(runs)))).startswith(f"run {runs[place].label}: ")


@given(data=st.data())
def test_so_is_an_edit_of_any_figure_of_a_report(record: CampaignRecord, data: Any) -> None:
    place = data.draw(st.integers(0, len(record.runs) - 1))
    runs = list(record.runs)
    report = runs[place].report
    assert report is not None
    edits = {"loss": (*report.loss, 0.5), "startup_s": report.startup_s + 1, "message": "x", "step_times_s": (1.5,)}
    field = data.draw(st.sampled_from(sorted(edits)))
    runs[place] = replace(runs[place], report=report.model_copy(update={field: edits[field]}))
    assert str(broken_seal(replace(record, runs=tuple(runs)))).startswith(f"run {runs[place].label}: ")


def test_so_are_the_request_the_origin_and_the_order(record: CampaignRecord) -> None:
    other = replace(record, spec={**record.spec, "seed": 7})
    assert "or the request" in str(broken_seal(other))
    events = tuple((kind, {"file": "x"} if kind == ORIGIN else data) for kind, data in record.events)
    assert "or the request" in str(broken_seal(replace(record, events=events)))
    first, second, *rest = record.runs
    assert broken_seal(replace(record, runs=(second, first, *rest))) is not None
    assert broken_seal(replace(record, runs=record.runs[:-1])) is not None


def test_start_up_bounds_are_asked_once_and_kept(tmp_path: Path) -> None:
    asked = []

    class Moody(FakeCluster):
        def startup_bound_s(self, recipe: Any) -> float:
            asked.append(recipe.digest)
            return super().startup_bound_s(recipe)

    result = campaign(tmp_path, cluster=Moody(quick_by_tp))
    assert len(asked) == len(set(asked))
    bounds = read_campaign(tmp_path).startup_bounds_s
    assert bounds == dict.fromkeys(asked, 4.0)
    assert result.gpu_hours_spent <= result.gpu_hours_budget


def test_a_campaign_refused_before_its_first_run_leaves_nothing_of_itself(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--budget"):
        campaign(tmp_path, spec=spec_for("1x"), origin={"file": "one"})
    campaign(tmp_path, spec=spec_for("16x"), origin={"file": "two"}, tuner_factory=lambda task: Stubborn(task.baseline))
    record = read_campaign(tmp_path)
    assert [data for kind, data in record.events if kind == ORIGIN] == [{"file": "two"}]
    assert broken_seal(record) is None
    with open_store(tmp_path, spec_for("16x")) as store:
        assert store.event(ORIGIN) == {"file": "two"}
