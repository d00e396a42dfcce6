"""What every arrangement of agents does alike: asks models, checks drafts, remembers runs, accounts for tokens."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Proposal, RunReport, TuningTask
from attune_lab.llm import Request, UnusableReply
from attune_lab.llm.chat import AllowanceSpent
from attune_lab.llm.opening import KINDS, open_llm, transcript_path
from attune_lab.llm.scripted import Script
from attune_lab.recipe import Recipe, Value
from attune_lab.recipe.effective import effective
from baselines.agents.cards import Facts, card_of, question, standing_text
from baselines.agents.replies import accepted
from baselines.agents.traces import Step
from baselines.common.history import History, Trial
from baselines.common.options import Option, read_options
from baselines.common.proposals import propose

MAX_REASKS = 4
"""Deliberations without a usable draft before a random legal recipe is run instead."""

MAX_DRAWS = 200
"""Random recipes in a row that may all be known already before the space counts as exhausted."""

MAX_REASON = 300
"""Characters of a role's reasoning that a proposal gives as its reason."""

STRAY = "the agents had nothing usable to say: a random legal recipe"

MAX_MESSAGE = 600
"""Characters of a run's own message that are shown to a role."""

OPTIONS: Mapping[str, Option] = {
    "llm": Option("scripted", choices=KINDS),
    "model": Option(""),
    "transcript": Option(""),
    "tokens": Option(0, least=0),
    "usd": Option(0.0, least=0.0),
    "use_analytic_estimate": Option(False),
}
"""Options of every arrangement. ``tokens``, ``usd``: it stops before it uses more, 0 for no limit."""


@dataclass(frozen=True)
class Draft:
    """What an arrangement wants to run.

    Attributes:
        changes: against the incumbent, as the role wrote them.
        lever: the parameter its reasoning is about.
        vetoed: the arrangement's own checker was against it.
    """

    changes: Mapping[str, Any]
    lever: str
    reasoning: str
    vetoed: bool = False


@dataclass(frozen=True)
class Checked:
    """A draft as the search space takes it.

    Attributes:
        edits: the changes that were kept; ``dropped`` names the others.
        faults: why it is not worth a run, one sentence each.
        known: how the same recipe ended before, empty if it was never run.
    """

    draft: Draft
    recipe: Recipe
    edits: Mapping[str, Value]
    dropped: tuple[str, ...]
    faults: tuple[str, ...]
    known: str = ""


class Desk(ABC):
    """A tuner that is an arrangement of agents. Subclasses say who talks to whom in `deliberate`.

    Attributes:
        trace: every draft that was put forward, in order, with what became of it.
        stop_reason: why `ask` returned None; empty before.
    """

    name: ClassVar[str]
    options: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, task: TuningTask) -> None:
        self.task = task
        self.setting = read_options(self.name, task.options, {**OPTIONS, **self.options})
        self.card = card_of(task)
        self.history = History()
        self.trace: list[Step] = []
        self.refused: list[tuple[Recipe, dict[str, Any]]] = []
        self.iteration = 0
        self.stop_reason = ""
        self._latest: Trial | None = None
        self._queue: list[tuple[Proposal, Step]] = []
        self._steps: dict[str, Step] = {}
        self._rng = np.random.default_rng(task.seed)
        chosen = {key: self.setting[key] for key in ("model", "tokens", "usd")}
        path = transcript_path(task, self.setting["llm"], self.setting["transcript"])
        self._llm = open_llm(self.setting["llm"], self.scripts(), transcript=path, **chosen)

    @abstractmethod
    def scripts(self) -> Mapping[str, Script]:
        """The scripted player of every role."""

    @abstractmethod
    def inception(self, role: str) -> str:
        """Who a role is: the head of its system text."""

    @abstractmethod
    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """What the arrangement wants to run next, best first; `attempt` counts from 0 within an iteration."""

    @property
    def usage(self) -> Mapping[str, float]:
        """Tokens and dollars as billed, without the dollars where the price is not known; estimates if scripted."""
        return self._llm.usage

    @property
    def incumbent(self) -> Recipe:
        """The best recipe so far."""
        best = self.history.best
        return self.task.baseline if best is None else best.recipe

    def ask(self) -> Proposal | None:
        """The next recipe to run, or None once the arrangement is done."""
        while not self._queue and not self.stop_reason:
            try:
                self._queue = self._deliberated()
            except AllowanceSpent as spent:
                self.stop_reason = str(spent)
        return self._queue[0][0] if self._queue else None

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """File the outcome; a run that the infrastructure broke may be proposed again."""
        before = self.history.best_s
        trial = self.history.record(proposal.recipe, report)
        if self._queue and self._queue[0][0].recipe.digest == proposal.recipe.digest:
            _, step = self._queue.pop(0)
            self._steps[proposal.recipe.digest] = step
            step.ran, step.status = True, report.status
            step.gain = before / trial.step_time_s - 1 if trial.step_time_s and before < math.inf else 0.0
        if report.status not in INFRASTRUCTURE_FAULTS:
            self._latest = trial
            self.iteration += proposal.recipe.digest != self.task.baseline.digest

    def say(
        self, role: str, parts: Facts, request: str, schema: Facts, facts: Facts | None = None
    ) -> Mapping[str, Any]:
        """What ``role`` answers; empty where it gave no usable reply.

        Args:
            role: who is asked.
            parts: what it is shown, by name.
            request: what is wanted of it.
            schema: of the reply.
            facts: what its script reads; ``parts`` if None. The task card is added to either.

        Raises:
            AllowanceSpent: the answer could overshoot the ceiling.
        """
        system, prompt = standing_text(self.inception(role), self.card), question(parts, request)
        known = {**(parts if facts is None else facts), "card": self.card}
        try:
            return self._llm.complete(Request(role, system, prompt, known, schema)).body
        except UnusableReply:
            return {}

    def check(self, draft: Draft) -> Checked:
        """The draft as the space takes it, with what speaks against running it."""
        space, before = self.task.space, self.incumbent
        edits, dropped = accepted(draft.changes, space)
        recipe = space.apply(before, edits)
        faults, known = [f"not on the card: {key}" for key in dropped if not edits], ""
        if recipe.digest == before.digest:
            faults.append("it changes nothing")
        elif self.history.known(recipe):
            known = self.history.trial(recipe).status or "lost"
            faults.append(f"it was run before: {known}")
        else:
            faults += space.problems(recipe)
        return Checked(draft, recipe, edits, dropped, tuple(faults), known)

    def refuse(self, checked: Checked) -> None:
        """Remember that a draft was turned down, so that no role has to propose it again."""
        self.refused.append((self.incumbent, {"changes": dict(checked.draft.changes), "why": list(checked.faults)}))

    def run_facts(self, trial: Trial, *, full: bool) -> dict[str, Any]:
        """A run as a role sees it; in brief only what was changed, what was asked for, and what came of it.

        ``gain`` is on the incumbent of that time, -1 for a run that failed.
        """
        changed = self.task.space.changed(self.task.baseline, trial.recipe)
        facts: dict[str, Any] = {
            "changed_from_recipe": {key: now for key, (_, now) in changed.items()},
            "status": trial.status or "lost",
            "step_time_s": _rounded(trial.step_time_s),
        }
        step = self._steps.get(trial.recipe.digest)
        if step is not None:
            gain = _rounded(step.gain if trial.feasible else -1.0)
            facts |= {"asked": dict(step.changes), "lever": step.lever, "gain": gain}
        if not full:
            return facts
        report = trial.reports[-1] if trial.reports else None
        return {**facts, "values": dict(self.task.space.values(trial.recipe)), **_measured(trial, report)}

    def incumbent_facts(self) -> dict[str, Any]:
        """The incumbent in full, with the parameters that have no effect on it."""
        trial = self.history.get(self.incumbent) or Trial(self.incumbent)
        settings = effective(trial.recipe, self.task.cluster)
        rows = self.task.space.parameters.items()
        inert = [key for key, parameter in rows if not parameter.applies_if.evaluate(settings)]
        return {**self.run_facts(trial, full=True), "inert": inert}

    def estimate_facts(self, recipe: Recipe) -> dict[str, Any]:
        """What the cost model expects of ``recipe``, beside its view of the incumbent; empty unless asked for."""
        if not self.setting["use_analytic_estimate"]:
            return {}
        here, there = self.task.cost_model.estimate([recipe, self.incumbent])
        if here.problems or there.problems:
            return {}
        return {
            "expected_step_time_ratio": _rounded(here.step_time_s / there.step_time_s),
            "expected_memory_share": _rounded(here.peak_memory_bytes / here.memory_capacity_bytes),
        }

    def situation(self, attempt: int) -> dict[str, Any]:
        """What a role without a pool is shown: the incumbent and the last run in full, every run in brief, and what
        was refused against the present incumbent.
        """
        known = [trial for trial in self.history if self.history.known(trial.recipe)]
        now = self.incumbent.digest
        return {
            "turn": {"iteration": self.iteration + 1, "attempt": attempt},
            "incumbent": self.incumbent_facts(),
            "last_run": {} if self._latest is None else self.run_facts(self._latest, full=True),
            "history": [self.run_facts(trial, full=False) for trial in known],
            "refused": [row for incumbent, row in self.refused if incumbent.digest == now],
        }

    def _deliberated(self) -> list[tuple[Proposal, Step]]:
        """The next proposals; a random legal recipe when the arrangement has nothing usable to say."""
        for attempt in range(MAX_REASKS):
            drafts = self.deliberate(attempt)
            if self.stop_reason:
                return []
            found = [self._put_forward(self.check(draft)) for draft in drafts]
            usable = {pair[0].recipe.digest: pair for pair in reversed(found) if pair is not None}
            if usable:
                return list(usable.values())[::-1]
        return self._stray()

    def _put_forward(self, checked: Checked) -> tuple[Proposal, Step] | None:
        draft = checked.draft
        step = Step(
            changes=dict(checked.edits),
            lever=draft.lever,
            dropped=len(checked.dropped),
            repeats=checked.known,
            illegal=bool(checked.faults) and not checked.known,
            vetoed=draft.vetoed,
        )
        self.trace.append(step)
        if checked.faults:
            self.refuse(checked)
            return None
        return propose(self.task, checked.recipe, _sentence(draft.reasoning) or "no reason given"), step

    def _stray(self) -> list[tuple[Proposal, Step]]:
        for _ in range(MAX_DRAWS):
            recipe = self.task.space.sample(self._rng)
            if not self.history.known(recipe):
                step = Step(stray=True)
                self.trace.append(step)
                return [(propose(self.task, recipe, STRAY), step)]
        self.stop_reason = "nothing new was found in the search space"
        return []


def _measured(trial: Trial, report: RunReport | None) -> dict[str, Any]:
    """What a run told: shares of the step, of memory, and its message."""
    if report is None:
        return {}
    total = sum(report.breakdown_s.values())
    peak, capacity = trial.peak_memory_bytes, report.memory_capacity_bytes
    parts = report.breakdown_s.items() if total > 0 else ()
    facts = {
        "tokens_per_s_per_gpu": _rounded(report.tokens_per_s_per_gpu),
        "memory_share": _rounded(peak / capacity) if peak and capacity else None,
        "shares": {part: _rounded(seconds / total) for part, seconds in parts},
        "message": report.message[:MAX_MESSAGE],
    }
    return {key: value for key, value in facts.items() if value not in (None, "")}


def _sentence(text: str) -> str:
    """The beginning of what a model wrote, on one line and without characters that a terminal would obey."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())[:MAX_REASON]


def _rounded(figure: float | None) -> float | None:
    """Four significant digits: more are noise, and cost tokens."""
    return float(f"{figure:.4g}") if figure is not None and math.isfinite(figure) else None
