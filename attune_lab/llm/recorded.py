"""Models whose answers are kept: asked the same again, they repeat themselves without the model being called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from attune_lab.contracts import UserError
from attune_lab.llm import LLM, Reply, Request, UnusableReply
from attune_lab.llm.allowance import Allowance, Spent, bound
from attune_lab.llm.chat import AllowanceSpent, Answer, Chat, Turn
from attune_lab.llm.claude import turn_of
from attune_lab.llm.lines import Answered, Lost, Refused, Replied, bill
from attune_lab.llm.prices import price_of
from attune_lab.llm.schema import problems
from attune_lab.llm.scripted import ScriptedLLM
from attune_lab.llm.tokens import most_input
from attune_lab.llm.transcript import Transcript

Model = TypeVar("Model")


class _Recorded(Generic[Model]):
    """What both kinds have in common.

    Args:
        name: of the model.
        connect: makes the model; called at once when nothing is recorded yet, so that bad settings are refused
            before anything is spent, else when the transcript has no answer. None: answers come from the transcript
            alone, and nothing is written.
        transcript: where questions and answers are kept.
        allowance: the ceiling, the same that the model has; what is recorded counts against it.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Model] | None,
        transcript: Transcript,
        allowance: Allowance | None = None,
    ) -> None:
        self.name = name
        self._connect, self._transcript = connect, transcript
        self._allowance = Allowance() if allowance is None else allowance
        self._allowance.charge(transcript.billed + transcript.unknown)
        self._model = connect() if connect is not None and not len(transcript) else None
        self._asked = 0

    @property
    def usage(self) -> Mapping[str, float]:
        """Tokens and dollars as billed for everything in the transcript, as a tuner reports them."""
        return self._transcript.billed.usage

    def _outcome(
        self, question: Request | Turn, put: Callable[[Model, str], Replied | Answered], turn: Turn
    ) -> Replied | Answered:
        """What is recorded, or else what ``put`` gets from the model, recorded; ``turn`` is what it would send."""
        self._asked += 1
        digest = question.digest(self.name)
        known = self._transcript.outcome(digest)
        if isinstance(known, Refused) and (self._connect is None or known.under(self._allowance)):
            raise AllowanceSpent(known.error)
        if isinstance(known, Replied | Answered):
            return known
        if self._connect is None:
            raise self._parted(question)
        self._model = self._model or self._connect()
        free = self.name == ScriptedLLM.name
        most = Spent() if free else bound(price_of(self.name), most_input(turn), turn.max_tokens)
        self._transcript.ask(digest, self.name, question, most)
        before = self._allowance.spent
        try:
            outcome = put(self._model, digest)
        except BaseException as error:
            self._give_up(digest, self._allowance.spent - before, error)
            raise
        self._transcript.close(outcome)
        return outcome

    def _give_up(self, digest: str, lost: Spent, error: BaseException) -> None:
        """Keep what attempts without an answer used, and whether it was the ceiling that ended them."""
        self._transcript.close(Lost(**bill(digest, lost)))
        if isinstance(error, AllowanceSpent):
            ceiling = self._allowance
            self._transcript.close(Refused(digest=digest, tokens=ceiling.tokens, usd=ceiling.usd, error=str(error)))

    def _parted(self, question: Request | Turn) -> UserError:
        place = f"question {self._asked}"
        if isinstance(question, Turn):
            place = self._transcript.parting(self._asked, question.messages)
        return UserError(
            f"what is said to {self.name} left {self._transcript.where} at {place}; use the version, the recipe "
            "file and the options of the campaign that wrote it"
        )


class RecordedChat(_Recorded[Chat]):
    """A conversation that is kept."""

    def say(self, turn: Turn) -> Answer:
        """The recorded answer, or else the model's own, recorded.

        Raises:
            UserError: model, instructions or tools are not those of the transcript; or, without a model, it has no
                answer.
            AllowanceSpent, EnvironmentFault: as the model does.
        """
        self._transcript.held_with(self.name, turn)

        def put(chat: Chat, digest: str) -> Answered:
            answer = chat.say(turn)
            spent = Spent(answer.input_tokens, answer.output_tokens, answer.usd)
            content = [dict(block) for block in answer.content]
            return Answered(content=content, stop_reason=answer.stop_reason, **bill(digest, spent))

        outcome = self._outcome(turn, put, turn)
        if not isinstance(outcome, Answered):
            raise UserError(f"{self._transcript.where} has a reply where an answer must be; name another transcript")
        return outcome.answer


class RecordedLLM(_Recorded[LLM]):
    """A model for requests whose replies are kept."""

    def complete(self, request: Request) -> Reply:
        """The recorded reply, or else the model's own, recorded.

        Raises:
            UserError: the recorded reply does not fit the schema; or, without a model, there is none.
            UnusableReply, AllowanceSpent, EnvironmentFault: as the model does.
        """

        def put(llm: LLM, digest: str) -> Replied:
            try:
                reply, error = llm.complete(request), None
            except UnusableReply as unusable:
                reply, error = unusable.spent, str(unusable)
            spent = Spent(reply.input_tokens, reply.output_tokens, reply.usd)
            body = dict(reply.body)
            return Replied(body=body, estimated=reply.estimated, error=error, **bill(digest, spent))

        outcome = self._outcome(request, put, turn_of(request, request.prompt))
        if not isinstance(outcome, Replied):
            raise UserError(f"{self._transcript.where} has an answer where a reply must be; name another transcript")
        if outcome.error is not None:
            raise UnusableReply(outcome.error, outcome.reply)
        if faults := problems(outcome.body, request.schema):
            raise UserError(
                f"a reply of {request.role} in {self._transcript.where} is not as the schema of now has it "
                f"({faults[0]}); use the version that recorded it, or name another transcript"
            )
        return outcome.reply
