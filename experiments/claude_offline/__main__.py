"""One campaign of `attune tune --policy claude` without a key: the real command, SDK and tools, on this machine alone.

What answers is a scripted expert, no language model, and the cluster is simulated: the figures say nothing of Claude.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from attune_lab.agent.rules import RULES
from attune_lab.tuning import DECISIONS
from experiments.claude_offline.expert import CLUSTER, expert, played, user_file
from experiments.claude_offline.messages_api import messages_api

LABEL = "Scripted: an expert written by hand answers in place of Claude, and the cluster is simulated."


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of `attune tune`, once the campaign and what was decided in it are printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: campaigns/claude-offline-seedN; resumed when it exists")
    parser.add_argument("--seed", type=int, default=103, help="of the simulated world")
    parser.add_argument("--budget", default="40x")
    parser.add_argument("--without", action="append", default=[], choices=[rule.name for rule in RULES])
    asked = parser.parse_args(arguments)
    out = asked.out or Path("campaigns") / f"claude-offline-seed{asked.seed}"
    out.mkdir(parents=True, exist_ok=True)
    words = [
        "tune", str(user_file(out)), "--cluster", CLUSTER, "--budget", asked.budget, "--seed", str(asked.seed),
        "--policy", "claude", "--option", "model=scripted-expert", "--out", str(out / "campaign"),
    ]  # fmt: skip
    words += [word for rule in asked.without for word in ("--without", rule)]
    print(f"{LABEL}\n$ attune {shlex.join(words)}", flush=True)
    with messages_api(played(expert)) as api:
        known = {**os.environ, "ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "none-is-needed"}
        command = [sys.executable, "-c", "from attune_lab.cli import main; main()", *words]
        code = subprocess.run(command, env=known, check=False).returncode
    decisions = out / "campaign" / DECISIONS
    if code == 0 and decisions.exists():
        print(f"\nWhat was decided ({decisions}):\n{decisions.read_text()}\n{LABEL}")
    return code


if __name__ == "__main__":
    sys.exit(main())
