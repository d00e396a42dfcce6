"""The claude policy seen without a key: the command of its page, and the scripted expert in other worlds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attune_lab.agent.rules import RULES
from attune_lab.tuning import TuneRequest, tune_recipe
from experiments.claude_offline.__main__ import LABEL
from experiments.claude_offline.expert import CLUSTER, expert, played, user_file
from experiments.claude_offline.messages_api import messages_api

pytest.importorskip("anthropic")
ROOT = Path(__file__).parents[2]


def test_the_command_of_the_page_prints_a_campaign_and_says_that_it_is_scripted(tmp_path, monkeypatch):
    (line,) = re.findall(
        r"^    (python -m experiments\.claude_offline .*)$", (ROOT / "docs/claude.md").read_text(), re.M
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    command = [sys.executable, *shlex.split(line)[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(LABEL) == 2
    assert "chose" in done.stdout
    assert "none-is-needed" not in done.stdout + done.stderr
    shipped = tmp_path / "offline" / "campaign" / "shipped" / "train_air.sh"
    assert shipped.read_bytes() != (tmp_path / "offline" / "train_air.sh").read_bytes()


@pytest.mark.parametrize(
    ("seed", "without"), [(107, []), (113, ["check-memory-first"]), (127, [rule.name for rule in RULES])]
)
def test_the_expert_comes_to_its_end_in_other_worlds_and_without_rules(tmp_path, monkeypatch, seed, without):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none is needed here")
    options = {"policy": "claude", "model": "scripted-expert", "without": without}
    with messages_api(played(expert)) as api:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        request = TuneRequest(
            str(user_file(tmp_path)), CLUSTER, "40x", seed=seed, out=tmp_path / "out", options=tuple(options.items())
        )
        result = tune_recipe(request)
    assert result["stop_reason"].startswith("the tuner stopped: scripted-expert chose")
    assert result["gain_pct"] > 3
