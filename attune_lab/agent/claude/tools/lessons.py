"""Tools for lessons: which apply to a run, what one says, and what the model would have others learn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attune_lab.agent.claude.session import NOTES
from attune_lab.agent.claude.toolbox import Refused, entry, figure, shortened, text
from attune_lab.agent.claude.tools.reading import RUN
from attune_lab.agent.moves import resolve
from attune_lab.lessons.notes import MAX_NOTES, Note, write_notes

if TYPE_CHECKING:
    from attune_lab.agent.claude.session import Session
    from attune_lab.lessons.catalog import Lesson
    from attune_lab.recipe import Recipe

FOUND = 40
"""Lessons listed at most."""


def find_lessons(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Lessons whose preconditions hold and one of whose symptoms shows in a run, with what their moves mean there."""
    run = session.run(arguments.get("run", session.journal.best_label))
    trial = session.journal.history.get(run.recipe)
    if trial is None or not trial.reports:
        raise Refused(f"{run.label} was lost to the infrastructure and shows nothing")
    diagnosis = session.journal.standing().diagnosis(trial)
    shown = {symptom.name for symptom in diagnosis.symptoms}
    wanted = arguments.get("symptom")
    found = []
    for lesson in session.catalog.lessons:
        symptoms = shown.intersection(lesson.symptoms)
        if not symptoms or (wanted and wanted not in symptoms) or not lesson.holds(diagnosis.variables):
            continue
        if moves := _moves(session, lesson, run.recipe):
            found.append(_entry(session, lesson, sorted(symptoms), moves))
    return {"run": run.label, "lessons": found[:FOUND], "more": len(found) > FOUND}


def _moves(session: Session, lesson: Lesson, recipe: Recipe) -> list[dict[str, Any]]:
    """What the moves of a lesson mean for a recipe; those that change nothing are left out."""
    found: list[dict[str, Any]] = []
    for move in lesson.moves:
        if "layout" in move:
            found.append({"any_layout": "sizes of the layout, recompute and overlaps together"})
        elif "neighbour" in move:
            found.append({"any_neighbour": "one parameter, one choice up or down"})
        elif edits := resolve(move, recipe, session.task.space):
            found.append(dict(edits))
    return found


def _entry(session: Session, lesson: Lesson, symptoms: list[str], moves: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "lesson": lesson.id,
        "title": lesson.title,
        "symptoms_that_show": symptoms,
        "moves_from_here": moves[:8],
        "expected_step_time_change_pct": lesson.step_time_pct,
        "basis": lesson.basis,
    }
    if lesson.numerics != "none":
        found["numerics"] = lesson.numerics
    if session.experience is not None:
        found["past_campaigns"] = [
            _past(session, lesson, move) for move in moves[:4] if move.keys() <= session.task.space.parameters.keys()
        ]
    return found


def _past(session: Session, lesson: Lesson, move: Mapping[str, Any]) -> dict[str, Any] | None:
    """What past campaigns showed of a move; None where nothing is known."""
    from attune_lab.lessons.context import context_of

    assert session.experience is not None
    effect = session.experience.effect(lesson.id, move, context_of(session.task.baseline, session.task.cluster))
    if effect is None:
        return None
    return {
        "log_gain_beyond_cost_model": figure(effect.surprise, 3),
        "standard_deviation": figure(effect.surprise_sd, 3),
        "failure_chance": figure(effect.failure_chance, 3),
        "tries": effect.tries,
    }


def read_lesson(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One lesson in full, as text that others wrote."""
    found = next((lesson for lesson in session.catalog.all() if lesson.id == arguments["lesson"]), None)
    if found is None:
        raise Refused("there is no lesson of that id; find_lessons has the ids")
    actable = any(lesson.id == found.id for lesson in session.catalog.lessons)
    return {"lesson": found.id, "can_be_acted_on": actable, "quoted_text": json.dumps(found.to_json())[:6_000]}


def write_lesson(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keep an observation as a proposal for the catalog. Nothing in this campaign acts on it."""
    if len(session.notes) >= MAX_NOTES:
        raise Refused(f"the notes are full ({MAX_NOTES}); finish with what is written")
    if arguments["symptom"] not in session.catalog.symptoms:
        raise Refused("that symptom is not in the vocabulary; diagnose names those that show")
    title, observation = (shortened(arguments[name], most) for name, most in (("title", 120), ("observation", 400)))
    if not (title and observation):
        raise Refused("the title or the observation holds nothing that can be printed")
    runs = tuple(dict.fromkeys(session.run(label).label for label in arguments["runs"]))
    author = shortened(session.author, 80)
    note = Note(title=title, text=observation, symptoms=(arguments["symptom"],), runs=runs, author=author)
    session.notes.append(note)
    write_notes(session.desk.folder, session.notes)
    session.decisions.append(f"proposed as a lesson by {author}, acted on by nobody: {title}")
    return {"kept_in": NOTES, "notes": len(session.notes)}


TOOLS = (
    entry(
        find_lessons,
        "Lessons of the catalog that apply to a run: a symptom shows, the preconditions hold, a move changes "
        "something.",
        None,
        {"run": RUN, "symptom": text("Only lessons for this symptom.", 80)},
    ),
    entry(read_lesson, "One lesson in full, with its sources.", {"lesson": text("Id of the lesson.", 80)}),
    entry(
        write_lesson,
        "Propose a lesson for the catalog: an observation of this campaign, kept in notes.md, marked as written by a "
        "model and acted on by nobody here.",
        {
            "title": text("What to do, e.g. 'halve tp where its collectives are exposed'.", 120),
            "symptom": text("The symptom it is for, as diagnose names it.", 80),
            "observation": text("What was measured, with figures, and where it should and should not hold.", 400),
            "runs": {"type": "array", "items": RUN, "minItems": 1, "maxItems": 10, "description": "Runs it rests on."},
        },
    ),
)
