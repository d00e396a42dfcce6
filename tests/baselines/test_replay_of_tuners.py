"""Campaigns of other tuners, and of an arrangement of agents with scripted players, are made again bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from attune_lab.replay import replay_campaign
from attune_lab.tuning import TuneRequest, tune_recipe

TINY = Path(__file__).parents[1] / "attune_lab" / "cli" / "tiny.sh"


@pytest.mark.parametrize("tuner", ["random", "optico", "random+repair"])
def test_the_campaign_of_a_tuner_is_made_again(tmp_path: Path, tuner: str) -> None:
    tune_recipe(TuneRequest(str(TINY), "8xH100-SXM5-80GB", "16x", tuner=tuner, seed=100, out=tmp_path / "it"))
    assert replay_campaign(tmp_path / "it").differences == ()


def test_the_transcript_of_scripted_players_is_used_and_an_edited_one_named(tmp_path: Path) -> None:
    transcript, out = tmp_path / "said.jsonl", tmp_path / "it"
    options = (("transcript", str(transcript)),)
    tune_recipe(TuneRequest(str(TINY), "8xH100-SXM5-80GB", "16x", tuner="optico", options=options, seed=100, out=out))
    before = transcript.read_bytes()
    assert replay_campaign(out).differences == ()
    assert transcript.read_bytes() == before
    transcript.write_bytes(before.replace(b"memory", b"pepper", 1))
    (found,) = replay_campaign(out).differences
    assert f"{transcript}, line 1: this or an earlier line was edited" in found
