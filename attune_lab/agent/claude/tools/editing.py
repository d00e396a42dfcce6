"""Tools that edit the draft. Nothing but settings can change, whichever way it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attune_lab.agent.claude.patch import patched
from attune_lab.agent.claude.toolbox import Refused, entry, shortened, text
from attune_lab.agent.claude.tools.reading import RUN
from attune_lab.agent.decisions import BASELINE

if TYPE_CHECKING:
    from attune_lab.agent.claude.session import Session
    from attune_lab.recipe import Recipe

CHOICES = 40
"""Choices of a parameter that are listed."""


def edit_setting(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Set one parameter of the search space on the draft; what must move with it moves."""
    key, value = arguments["parameter"], arguments["value"]
    space = session.task.space
    if key not in space.parameters:
        raise Refused(f"{shortened(key, 60)} is not in the search space; it has {', '.join(space.parameters)}")
    choices = space.parameters[key].choices
    found = [choice for choice in choices if _same(choice, value)]
    if not found:
        listed = ", ".join(str(choice) for choice in choices[:CHOICES])
        raise Refused(f"{key} has no choice {shortened(str(value), 60)}; its choices are {listed}")
    return _accept(session, space.apply(session.draft, {key: found[0]}))


def patch_recipe(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a text that occurs once in the draft; see `attune_lab.agent.claude.patch`."""
    return _accept(session, patched(session, arguments["old"], arguments["new"]))


def reset_draft(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Make the draft a recipe that is known: the baseline, or that of a run."""
    return _accept(session, session.recipe(arguments["to"]))


def validate(session: Session, _: Mapping[str, Any]) -> dict[str, Any]:
    """Why the draft could not run, and what it changes."""
    return _state(session, session.draft)


def _accept(session: Session, recipe: Recipe) -> dict[str, Any]:
    """Take a recipe as the draft, if the user's file can say it."""
    session.text(recipe)
    session.draft = recipe
    return _state(session, recipe)


def _state(session: Session, recipe: Recipe) -> dict[str, Any]:
    journal, space = session.journal, session.task.space
    problems = session.problems(recipe)
    return {
        "changed_from_baseline": {k: list(v) for k, v in space.changed(session.task.baseline, recipe).items()},
        f"changed_from_best ({journal.best_label})": {
            key: list(pair) for key, pair in space.changed(journal.best.recipe, recipe).items()
        },
        "can_start": not problems,
        "problems": [shortened(problem, 300) for problem in problems[:10]],
    }


def _same(choice: object, value: object) -> bool:
    """Whether a choice is what JSON calls ``value``; lists stand for tuples, and a switch is no number."""
    if isinstance(choice, tuple) and isinstance(value, list):
        return list(choice) == value
    return choice == value and isinstance(choice, bool) == isinstance(value, bool)


VALUE = {
    "type": ["string", "integer", "number", "boolean", "null"],
    "description": "One of the parameter's choices, as what_if lists them.",
    "maxLength": 200,
}

TOOLS = (
    entry(
        edit_setting,
        "Set one parameter of the search space on the draft to one of its choices. What must move with it moves too.",
        {"parameter": text("Key of the parameter, e.g. tp, recompute, env.NCCL_NVLS_ENABLE.", 80), "value": VALUE},
    ),
    entry(
        patch_recipe,
        "Edit the text of the draft: replace `old`, which must occur exactly once, by `new`. Accepted only if it "
        "changes values of settings and nothing else: the file must come out as edit_setting would write it. "
        "Commands, includes, comments, unknown flags and moved lines are refused, with what was too much.",
        {
            "old": text("The text to replace, byte for byte.", 4_000),
            "new": {"type": "string", "description": "The new text; empty to cut.", "maxLength": 4_000},
        },
    ),
    entry(reset_draft, f"Make the draft a known recipe again: '{BASELINE}' or that of a run.", {"to": RUN}),
    entry(
        validate,
        "Say whether the draft could run: rules of the stack, the search space, and the gate's check of settings.",
    ),
)
