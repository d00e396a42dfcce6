"""What past campaigns showed, as a person reads it at 80 columns. Every name in it comes from a file of strangers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from attune_lab.cli.output import indented, several, table
from attune_lab.lessons.summary import NO_LESSON

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.lessons.records import LearntCampaign, Observation
    from attune_lab.lessons.summary import MoveSummary, Side

_SHOWN, _MOVES = 60, 20
"""Rows of a long list, and moves of a lesson, that a terminal is shown; --json has all."""
_COLOURS = {"gain": "green", "loss": "red", "unclear": ""}


def render_overview(console: Console, moves: Sequence[MoveSummary], campaigns: Sequence[LearntCampaign]) -> None:
    """One line a lesson, then the campaigns, what was retracted and what language models propose."""
    counted = [campaign for campaign in campaigns if not campaign.standing.retracted]
    models = ", ".join(sorted({campaign.model for campaign in counted})) or "none"
    drawn = table(
        "What past campaigns showed", "lesson", "tries", "how they ended", "moves that disagree", right=("tries",)
    )
    for lesson in sorted({move.lesson for move in moves}):
        mine = [move for move in moves if move.lesson == lesson]
        ended: Counter[str] = sum((Counter(side.outcomes) for move in mine for side in move.sides), Counter())
        conflicts = sum(move.conflict for move in mine)
        drawn.add_row(_lesson(lesson), str(sum(move.tries for move in mine)), _counts(ended), str(conflicts or ""))
    console.print(drawn)
    indented(console, f"{several(len(counted), 'campaign')} of {models}", 0)
    _campaigns(console, counted)
    _retractions(console, campaigns)
    _notes(console, counted)


def render_lesson(console: Console, moves: Sequence[MoveSummary]) -> None:
    """One table of the moves of one lesson, each by context, then both sides where contexts contradict each other."""
    title = escape(_lesson(moves[0].lesson).plain)
    drawn = table(title, "move, where", "ended", "expected", "measured (95 %)", wrap_first=True)
    for move in moves[:_MOVES]:
        drawn.add_row(Text(_edits(move.edits), style="bold"))
        for side in move.sides:
            drawn.add_row(_text(side.context), _counts(side.outcomes), _pct(side.expected_pct), _measured(side))
        drawn.add_section()
    console.print(drawn)
    if len(moves) > _MOVES:
        indented(console, f"and {len(moves) - _MOVES} more moves; --json has all", 0)
    indented(
        console, "The 95 % interval holds how far places (worlds, clusters) differ, beside the error of the runs.", 0
    )
    for move in moves[:_MOVES]:
        if move.conflict:
            for says in ("gain", "loss"):
                sides = [side for side in move.sides if side.says == says]
                where = "; ".join(f"{side.context} ({_pct(side.gain_pct)})" for side in sides)
                indented(console, Text(f"conflict, {says}, {_edits(move.edits)}: {where}", style="yellow"))


def render_observations(console: Console, rows: Sequence[tuple[LearntCampaign, Observation]]) -> None:
    """Every observation behind a number."""
    drawn = table("Observations", "campaign, run", "edit", "expected", "measured", "ended")
    for campaign, seen in rows[:_SHOWN]:
        edits = ", ".join(f"{key} {_word(before)} -> {_word(after)}" for key, (before, after) in seen.edits.items())
        measured = (
            "-" if seen.measured is None or seen.se is None else f"{100 * seen.measured:+.1f} ± {100 * seen.se:.1f}"
        )
        where = f"{campaign.digest[:8]} {seen.label}{' retracted' if campaign.standing.retracted else ''}"
        expected = "-" if seen.expected is None else f"{100 * seen.expected:+.1f}"
        drawn.add_row(_text(where), _text(edits), expected, measured, _text(f"{seen.outcome} {seen.message}".strip()))
    console.print(drawn)
    if len(rows) > _SHOWN:
        indented(console, f"and {len(rows) - _SHOWN} more; --json has all", 0)
    indented(
        console,
        "Gains as 100 x log of a ratio of tokens/s, ± one standard error of these runs; the intervals of attune "
        "lessons show are wider, as they hold how far places (worlds, clusters) differ, too.",
        0,
    )
    for campaign in sorted({campaign.digest: campaign for campaign, _ in rows}.values(), key=lambda c: c.digest):
        indented(console, f"{campaign.digest[:8]}: {campaign.name}, {campaign.model}, {campaign.provenance}")


def _campaigns(console: Console, campaigns: Sequence[LearntCampaign]) -> None:
    """The digests and names that `why` and `retract` take."""
    drawn = table("Campaigns", "digest", "name", "tries", right=("tries",))
    for campaign in campaigns[:_SHOWN]:
        drawn.add_row(campaign.digest[:8], _text(campaign.name), str(len(campaign.observations)))
    console.print(drawn)
    if len(campaigns) > _SHOWN:
        indented(console, f"and {len(campaigns) - _SHOWN} more; --json has all", 0)


def _retractions(console: Console, campaigns: Sequence[LearntCampaign]) -> None:
    for campaign in campaigns:
        if campaign.standing.retracted:
            why = f"retracted: {campaign.digest[:8]} ({campaign.name}): {campaign.standing.why}"
            indented(console, Text(why, style="yellow"), 0)


def _notes(console: Console, campaigns: Sequence[LearntCampaign]) -> None:
    notes = [(campaign, note) for campaign in campaigns for note in campaign.notes]
    if notes:
        console.print("Proposals by language models, acted on only once a person writes them into a catalog:")
    for campaign, note in notes[:_SHOWN]:
        indented(console, f"{campaign.digest[:8]}, {note.author}: {note.title}. {note.text}")


def _counts(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))


def _measured(side: Side) -> Text:
    if side.gain_pct is None or side.interval_pct is None:
        return Text("-")
    low, high = side.interval_pct
    return Text(f"{side.gain_pct:+.1f} % ({low:+.1f} to {high:+.1f})", style=_COLOURS[side.says])


def _lesson(lesson: str) -> Text:
    return _text("(no lesson)" if lesson == NO_LESSON else lesson)


def _edits(move: str) -> str:
    return ", ".join(f"{key} = {_word(value)}" for key, value in json.loads(move).items())


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {True: "on", False: "off", None: "unset"}[value]
    return str(value)


def _pct(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} %"


def _text(text: str) -> Text:
    """Text of a stranger, as it is: no markup is read in it."""
    return Text(text)
