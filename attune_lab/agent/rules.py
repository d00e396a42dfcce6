"""The search rules: small objects that can be switched off one by one, because ablations are made of that."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from attune_lab.contracts import UserError


@dataclass(frozen=True)
class Rule:
    """One search rule: its name, and what it demands."""

    name: str
    statement: str


ONE_LEVER = Rule(
    "one-lever",
    "a proposal moves one lever; a layout with the micro-batch, recomputation, dispatcher and overlap it needs counts "
    "as one, and so do settings that gain too little to be told from noise one by one",
)
DIAGNOSE_FIRST = Rule("diagnose-first", "a lesson is considered only when one of its symptoms shows")
USE_CATALOG = Rule("use-catalog", "moves come from the catalog of lessons")
RETRY_OOM = Rule("retry-oom-with-recompute", "a layout out of memory is tried again with more recomputation")
CHECK_MEMORY = Rule("check-memory-first", "what is not likely to fit is not run")
RE_MEASURE = Rule("re-measure-winner", "a gain of few noise bands is measured again before it counts")
NOISE_BAND = Rule("noise-band", "a gain inside the noise band is no gain")
STOP = Rule("stop-when-not-worth-it", "the search ends when what is left cannot be told from noise or paid for")

RULES = (ONE_LEVER, DIAGNOSE_FIRST, USE_CATALOG, RETRY_OOM, CHECK_MEMORY, RE_MEASURE, NOISE_BAND, STOP)


class Rulebook:
    """The rules in force.

    Args:
        without: names of rules that are switched off.

    Raises:
        UserError: an unknown name.
    """

    def __init__(self, without: Iterable[str] = ()) -> None:
        names = [rule.name for rule in RULES]
        self._off = frozenset(without)
        for name in sorted(self._off.difference(names)):
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"without {name!r}: no such search rule; {hint}known: {', '.join(names)}")

    def __contains__(self, rule: Rule) -> bool:
        """Whether ``rule`` is in force."""
        return rule.name not in self._off
