"""TREX-style tree search: a tree of recipes whose edges are single levers, searched by UCT.

The published system is a pair of agents, a Researcher and an Executor, whose experiments form a tree in which Monte
Carlo tree search chooses what to expand. **Source:** TREX, arXiv 2604.14116 (abstract).

Faithful: the tree of experiments, the choice by UCT, one change an edge. Reconstructed: the value of a node is the best
gain in its subtree as a share of the best gain seen; the number of children grows with the square root of the visits
(progressive widening); a child that runs out of memory gets a sibling, the same with more recomputation. The Researcher
is by default the cost model, which ranks the legal one-parameter changes; with ``llm=scripted`` or ``llm=claude`` it is
a role that is asked for the next change of a node.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from attune_lab.contracts import Proposal, RunReport, TuningTask
from attune_lab.llm.chat import AllowanceSpent
from attune_lab.llm.opening import KINDS
from attune_lab.llm.scripted import Script
from attune_lab.recipe import Recipe
from baselines.agents.desk import MAX_REASKS, Desk, Draft
from baselines.agents.desk import OPTIONS as DESK_OPTIONS
from baselines.agents.mutation import mutate
from baselines.agents.replies import proposal_schema
from baselines.common.history import History, Trial
from baselines.common.moves import moves
from baselines.common.options import Option, read_options
from baselines.common.planned import Plan, PlannedTuner
from baselines.common.pricing import Pricing
from baselines.common.proposals import propose
from baselines.common.recomputation import stronger

TREE_OPTIONS = {"exploration": Option(0.4, least=0.0, most=100.0), "widening": Option(1.0, least=0.1, most=100.0)}

LEAST_GAIN = 0.01
"""Gains are shares of the best one, or of this where nothing better was found: noise is not blown up."""

Lever = tuple[Recipe, str]
"""A child to run, and the change that makes it."""


@dataclass
class Node:
    """A recipe that ran.

    Attributes:
        gain: in throughput, on the baseline.
        tried: children run, those that failed included.
        visits, best: runs in its subtree, and the best gain among them.
        dry: nobody knows another lever for it.
    """

    recipe: Recipe
    gain: float = 0.0
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    tried: int = 0
    visits: int = 1
    best: float = 0.0
    dry: bool = False

    @property
    def exhausted(self) -> bool:
        """Whether nothing can be expanded in its subtree."""
        return self.dry and all(child.exhausted for child in self.children)


class Source(Protocol):
    """Who thinks of a node's children."""

    def next_lever(self, recipe: Recipe) -> Lever | None:
        """A child of ``recipe`` that has not run, or None where there is none left."""
        ...


class TreeSearch(PlannedTuner):
    """UCT over recipes.

    Options of the task: ``exploration`` (weight of the uncertainty), ``widening`` (children for each root of visits),
    ``llm`` (``none``, ``scripted`` or ``claude``) and, with a model, the options of every arrangement of agents.

    Raises:
        UserError: an unknown option or value.
    """

    name = "tree-search"

    def __init__(self, task: TuningTask) -> None:
        known = {**DESK_OPTIONS, **TREE_OPTIONS, "llm": Option("none", choices=("none", *KINDS))}
        self._options = read_options(self.name, task.options, known)
        super().__init__(task)
        self._pricing = Pricing(task, self.history)
        self._researcher = None if self._options["llm"] == "none" else Researcher(task)
        self._source: Source = self._researcher or RankedMoves(task, self.history, self._pricing)

    @property
    def usage(self) -> Mapping[str, float]:
        """What the Researcher's model used; empty where the cost model plays it."""
        return {} if self._researcher is None else self._researcher.usage

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """File the report; the Researcher reads it too."""
        super().tell(proposal, report)
        if self._researcher is not None:
            self._researcher.tell(proposal, report)

    def plan(self) -> Plan:
        """Expand the node that UCT chooses, until the tree has no lever left."""
        root = Node(self.task.baseline)
        while not root.exhausted:
            node = self.select(root)
            lever = self._source.next_lever(node.recipe)
            if lever is None:
                node.dry = True
            else:
                yield from self._expand(node, *lever)
        out_of_tokens = "" if self._researcher is None else self._researcher.stop_reason
        return out_of_tokens or "no lever is left anywhere in the tree"

    def select(self, root: Node) -> Node:
        """The node to expand: the first on the way down that may have another child."""
        node = root
        while True:
            open_ = [child for child in node.children if not child.exhausted]
            if not open_ or (not node.dry and node.tried < self._options["widening"] * math.sqrt(node.visits)):
                return node
            scores = [self._score(child, node.visits, root.best) for child in open_]
            node = open_[scores.index(max(scores))]

    def _score(self, child: Node, visits: int, best: float) -> float:
        """Upper confidence bound of a child. **Source:** Kocsis and Szepesvari 2006 (UCT)."""
        uncertainty = math.sqrt(math.log(visits) / child.visits)
        return child.best / max(best, LEAST_GAIN) + float(self._options["exploration"]) * uncertainty

    def _expand(self, node: Node, recipe: Recipe, change: str) -> Generator[Proposal, Trial, None]:
        """Run a child; while it runs out of memory, its siblings with more recomputation too."""
        trial = yield self._proposal(recipe, change)
        self._attach(node, trial)
        for sibling in stronger(self.task.space, recipe):
            if trial.status != "oom":
                return
            if self._pricing.fits(self._pricing.of([sibling]))[0]:
                level = self.task.space.value(sibling, "recompute")
                trial = yield self._proposal(sibling, f"{change}, out of memory: with recompute {level}")
                self._attach(node, trial)

    def _attach(self, node: Node, trial: Trial) -> None:
        """Hang a child that ran below ``node``, and tell its ancestors; one that failed is a visit without a gain."""
        node.tried += 1
        base, gain = self.history.get(self.task.baseline), 0.0
        if trial.step_time_s is not None:
            gain = base.step_time_s / trial.step_time_s - 1 if base is not None and base.step_time_s else 0.0
            node.children.append(Node(trial.recipe, gain, node, best=gain))
        ancestor: Node | None = node
        while ancestor is not None:
            ancestor.visits += 1
            ancestor.best = max(ancestor.best, gain)
            ancestor = ancestor.parent

    def _proposal(self, recipe: Recipe, change: str) -> Proposal:
        return propose(self.task, recipe, change, self._pricing.of([recipe])[0])


class RankedMoves:
    """The legal one-parameter changes of a node that should fit, by predicted step time."""

    def __init__(self, task: TuningTask, history: History, pricing: Pricing) -> None:
        self._task, self._history, self._pricing = task, history, pricing
        self._ranked: dict[str, list[Lever]] = {}

    def next_lever(self, recipe: Recipe) -> Lever | None:
        """The best change left; whether it should fit is judged when it comes up."""
        if recipe.digest not in self._ranked:
            self._ranked[recipe.digest] = self._rank(recipe)
        left = self._ranked[recipe.digest]
        while left:
            child, change = left.pop(0)
            if not self._history.known(child) and self._pricing.fits(self._pricing.of([child]))[0]:
                return child, change
        return None

    def _rank(self, recipe: Recipe) -> list[Lever]:
        found = moves(self._task, recipe)
        priced = zip(found, self._pricing.of([move.recipe for move in found]), strict=True)
        startable = sorted((pair for pair in priced if not pair[1].problems), key=lambda pair: pair[1].step_time_s)
        return [(move.recipe, f"{move.key} to {move.value}") for move, _ in startable]


class Researcher(Desk):
    """A role that is asked for the next change of a node."""

    name = TreeSearch.name
    options: ClassVar[Mapping[str, Option]] = TREE_OPTIONS
    _node: Recipe | None = None

    @property
    def incumbent(self) -> Recipe:
        """The node that is expanded: what changes are made to."""
        return self._node or self.task.baseline

    def scripts(self) -> Mapping[str, Script]:
        """Rules of thumb."""
        return {"researcher": mutate}

    def inception(self, role: str) -> str:
        """Who it is."""
        return (
            "You are the Researcher. Experiments form a tree: every node is a recipe that ran, every edge one change. "
            "You are shown a node and propose one change that has not been tried and is likely to make it faster."
        )

    def next_lever(self, recipe: Recipe) -> Lever | None:
        """What the role proposes for a node; None after a few replies that cannot be used, or without tokens left."""
        self._node = recipe
        for attempt in range(MAX_REASKS):
            try:
                drafts = self.deliberate(attempt)
            except AllowanceSpent as spent:
                self.stop_reason = str(spent)
                return None
            for checked in (self.check(draft) for draft in drafts):
                if not checked.faults:
                    return checked.recipe, checked.draft.reasoning[:300] or "no reason given"
                self.refuse(checked)
        return None

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """One draft for the node."""
        shown = self.situation(attempt)
        facts = {**shown, "inspirations": [], "error": {}, "patch": "diff", "draw": 0.0}
        request = "The incumbent is the node. Propose one change of it."
        body = self.say("researcher", shown, request, proposal_schema(self.card), facts)
        return [Draft(body.get("changes", {}), body.get("lever", ""), body.get("reasoning", ""))] if body else []
