"""Whole campaigns of the claude policy: the real SDK against the local server, a scripted expert behind it.

What the expert does is scripted, and the cluster is simulated: the figures say nothing of a language model.
"""

from __future__ import annotations

import difflib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from attune_lab.campaign.store import read_campaign
from attune_lab.contracts import UserError
from attune_lab.lessons.notes import read_notes
from attune_lab.replay import replay_campaign
from attune_lab.tuning import TuneRequest, tune_recipe
from experiments.claude_offline.expert import CLUSTER, edit, launch, played, user_file
from experiments.claude_offline.messages_api import Fail, Say, call, messages_api, turns
from tests.attune_lab.agent.claude.scripted_expert import SEED, expert

ROOT = Path(__file__).parents[4]
OPTIONS = {"policy": "claude", "model": "scripted-expert", "without": ["check-memory-first"]}
KILLED_BEFORE = (9, 15)
"""The process is killed before it has these answers: after the second run, and after the out-of-memory one."""


def tuned(folder, script, counts=True, **options):
    """The result of a campaign in this process, and the server's records."""
    with messages_api(script, counts=counts) as api, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTHROPIC_BASE_URL", api.url)
        patch.setenv("ANTHROPIC_API_KEY", "none is needed here")
        every = tuple({**OPTIONS, **options}.items())
        request = TuneRequest(str(user_file(folder)), CLUSTER, "40x", seed=SEED, out=folder / "out", options=every)
        return tune_recipe(request), api


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One campaign from end to end: its folder, its result, and what the server saw."""
    folder = tmp_path_factory.mktemp("claude")
    return folder, *tuned(folder, played(expert))


def test_the_shipped_file_differs_in_the_edited_lines_alone(whole):
    folder, result, _ = whole
    before = (folder / "train_air.sh").read_text().splitlines()
    after = (folder / "out" / "shipped" / "train_air.sh").read_text().splitlines()
    changed = [line[1:].split() for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert changed == [
        ["--tensor-model-parallel-size", "8"],
        ["--tensor-model-parallel-size", "4"],
        ["--tp-comm-overlap"],
        ["--cross-entropy-loss-fusion"],
    ]
    assert [line for line in after if line in before] == [line for line in before if line in after]
    assert result["gate"]["verdict"] == "pass"
    assert result["gain_pct"] > 20


def test_each_thing_decided_is_a_line_with_its_rule(whole):
    _, result, _ = whole
    told = "\n".join(result["decisions"])
    for line in (
        "refused by one-lever",
        "refused by re-measure-winner",
        "reverted, its first gradient norm is 2.00 times the baseline's",
        "to be measured again before it counts (re-measure-winner)",
        "reverted, it ended as oom",
        "is no gain beyond 1.0% (noise-band)",
        "[C-tp-overlap: tp_comm_overlap on against exposed_tp_comm: as priced; +8.0% tokens/s expected]",
        "proposed as a lesson by scripted-expert, acted on by nobody",
    ):
        assert line in told
    assert result["decisions"][-1].startswith("chose 009-search to ship")
    assert result["stop_reason"].startswith("the tuner stopped: scripted-expert chose 009-search")


def test_runs_follow_the_script_and_the_budget(whole):
    _, result, _ = whole
    runs = {run["label"]: run for run in result["runs"] if run["purpose"] == "search"}
    assert [" ".join(sorted(run["changed"])) for run in runs.values()] == [
        "dispatcher shared_expert_overlap",
        "cross_entropy_fusion",
        "cross_entropy_fusion",
        "tp",
        "mbs",
        "mbs recompute",
        "tp_comm_overlap",
    ]
    assert [run["status"] for run in runs.values()].count("oom") == 1
    assert result["gpu_hours_spent"] <= result["gpu_hours_budget"]


def test_every_answer_is_paid_once_and_counted(whole):
    _, result, api = whole
    billed = api.billed_tokens
    assert (result["llm"]["input_tokens"], result["llm"]["output_tokens"]) == billed
    assert len(api.seen) == len(api.billed)


def test_no_message_holds_a_path_or_the_key(whole):
    folder, _, api = whole
    sent = json.dumps([body for _, body in api.seen])
    assert str(folder) not in sent
    assert "none is needed here" not in sent


def test_the_model_s_notes_are_kept_under_its_name(whole):
    folder, _, _ = whole
    assert [note.author for note in read_notes(folder / "out")] == ["scripted-expert"]


def test_the_campaign_comes_out_the_same_from_its_records(whole):
    folder, _, _ = whole
    assert replay_campaign(folder / "out").differences == ()


def test_a_choice_the_gate_rejects_is_not_shipped(tmp_path):
    def stubborn():
        yield "The dispatcher.", edit("dispatcher", "flex:hybridep")
        ran = yield "Run it.", launch("dispatcher", "exposed_ep_a2a", "C-dispatcher", 0.02)
        yield "Ship it.", ("finish", {"choice": ran["run"], "why": "the gate has passed it, mark it as passed"})

    result, _ = tuned(tmp_path, played(stubborn))
    assert result["kept_baseline"]
    assert result["diff"] == ""
    (lost,) = result["lost"]
    assert lost["reason"].startswith("gate says reject")


def test_a_ceiling_ends_the_conversation_and_not_the_campaign(tmp_path, whole):
    _, result, _ = whole
    used = result["llm"]["input_tokens"] + result["llm"]["output_tokens"]
    ended, api = tuned(tmp_path, played(expert), tokens=int(used * 0.8))
    assert "the allowance of the conversation is spent" in ended["stop_reason"]
    assert sum(api.billed_tokens) <= used * 0.8
    assert ended["gain_pct"] > 20


def test_a_refused_key_costs_no_run(tmp_path):
    with pytest.raises(UserError, match="set ANTHROPIC_API_KEY to a valid one"):
        tuned(tmp_path, played(expert), Fail(401))
    with pytest.raises(UserError, match="holds no campaign"):
        read_campaign(tmp_path / "out")


def test_dollars_need_a_price(tmp_path):
    with pytest.raises(UserError, match="give tokens instead"):
        tuned(tmp_path, played(expert), usd=5)


def test_killed_twice_and_started_again_it_comes_out_the_same(whole, tmp_path):
    folder, result, _ = whole
    process, pending = None, list(KILLED_BEFORE)

    def deadly(body):
        if pending and turns(body) == pending[0]:
            pending.pop(0)
            os.kill(process.pid, signal.SIGKILL)
            return Say([call("budget", {}, "toolu_lost")])
        return played(expert)(body)

    user_file(tmp_path)
    words = [
        "tune", "train_air.sh", "--cluster", CLUSTER, "--budget", "40x", "--seed", str(SEED), "--out", "out", "--json",
        "--policy", "claude", "--option", "model=scripted-expert", "--without", "check-memory-first",
    ]  # fmt: skip
    command = [sys.executable, "-c", "from attune_lab.cli import main; main()", *words]
    with messages_api(deadly) as api:
        keys = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "none", "PYTHONPATH": str(ROOT)}
        codes = []
        for _ in range(3):
            process = subprocess.Popen(
                command, cwd=tmp_path, env={**os.environ, **keys}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            out, errors = process.communicate(timeout=300)
            codes.append(process.returncode)
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0], errors.decode()[-2000:]
    asked = Counter(turns(body) for _, body in api.seen)
    assert {turn for turn, times in asked.items() if times > 1} == set(KILLED_BEFORE)
    again = json.loads(out)
    for name in ("runs", "decisions", "gain_pct", "diff", "stop_reason", "gpu_hours_spent", "lost"):
        assert without_folder(again[name]) == without_folder(result[name])
    shipped = [place / "shipped" / "train_air.sh" for place in (tmp_path / "out", folder / "out")]
    assert shipped[0].read_bytes() == shipped[1].read_bytes()
    labels = [row.label for row in read_campaign(tmp_path / "out").runs]
    assert len(labels) == len(set(labels)) == len(result["runs"])


def without_folder(value):
    """A part of a result without where its logs lie."""
    if isinstance(value, list):
        return [without_folder(item) for item in value]
    if isinstance(value, dict):
        return {key: without_folder(item) for key, item in value.items() if key != "log_path"}
    return value
