"""A user's script on a simulated cluster, and what a conversation about it needs, without a campaign around."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

from attune_lab.agent.claude.session import Session
from attune_lab.agent.claude.toolbox import as_text
from attune_lab.agent.claude.tools import toolbox
from attune_lab.agent.rules import Rulebook
from attune_lab.cluster.simulated import SimulatedCluster, world_seed
from attune_lab.contracts import Desk, Proposal, TuningTask
from attune_lab.gate import CampaignGate
from attune_lab.lessons import catalog as lessons
from attune_lab.llm.chat import Answer
from attune_lab.space import search_space
from attune_lab.workbench import open_workbench
from experiments.claude_offline.expert import CLUSTER
from tests.attune_lab.agent.agent_world import FakeBudget
from tests.attune_lab.agent.claude.scripted_expert import SEED

NAME = "train_air.sh"


@cache
def bench():
    return open_workbench("glm-4.5-air", CLUSTER)


def make_task(folder, **options):
    """The task of a campaign in ``folder``."""
    b = bench()
    desk = Desk(
        NAME,
        folder,
        CampaignGate(b.cluster),
        lambda recipe: b.file.render(recipe).decode(),
        lambda text: b.file.reread(text).recipe,
    )
    space = search_space(b.baseline, b.cluster)
    return TuningTask(
        b.baseline, b.cluster, space, b.cost_model, FakeBudget(), SEED, {"policy": "claude", **options}, desk
    )


def cluster(folder):
    """The simulated cluster with its logs in ``folder``."""
    return SimulatedCluster(bench().cluster, world_seed(SEED), log_dir=folder / "logs")


class Bench:
    """A session with two runs of the baseline, and its tools.

    ``use`` is a call as the model makes it, its result as JSON; ``run`` makes a run of a recipe that was not asked for.
    """

    def __init__(self, folder, without=()):
        self.task = make_task(folder)
        self.session = Session(self.task, self.task.desk, Rulebook(without), lessons.load())
        self.session.author = "scripted"
        self.cluster, self.tools = cluster(folder), toolbox()
        for number in range(2):
            self._tell(Proposal(self.task.baseline), 20, f"00{number}-baseline")

    def use(self, name, **given):
        """The outcome of a call: a result as JSON, a launch or a finish."""
        outcome = self.tools.use(self.session, name, given)
        return json.loads(as_text(outcome)) if isinstance(outcome, dict) else outcome

    def run(self, label, **edits):
        """A run of the baseline with ``edits``."""
        space = self.task.space
        recipe = space.apply(self.task.baseline, edits)
        return self._tell(Proposal(recipe, space.changed(self.task.baseline, recipe)), 8, label)

    def _tell(self, proposal, steps, label):
        report = self.cluster.run(proposal.recipe, steps, label=label)
        self.session.journal.record(proposal, report)
        return report

    def draft(self):
        """The text of the draft."""
        return self.session.text(self.session.draft)


class ChatOf:
    """A conversation that says the given answers, the last again and again. ``turns`` keeps what was asked."""

    name = "scripted"

    def __init__(self, *answers):
        self._answers, self.turns = answers, []

    def say(self, turn):
        self.turns.append(turn)
        answer = self._answers[min(len(self.turns), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        turn = len(self.turns)  # an id is never used twice
        content = tuple(
            {**block, "id": f"{block['id']}_{turn}"} if "id" in block else block for block in answer.content
        )
        return replace(answer, content=content)


def answer(*calls, stop="tool_use", words=""):
    """An answer with calls, pairs of a tool's name and its input."""
    said = ({"type": "text", "text": words},) if words else ()
    used = tuple(
        {"type": "tool_use", "id": f"toolu_{place}", "name": name, "input": given}
        for place, (name, given) in enumerate(calls)
    )
    return Answer((*said, *used), stop, 100, 10, 0.001)


def results_of(turn):
    """The blocks that answer the last answer's calls."""
    content = turn.messages[-1]["content"]
    return [block for block in content if block["type"] == "tool_result"] if isinstance(content, list) else []
