"""A patch of the user's text that may change settings and nothing else.

The patched text is read back as a recipe, without running anything and without reading a file that the user's own text
does not include. The recipe is then written into the user's file the usual way: if that gives the same text, the
patch was no more than the change of these settings.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attune_lab.agent.claude.toolbox import Refused, shortened
from attune_lab.contracts import UserError

if TYPE_CHECKING:
    from attune_lab.agent.claude.session import Session
    from attune_lab.recipe import Recipe

MORE = "more than settings would change"

SHOWN = 4
"""Lines that are named as too much, and as expected."""


def patched(session: Session, old: str, new: str) -> Recipe:
    """The recipe of the draft with ``old``, which occurs once, replaced by ``new``.

    Raises:
        Refused: ``old`` does not occur once, the text is no recipe, or more than settings would change.
    """
    before = session.text(session.draft)
    place = before.find(old)
    if place < 0:
        raise Refused("the text to replace is not in the draft; read_file shows it as it is now")
    if before.find(old, place + 1) >= 0:
        raise Refused("the text to replace occurs more than once in the draft; take more of its line")
    wanted = before[:place] + new + before[place + len(old) :]
    if known := next((r for r in _known(session) if session.text(r) == wanted), None):
        return known
    try:
        recipe = session.desk.read(wanted)
        _check_flags(session, recipe)
        written = session.text(recipe)
    except UserError as error:
        raise Refused(
            "the patched text is no recipe, or says what no edit could", session.without_folders(str(error))
        ) from error
    if written != wanted:
        raise Refused(f"{MORE}: write it as edit_setting does, or use edit_setting", _too_much(written, wanted))
    return recipe


def _known(session: Session) -> list[Recipe]:
    """Recipes that are known by the very digest they have, so that going back to one is going back."""
    recipes = [session.task.baseline, *(run.recipe for run in session.journal.runs.values())]
    return list({recipe.digest: recipe for recipe in recipes}.values())


def _check_flags(session: Session, recipe: Recipe) -> None:
    """Refuse flags that are no settings, and other versions: the cluster would be asked for something unknown."""
    draft = session.draft
    for what, own, other in (
        ("the flag", draft.carried, recipe.carried),
        ("the version of", draft.versions, recipe.versions),
    ):
        for name in sorted({*own, *other}):
            if own.get(name) != other.get(name):
                raise Refused(f"{MORE}: {what} {shortened(name, 80)} is no setting")


def _too_much(written: str, wanted: str) -> str:
    """The lines of a patched text that its settings do not account for, and those expected in their place."""
    ours, theirs = written.splitlines(), wanted.splitlines()
    head = _alike(ours, theirs)
    ours, theirs = ours[head:], theirs[head:]
    tail = _alike(ours[::-1], theirs[::-1])
    found, expected = (part[: len(part) - tail][:SHOWN] for part in (theirs, ours))
    if not (found or expected):
        return "its line ends"
    shown = ("; ".join(repr(shortened(line, 80)) for line in part) or "nothing" for part in (found, expected))
    return " stands where its settings give ".join(shown)


def _alike(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """How many lines are equal from the beginning on."""
    pairs = zip(ours, theirs, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
