"""A patch of the user's text that may change settings and nothing else.

The patched text is read back as a recipe, without running anything and without reading a file that the user's own text
does not include. The recipe is then written into the user's file the usual way: if that gives the same text, the
patch was no more than the change of these settings.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from attune_lab.agent.claude.toolbox import Refused, shortened
from attune_lab.contracts import UserError

if TYPE_CHECKING:
    from attune_lab.agent.claude.session import Session
    from attune_lab.recipe import Recipe

SHOWN = 12
"""Lines that are named as too much."""


def patched(session: Session, old: str, new: str) -> Recipe:
    """The recipe of the draft with ``old``, which occurs once, replaced by ``new``.

    Raises:
        Refused: ``old`` does not occur once, the text is no recipe, or more than settings would change.
    """
    before = session.text(session.draft)
    if (times := _occurrences(before, old)) != 1:
        raise Refused(f"the text to replace occurs {times} times in the draft, not once; take more of its line")
    wanted = before.replace(old, new)
    if known := next((r for r in _known(session) if session.text(r) == wanted), None):
        return known
    try:
        recipe = session.desk.read(wanted)
    except UserError as error:
        raise Refused(f"the patched text is no recipe: {session.without_folders(str(error))}") from error
    _check_flags(session, recipe)
    try:
        written = session.text(recipe)
    except UserError as error:
        raise Refused(f"more than settings would change: {session.without_folders(str(error))}") from error
    if written != wanted:
        raise Refused(f"more than settings would change: {_too_much(written, wanted)}; try edit_setting")
    return recipe


def _occurrences(text: str, piece: str) -> int:
    """How often ``piece`` stands in ``text``, overlapping ones counted."""
    return sum(text.startswith(piece, place) for place in range(len(text)))


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
                raise Refused(f"more than settings would change: {what} {shortened(name, 80)} is no setting")


def _too_much(written: str, wanted: str) -> str:
    """The lines of a patched text that its settings do not account for."""
    lines = difflib.ndiff(written.splitlines(), wanted.splitlines())
    names = {"+": "not accounted for", "-": "expected instead"}
    shown = [f"{names[line[0]]}: {shortened(line[2:], 100)!r}" for line in lines if line[0] in names]
    return "; ".join(shown[:SHOWN]) or "line ends differ"
