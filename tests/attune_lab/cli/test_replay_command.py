"""`attune replay`: exit codes, the JSON object, and what a person reads."""

from __future__ import annotations

from pathlib import Path

TINY = Path(__file__).parent / "tiny.sh"


def test_a_campaign_is_replayed_and_an_edited_one_is_named(attune) -> None:
    words = ("tune", TINY, "--cluster", "8xH100-SXM5-80GB", "--budget", "16x", "--seed", "104", "--out", "it", "--json")
    assert attune(*words).code == 0
    done = attune("replay", "it", "--json")
    assert (done.code, done.stderr) == (0, "")
    assert done.json["reproduced"] is True
    assert done.json["differences"] == []
    assert done.json["runs"] > 3
    shown = attune("replay", "it")
    assert shown.stdout == f"reproduced, bit for bit: {done.json['runs']} runs\n"

    Path("it/shipped/tiny.sh").write_text("echo \x1b[2J")
    edited = attune("replay", "it", "--json")
    assert (edited.code, edited.json["reproduced"]) == (1, False)
    shown = attune("replay", "it")
    assert shown.code == 1
    assert shown.stdout.splitlines()[0] == "not reproduced"
    assert "shipped/tiny.sh is not what the campaign shipped" in shown.stdout


def test_what_is_no_campaign_is_unusable_input(attune) -> None:
    Path("empty").mkdir()
    for name in ("empty", "nowhere"):
        outcome = attune("replay", name, "--json")
        assert outcome.code == 2
        assert outcome.json["error"]["message"].startswith(f"{name} holds no campaign")
