"""The file of evidence: it only grows, merges in any order, and is refused where it is damaged."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from pathlib import Path

import pytest
from evidence_for_tests import learnt, seen
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.lessons.records import LearntCampaign, Observation, Records, read_records, update_records

CAMPAIGNS = tuple(learnt(seen({"tp": 4}, 0.01 * n), place=n) for n in range(5))


@st.composite
def files(draw: st.DrawFn) -> Records:
    """Some of the campaigns, some of them retracted or restored, some read by another version."""
    chosen = draw(st.lists(st.sampled_from(CAMPAIGNS), unique_by=lambda campaign: campaign.digest))
    records = Records(campaigns=tuple(c.model_copy(update={"version": draw(st.sampled_from("01"))}) for c in chosen))
    for campaign in chosen:
        for change in range(draw(st.integers(0, 2))):
            records = records.retracted(campaign.digest, draw(st.sampled_from(["a", "b"])), undo=change % 2 == 1)
    return records


@given(files(), files(), files())
def test_merging_is_commutative_associative_and_idempotent(a: Records, b: Records, c: Records) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + a == a
    assert a + Records() == a


@given(files())
def test_a_file_comes_back_as_written(records: Records) -> None:
    assert Records.model_validate_json(records.model_dump_json()) == records


def test_a_retraction_survives_learning_the_campaign_again() -> None:
    records = Records(campaigns=CAMPAIGNS).retracted(CAMPAIGNS[2].digest, "the recipe was faulty")
    again = records + Records(campaigns=CAMPAIGNS)
    assert [c.digest for c in again.campaigns if c.standing.retracted] == [CAMPAIGNS[2].digest]
    restored = again.retracted(CAMPAIGNS[2].name, "it was not", undo=True)
    assert not any(campaign.standing.retracted for campaign in (restored + records).campaigns)
    with pytest.raises(UserError, match="retracted already"):
        records.retracted(CAMPAIGNS[2].digest, "again")
    with pytest.raises(UserError, match="counts already"):
        records.retracted(CAMPAIGNS[1].digest, "", undo=True)
    with pytest.raises(UserError, match="no campaign is called nobody"):
        records.retracted("nobody", "x")


def test_an_ambiguous_name_is_refused_with_the_digests() -> None:
    twice = Records(campaigns=(CAMPAIGNS[0], CAMPAIGNS[1].model_copy(update={"name": CAMPAIGNS[0].name})))
    with pytest.raises(UserError, match=CAMPAIGNS[0].digest[:12]):
        twice.find(CAMPAIGNS[0].name)


@pytest.mark.parametrize(
    "change",
    [
        {"measured": None},
        {"se": None},
        {"outcome": "oom"},
        {"measured": float("nan")},
        {"se": 0.0},
        {"edits": {}},
        {"edits": {"tp": [1]}},
        {"edits": {"tp": [1, [2]]}},
        {"base": "x"},
        {"outcome": "splendid"},
        {"lesson": "x" * 81},
        {"execute": "rm"},
    ],
)
def test_what_is_no_observation_is_refused(change: dict[str, object]) -> None:
    good = seen({"tp": 4}, 0.1).model_dump()
    assert Observation.model_validate(good)
    with pytest.raises(ValidationError):
        Observation.model_validate({**good, **change})


def test_a_campaign_counts_once() -> None:
    with pytest.raises(ValidationError, match="twice"):
        Records(campaigns=(CAMPAIGNS[0], CAMPAIGNS[0]))


@pytest.mark.parametrize(
    "text", ["", "[", "{}x", '{"format": "other"}', '{"version": 2}', '{"campaigns": [{"digest": 5}]}']
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"mine\.json") as refused:
        read_records(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError):
        update_records(path, lambda known: known)
    assert path.read_text() == text


def test_a_file_that_cannot_be_written_is_the_environments_fault(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(EnvironmentFault, match=r"folder\.json"):
        update_records(tmp_path / "folder.json", lambda known: known)


def _learn(path: Path, campaign: LearntCampaign) -> None:
    update_records(path, lambda known: known + Records(campaigns=(campaign,)))


def test_a_file_never_grows_beyond_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.json"
    _learn(path, CAMPAIGNS[0])
    before = path.read_bytes()
    monkeypatch.setattr("attune_lab.lessons.records.LARGEST_FILE", len(before))
    with pytest.raises(UserError, match="learn into another file"):
        _learn(path, CAMPAIGNS[1])
    assert path.read_bytes() == before


def test_a_file_of_another_version_is_named_as_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(Records().model_dump_json().replace('"version":1', '"version":2'))
    with pytest.raises(UserError, match="another version of attune"):
        read_records(path)


def test_a_link_to_a_shared_file_stays_one(tmp_path: Path) -> None:
    shared, mine = tmp_path / "shared" / "lessons.json", tmp_path / "mine.json"
    _learn(shared, CAMPAIGNS[0])
    mine.symlink_to(shared)
    _learn(mine, CAMPAIGNS[1])
    assert mine.is_symlink()
    assert read_records(shared)[0] == Records(campaigns=CAMPAIGNS[:2])


def test_processes_that_learn_at_once_lose_nothing(tmp_path: Path) -> None:
    path, fork = tmp_path / "deep" / "lessons.json", multiprocessing.get_context("fork")
    writers = [fork.Process(target=_learn, args=(path, campaign)) for campaign in CAMPAIGNS]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert read_records(path)[0] == Records(campaigns=CAMPAIGNS)
    assert sorted(p.name for p in path.parent.iterdir()) == ["lessons.json", "lessons.json.lock"]


def _learn_for_ever(path: Path) -> None:
    for n in range(10_000):
        _learn(path, learnt(seen({"tp": 4}, 0.01), place=n))


def test_a_kill_leaves_the_file_before_or_after(tmp_path: Path) -> None:
    path, fork = tmp_path / "lessons.json", multiprocessing.get_context("fork")
    known = 0
    for kill in range(6):
        learner = fork.Process(target=_learn_for_ever, args=(path,))
        learner.start()
        learner.join(timeout=0.15 + 0.03 * kill)
        learner.kill()
        learner.join()
        if path.exists():
            campaigns = len(read_records(path)[0].campaigns)
            assert campaigns >= known
            known = campaigns
    _learn(path, learnt(seen({"tp": 4}, 0.01), place=99_999))  # the lock went with the process that held it
    assert len(read_records(path)[0].campaigns) >= known


KEYS = st.sampled_from(["campaigns", "observations", "digest", "edits", "traits", "x"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def _refusal(path: Path) -> str:
    """What reading the file is refused with; empty when it is read."""
    try:
        read_records(path)
    except UserError as refused:
        return str(refused)
    return ""


@given(ANYTHING)
def test_whatever_stands_in_a_file_is_read_or_refused_in_one_sentence(content: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.json"
        path.write_text(json.dumps(content))
        said = _refusal(path)
    assert "\n" not in said
    assert len(said) < 1000
    assert said or content in ({}, {"campaigns": []})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"campaigns": ' + "[" * 5000 + "]" * 5000 + "}", "1e999", "9" * 5000])
def test_a_file_made_to_break_a_reader_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "deep.json").write_text(text)
    with pytest.raises(UserError, match=r"deep\.json"):
        read_records(tmp_path / "deep.json")
