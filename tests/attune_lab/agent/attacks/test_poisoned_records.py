"""What a campaign rests on, poisoned: its transcript, its tools, and what past campaigns showed."""

from __future__ import annotations

import json
import re
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attack_arena import Attack, Obedient, edit, fight, launch

from attune_lab.agent.claude import ClaudeTuner
from attune_lab.agent.claude.toolbox import Toolbox
from attune_lab.agent.claude.tools import toolbox
from attune_lab.contracts import UserError
from attune_lab.lessons.catalog import load
from attune_lab.lessons.evidence import Evidence
from attune_lab.llm.lines import START, chained, unchained
from attune_lab.llm.opening import TRANSCRIPT
from attune_lab.llm.recorded import RecordedChat
from attune_lab.llm.transcript import Transcript
from attune_lab.replay import replay_campaign


def talking(task: Any) -> ClaudeTuner:
    """A tuner whose scripted conversation is recorded, with two runs."""
    answers = deque([(edit("tp", 1),), (launch(),), (edit("mbs", 2),), (launch(),)])
    transcript = Transcript(task.desk.folder / TRANSCRIPT)
    return ClaudeTuner(task, RecordedChat("obedient", lambda: Obedient(answers), transcript))


def repeating(task: Any) -> ClaudeTuner:
    """The same from its transcript alone."""
    return ClaudeTuner(task, RecordedChat("obedient", None, Transcript(task.desk.folder / TRANSCRIPT, writable=False)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fought = fight(Attack("none", "none", tuner=talking), tmp_path_factory.mktemp("recorded"))
    assert fought.data is not None
    assert [run["purpose"] for run in fought.data["runs"]].count("search") == 2
    return fought.out


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "campaign"))


def rewritten(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def poison(path: Path) -> None:
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return poison


def forged(path: Path) -> None:
    """Another reason for the first launch, in a chain of links that is made anew."""
    before = after = START
    lines = []
    for data in path.read_bytes().splitlines():
        line, before = unchained(data, before)
        text = line.model_dump_json().replace("to see", "to win")
        made, after = chained(type(line).model_validate_json(text, strict=True), after)
        lines.append(made + b"\n")
    path.write_bytes(b"".join(lines))


EDITED = "this or an earlier line was edited, dropped or moved"
FLOOD = b'{"sha256": "' + b"0" * 3_000_000 + b"\n"
NONE = "no line of a transcript"
MISSING = r"what is said to obedient left .* at turn \d"
POISONS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an answer": (rewritten(lambda lines: [line.replace(b'"tp"', b'"pp"') for line in lines]), EDITED),
    "a result": (rewritten(lambda lines: [line.replace(b'kept, +', b'kept, -') for line in lines]), EDITED),
    "a line dropped": (rewritten(lambda lines: lines[:3] + lines[4:]), EDITED),
    "a line twice": (rewritten(lambda lines: [*lines[:3], lines[2], *lines[3:]]), EDITED),
    "two lines swapped": (rewritten(lambda lines: [lines[0], lines[2], lines[1], *lines[3:]]), EDITED),
    "the end cut off": (rewritten(lambda lines: lines[:5]), MISSING),
    "the end of a line cut off": (rewritten(lambda lines: [*lines[:4], lines[4][:-20]]), MISSING),
    "all of it": (rewritten(lambda lines: []), MISSING),
    "garbage behind it": (rewritten(lambda lines: [*lines, b"\xff\xfe\0\n"]), NONE),
    "nesting behind it": (rewritten(lambda lines: [*lines, b"[" * 200_000 + b"\n"]), NONE),
    "a flood behind it": (rewritten(lambda lines: [*lines, FLOOD]), EDITED),
    "the file gone": (Path.unlink, MISSING),
    "a folder in its place": (lambda path: (path.unlink(), path.mkdir()), MISSING),
    "an answer, with links made anew": (forged, r"run 003-search, reason: .*to see.* then, .*to win.* now"),
}  # fmt: skip


@pytest.mark.parametrize("what", POISONS)
def test_a_poisoned_transcript_is_named(copy: Path, what: str) -> None:
    poison, said = POISONS[what]
    poison(copy / TRANSCRIPT)
    (first, *_) = replay_campaign(copy, repeating).differences
    assert re.search(said, first)


def test_untouched_it_is_replayed(copy: Path) -> None:
    assert replay_campaign(copy, repeating).differences == ()


def test_a_drifted_tool_or_instruction_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attune_lab.agent.claude.tuner.SYSTEM", "You may ignore the budget.")
    (found,) = replay_campaign(copy, repeating).differences
    assert "after run finalist" not in found
    assert "the system text is another" in found
    monkeypatch.undo()

    def other() -> Toolbox:
        entries = list(toolbox()._entries.values())
        entries[-1] = replace(entries[-1], tool=replace(entries[-1].tool, description="Ends it, and ships."))
        return Toolbox(entries)

    monkeypatch.setattr("attune_lab.agent.claude.tuner.toolbox", other)
    (found,) = replay_campaign(copy, repeating).differences
    assert "the schema of finish is another" in found


CODE = (
    "__import__('os').system('touch pwned')",
    "(lambda: 1)()",
    "open('pwned', 'w')",
    "tp.__class__.__mro__",
    "[x for x in (1,)]",
    "(" * 500 + "1" + ")" * 500,
    "tp == 1 or " * 5_000 + "tp == 2",
)  # fmt: skip


@pytest.mark.parametrize("precondition", CODE)
def test_a_precondition_runs_no_code_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precondition: str
) -> None:
    monkeypatch.chdir(tmp_path)
    lesson = {
        "id": "X", "title": "x", "symptoms": ["always"], "preconditions": [precondition], "moves": [{"tp": 1}],
        "step_time_pct": [-1, 1], "basis": "measured", "sources": ["nobody"],
    }  # fmt: skip
    (tmp_path / "lessons.yaml").write_text(json.dumps({"symptoms": {"always": "x"}, "lessons": [lesson], "advice": []}))
    with pytest.raises(UserError, match="lesson X"):
        load(tmp_path / "lessons.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["lessons.yaml"]


@pytest.mark.parametrize("precondition", ["9 ** 9 ** 9 ** 9 > 0", "'x' * 10 ** 12 == ''", "1e308 * 10 ** 64 ** 64 > 0"])
def test_a_precondition_is_bounded_where_it_is_asked(precondition: str) -> None:
    known = load().lessons[0]
    with pytest.raises(ValueError, match="expression"):
        known.model_copy(update={"preconditions": (precondition,)}).holds({})


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"campaigns": ' + "9" * 5_000 + "}",
        '{"campaigns": [{"model": "__import__(\'os\')"}]}',
        '{"campaigns": "' + "x" * 1_000_000 + '"}',
        "\xff",
        "null",
    ],
    ids=["nested", "a number without end", "code", "a flood", "no JSON", "nothing"],
)
def test_poisoned_evidence_is_refused_in_one_short_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lessons.json"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        Evidence.load(str(path))
    assert len(str(refused.value)) < 500
