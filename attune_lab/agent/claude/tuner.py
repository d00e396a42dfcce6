"""The claude policy as a tuner: a language model asks for runs by tools, and the campaign makes them."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attune_lab.agent.claude.conversation import Call, Conversation, calls_of, result
from attune_lab.agent.claude.prompts import AGAIN, CUT_OFF, GO_ON, SYSTEM, TOO_MUCH, opening
from attune_lab.agent.claude.session import Session, facts
from attune_lab.agent.claude.settings import Settings
from attune_lab.agent.claude.toolbox import Finish, Launch, Refused, as_text, refusal, shortened
from attune_lab.agent.claude.tools import toolbox
from attune_lab.contracts import Proposal, RunReport, TuningTask, UserError
from attune_lab.lessons import catalog as lessons
from attune_lab.llm.chat import AllowanceSpent, Answer, Chat

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe

Talk = Generator[Proposal, tuple[RunReport, str], None]

PATIENCE = 2
"""Answers in a row that cannot be carried out (cut off, or without a tool) before the search ends."""

ANSWERS_WITHOUT_A_RUN = 80
"""Answers in a row without a run before the search ends: reading is free, and must not go on for ever."""

LONGEST_RESULTS = 120_000
"""Characters of the results of one answer, beyond which its further calls are refused: they could not be cut yet."""

NEEDS_A_FILE = "the claude policy works on a recipe's file and needs a campaign around it: use it through attune tune"


class ClaudeTuner:
    """Holds a conversation in which the model reads, edits, prices and asks for runs, one at a time.

    Everything that goes into a message follows from the task, the reports told and the answers given. A campaign that
    was killed tells the stored reports again, the recorded answers come without the network, and the conversation
    goes on where it stopped.

    Args:
        task: with a desk; its options are those of `attune_lab.agent.claude.settings`.
        chat: the model; None opens the one that the options name.

    Raises:
        UserError: no desk, or an option that cannot be used.
    """

    name = "attune"

    def __init__(self, task: TuningTask, chat: Chat | None = None) -> None:
        settings = Settings.of(task.options)
        if task.desk is None:
            raise UserError(NEEDS_A_FILE)
        self._task = task
        self._session = Session(task, task.desk, settings.rules, lessons.load(), settings.experience())
        self._tools = toolbox()
        self._chat = settings.open_chat(task) if chat is None else chat
        self._session.author = self._chat.name
        self._used = {"input_tokens": 0.0, "output_tokens": 0.0, "usd": 0.0}
        self._pending: Proposal | None = None
        self._told: tuple[RunReport, str] | None = None
        self._talk: Talk | None = None
        self.stop_reason = ""
        """Why `ask` returned None, in one sentence; empty before."""
        self.choice: Recipe | None = None
        """What the model chose to ship; None where it did not come to a choice."""

    @property
    def decisions(self) -> Sequence[str]:
        """One line for each run, refusal and note."""
        return tuple(self._session.decisions)

    @property
    def usage(self) -> Mapping[str, float]:
        """Tokens and dollars of the conversation; of a recorded one with what failed attempts used."""
        recorded: Mapping[str, float] | None = getattr(self._chat, "usage", None)
        return self._session.spent if recorded is None else recorded

    def ask(self) -> Proposal | None:
        """The next run the model wants, or None when the conversation is over; the same until its report is told."""
        if self._pending is not None and self._told is None:
            return self._pending
        told, self._pending, self._told = self._told, None, None
        try:
            if self._talk is None:
                self._talk = self._converse()
                self._pending = next(self._talk)
            elif told is not None:
                self._pending = self._talk.send(told)
        except StopIteration:
            pass
        return self._pending

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Enter the report of ``proposal``; the model hears of it with the next `ask`."""
        decision = self._session.journal.record(proposal, report)
        if self._pending is not None and proposal.recipe.digest == self._pending.recipe.digest:
            self._told = report, decision

    def _converse(self) -> Talk:
        """The conversation; yields what should be run and is sent the report with what was decided on it."""
        conversation = Conversation(SYSTEM, self._tools.tools, opening(self._session))
        faults = since_run = 0
        while faults < PATIENCE and since_run < ANSWERS_WITHOUT_A_RUN:
            answer = self._say(conversation)
            if answer is None:
                return
            conversation.add_answer(answer)
            calls, since_run = calls_of(answer), since_run + 1
            if answer.stop_reason == "tool_use" and calls:
                yield from self._carry_out(conversation, calls)
                faults, since_run = 0, 0 if self._session.launched else since_run
            elif answer.stop_reason == "pause_turn" and not calls:
                conversation.add_text(GO_ON)
            else:
                faults += 1
                self._object(conversation, answer, calls)
            if self.stop_reason:
                return
        if faults >= PATIENCE:
            self.stop_reason = f"{self._chat.name} gave {PATIENCE} answers in a row that call no tool"
        else:
            self.stop_reason = f"{self._chat.name} asked for no run in {ANSWERS_WITHOUT_A_RUN} answers"

    def _say(self, conversation: Conversation) -> Answer | None:
        """The next answer; None where there is none to go on with."""
        try:
            answer = self._chat.say(conversation.turn())
        except AllowanceSpent as spent:
            self.stop_reason = shortened(f"the allowance of the conversation is spent: {spent}", 400)
            return None
        self._used["input_tokens"] += answer.input_tokens
        self._used["output_tokens"] += answer.output_tokens
        self._used["usd"] += answer.usd
        self._session.spent = {name: figure for name, figure in self._used.items() if math.isfinite(figure)}
        if answer.stop_reason == "refusal":
            self.stop_reason = f"{self._chat.name} declined to go on"
            return None
        return answer

    def _object(self, conversation: Conversation, answer: Answer, calls: Sequence[Call]) -> None:
        """Say what is wrong with an answer that cannot be carried out."""
        if answer.stop_reason == "model_context_window_exceeded":
            conversation.shorten(conversation.size // 2)
        if calls:  # cut off in the middle: every call must be answered, and none is known to be whole
            conversation.add_results([result(call, refusal(Refused(CUT_OFF)), is_error=True) for call in calls])
        else:
            cut = answer.stop_reason in ("max_tokens", "model_context_window_exceeded")
            conversation.add_text(CUT_OFF if cut else AGAIN)

    def _carry_out(self, conversation: Conversation, calls: Sequence[Call]) -> Talk:
        """Carry out the tools of one answer in order. Those behind a `finish` are not looked at."""
        session, blocks = self._session, list[dict[str, Any]]()
        session.launched = False
        for call in calls:
            if sum(len(block["content"]) for block in blocks) > LONGEST_RESULTS:
                blocks.append(result(call, refusal(Refused(TOO_MUCH)), is_error=True))
                continue
            try:
                outcome = self._tools.use(session, call.name, call.arguments)
            except Refused as refused:
                blocks.append(result(call, refusal(refused), is_error=True))
                continue
            if isinstance(outcome, Finish):
                self._finish(outcome)
                return
            if isinstance(outcome, Launch):
                report, decision = yield outcome.proposal
                outcome = self._came_of(report, decision)
            blocks.append(result(call, as_text(outcome)))
        conversation.add_results(blocks)

    def _came_of(self, report: RunReport, decision: str) -> dict[str, Any]:
        """What the model is told of a run it launched."""
        journal = self._session.journal
        run = journal.runs[report.label]
        return {
            **facts(run),
            "decision": decision,
            "kept_now": journal.best_label,
            "gpu_hours_left_for_search": self._task.budget.left_for_search,
        }

    def _finish(self, outcome: Finish) -> None:
        session = self._session
        self.choice = session.recipe(outcome.choice)
        self.stop_reason = shortened(f"{self._chat.name} chose {outcome.choice}: {outcome.why}", 400)
        session.decisions.append(f"chose {outcome.choice} to ship: {outcome.why}")
