"""How a campaign answers what a tuner proposes: declared by the scenario, the same for every tuner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from attune_lab.contracts import UserError


@dataclass(frozen=True)
class AnswerRules:
    """The answers to repeated, invalid and broken runs.

    Attributes:
        repeats: a recipe proposed again is answered with its ``stored`` report for free, or ``run`` and charged again.
        invalid: a recipe that cannot start is told so for ``free``, or ``charged`` the start-up it would have died in,
            as where nothing is checked before the launch.
        free_answers: so many free answers in a row end the search: it would never spend its budget.
        retries: how often a run that the infrastructure broke is run again, at the campaign's cost.

    Raises:
        UserError: a value that is none of these.
    """

    repeats: Literal["stored", "run"] = "stored"
    invalid: Literal["free", "charged"] = "free"
    free_answers: int = 20
    retries: int = 2

    def __post_init__(self) -> None:
        for name, allowed in (("repeats", ("stored", "run")), ("invalid", ("free", "charged"))):
            if getattr(self, name) not in allowed:
                raise UserError(f"rule {name}: {getattr(self, name)!r} is not a rule; take {' or '.join(allowed)}")
        for name, least in (("free_answers", 1), ("retries", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise UserError(f"rule {name}: {value!r} is not a whole number of at least {least}")

    def to_json(self) -> dict[str, Any]:
        """The rules that differ from the usual ones."""
        return {name: value for name, value in vars(self).items() if value != getattr(AnswerRules, name)}


USUAL = AnswerRules()
