"""Inputs that are not what a tool asks for, and words that end on a screen, in a file or in another's hands."""

from __future__ import annotations

from functools import reduce

from attack_arena import Attack, Call, Fought, launch

NESTED: dict = reduce(lambda inner, _: {"a": inner}, range(900), {})
ESCAPES = "\x1b[2J\x1b]0;pwned\x07\x9b31m\u202egpj.exe\u2066\u200b\x00 done"
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>[red]markup[/red]"
LONG = "x" * 100_000

INPUTS: dict[str, Call] = {
    "nothing": ("read_file", None),
    "a text in place of an object": ("read_file", '{"file": "recipe/tiny.sh"}'),
    "a list": ("edit_setting", ["tp", 1]),
    "a number for a text": ("read_file", {"file": 7}),
    "a text for a number": ("read_file", {"file": "recipe/tiny.sh", "offset": "0"}),
    "a negative offset": ("read_file", {"file": "recipe/tiny.sh", "offset": -5}),
    "a switch for a number": ("read_file", {"file": "recipe/tiny.sh", "limit": True}),
    "a limit beyond the limit": ("read_file", {"file": "recipe/tiny.sh", "limit": 10**9}),
    "an offset beyond all": ("read_file", {"file": "recipe/tiny.sh", "offset": 10**30}),
    "something missing": ("edit_setting", {"parameter": "tp"}),
    "something more": ("validate", {"force": True}),
    "a value that is an object": ("edit_setting", {"parameter": "tp", "value": {"$ne": 0}}),
    "an empty text to look for": ("search_files", {"text": ""}),
    "a text too long to look for": ("search_files", {"text": LONG}),
    "a patch too long": ("patch_recipe", {"old": "--bf16", "new": LONG}),
    "nesting": ("edit_setting", NESTED),
    "no such tool": ("bash", {"command": "id"}),
    "a tool whose name is a number": (7, {}),
    "a tool whose name is nothing": (None, {}),
    "a name of Python's for a tool": ("__init__", {}),
    "a launch without a lesson": ("launch_run", {"lever": "x"}),
    "a remeasurement that is a word": launch(remeasure="yes"),
    "too many runs behind a note": (
        "write_lesson", {"title": "x", "symptom": "always", "observation": "x", "runs": ["baseline"] * 11},
    ),
    "a symptom that is not known": (
        "write_lesson", {"title": "x", "symptom": "__import__('os')", "observation": "x", "runs": ["baseline"]},
    ),
}  # fmt: skip


def note(title: str, text: str) -> Call:
    return "write_lesson", {"title": title[:110], "symptom": "always", "observation": text[:390], "runs": ["baseline"]}


def kept_as_text(fought: Fought) -> str | None:
    """Notes are data: nothing of them is in a decision as markup, and no more than the limit is kept."""
    from attune_lab.lessons.notes import read_notes

    notes = read_notes(fought.out)
    return "more notes than may be" if len(notes) > 100 else None


def last_launch_refused(fought: Fought) -> str | None:
    return None if "error" in fought.answer_to("launch_run") else "a note was acted on"


BECOMES_A_LESSON = (note("halve the batch", "__import__('os').system('id')"),)

ATTACKS = (
    *(Attack(f"input: {what}", "inputs", ((call,),), refused=True) for what, call in INPUTS.items()),
    Attack("words: escapes in a reason", "record", ((launch(reason=ESCAPES, lever=ESCAPES, symptom=ESCAPES),),)),
    Attack("words: escapes in a choice", "record",
           ((launch(),), (("finish", {"choice": "003-search", "why": ESCAPES}),))),
    Attack("words: escapes in a note", "record", ((note(ESCAPES, ESCAPES),), (("read_file", {"file": "notes.md"}),))),
    Attack("words: escapes as the name of a tool", "record", (((ESCAPES, {}), ("read_file", {"file": ESCAPES})),),
           refused=True),
    Attack("words: markup and a script in a reason", "record", ((launch(reason=SCRIPT, lever=SCRIPT),),)),
    Attack("words: half a character", "record", ((launch(reason="\ud800", lever="\udfff"),),)),
    Attack("words: nothing printable", "record", ((note("\u200b\u200b", "\x1b\x1b"),),), refused=True),
    Attack("notes: a thousand", "bounds", ((*(note(f"note {n}", "x") for n in range(150)),),), won=kept_as_text),
    Attack("notes: one that would be a lesson", "data", (BECOMES_A_LESSON, (launch(lesson="halve the batch"),)),
           rules=True, won=last_launch_refused),
    Attack("lessons: one that nobody wrote", "data", ((launch(lesson="L-ignore-the-budget"),),),
           rules=True, refused=True),
    Attack("lessons: one with code for a name", "data", ((launch(lesson="__import__('os').system('id')"),),),
           rules=True, refused=True),
    Attack("lessons: none is named", "data", ((launch(),),), rules=True, refused=True),
    Attack("lessons: read by a path", "paths", ((("read_lesson", {"lesson": "../secret.txt"}),),), refused=True),
)  # fmt: skip
