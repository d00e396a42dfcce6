"""The two tools with consequences: launch a run, and finish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attune_lab.agent.claude.toolbox import Finish, Launch, Refused, entry, shortened, text
from attune_lab.agent.claude.tools.reading import RUN
from attune_lab.agent.decisions import BASELINE
from attune_lab.agent.wall import objections
from attune_lab.contracts import Proposal

if TYPE_CHECKING:
    from attune_lab.agent.claude.session import Session

NO_LESSON = "none"
"""What a launch names where no lesson is behind it; refused while moves come from the catalog."""


def launch_run(session: Session, arguments: Mapping[str, Any]) -> Launch:
    """The proposal to run the draft, if nothing speaks against it.

    Raises:
        Refused: by a rule of the search, because the draft cannot start, or because this answer launched a run.
    """
    if session.launched:
        raise Refused("one run is launched per answer: read the result of the first one")
    draft, remeasure = session.draft, bool(arguments.get("remeasure", False))
    lesson = None if arguments["lesson"] == NO_LESSON else str(arguments["lesson"])
    journal = session.journal
    trial = journal.history.get(draft)
    if trial is not None and trial.is_settled and not (remeasure and trial.ok):
        raise Refused(
            f"the draft ran before ({journal.standing().label(trial)}): change it, or set remeasure to run it again"
        )
    if problems := session.problems(draft):
        raise Refused(f"the draft cannot run: {'; '.join(problems[:3])}")
    seen = journal.draft(draft, lesson=lesson, symptom=arguments["symptom"], remeasure=remeasure)
    if against := objections(seen, journal.standing()):
        changed = ", ".join(session.task.space.changed(journal.best.recipe, draft)) or "nothing"
        for rule, sentence in against:
            session.decisions.append(f"refused by {rule.name} (the draft changes {changed}): {sentence}")
        raise Refused("; ".join(f"{rule.name}: {sentence}" for rule, sentence in against))
    session.launched = True
    return Launch(_proposal(session, arguments, lesson, remeasure and trial is not None))


def _proposal(session: Session, arguments: Mapping[str, Any], lesson: str | None, remeasure: bool) -> Proposal:
    """The draft as the campaign keeps it, with the model's reason cut to one line."""
    draft, expected = session.draft, session.estimate(session.draft)
    words = [arguments["lever"], arguments["symptom"], arguments["reason"]]
    lever, symptom, reason = (shortened(word, most) for word, most in zip(words, (120, 80, 400), strict=True))
    return Proposal(
        recipe=draft,
        changed=session.task.space.changed(session.journal.best.recipe, draft),
        reason=f"{lever} against {symptom}: {reason}",
        lesson=lesson,
        predicted={
            "step_time_s": expected.step_time_s,
            "peak_memory_bytes": expected.peak_memory_bytes,
            "gain": float(arguments["predicted_gain"]),
        },
        remeasure=remeasure,
    )


def finish(session: Session, arguments: Mapping[str, Any]) -> Finish:
    """The end of the search, with what should be shipped.

    Raises:
        Refused: the choice is no run that ended well.
    """
    choice = arguments["choice"]
    if choice != BASELINE and session.run(choice).report.status != "ok":
        raise Refused(f"{choice} did not end well and cannot be shipped; choose another run, or '{BASELINE}'")
    return Finish(choice, shortened(arguments["why"], 300))


TOOLS = (
    entry(
        launch_run,
        "Run the draft for eight steps on the cluster. It costs GPU-hours. One lever at a time against something that "
        "ran; the search rules are enforced and refuse with their reason. At most one run per answer.",
        {
            "lever": text("What is moved, e.g. 'tp 8 -> 4'.", 120),
            "symptom": text("The symptom it should remove, as diagnose names it.", 80),
            "lesson": text(f"Id of the lesson behind it, or '{NO_LESSON}'.", 80),
            "reason": text("Why it should help, one or two sentences with figures.", 400),
            "predicted_gain": {
                "type": "number",
                "description": "Expected gain in tokens/s over what is kept, a fraction.",
                "minimum": -1,
                "maximum": 100,
            },
        },
        {"remeasure": {"type": "boolean", "description": "Run a recipe again that ran before."}},
    ),
    entry(
        finish,
        "End the search. The choice goes into the finals first, is run again there and judged by the gate; "
        f"'{BASELINE}' keeps the recipe as it came in.",
        {"choice": RUN, "why": text("One sentence.", 300)},
    ),
)
