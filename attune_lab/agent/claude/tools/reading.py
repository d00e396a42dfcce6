"""Tools that read: documents, logs, and what a log claims beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attune_lab.agent.claude.toolbox import Refused, entry, figure, shortened, text, whole
from attune_lab.agent.claude.workspace import LogFile, printable
from attune_lab.logs import cross_check, summarise
from attune_lab.logs import read_log as read_training_log

if TYPE_CHECKING:
    from attune_lab.agent.claude.session import Session

PIECE = 8_000
"""Bytes of a document in one result at most."""

SEARCHED = 2_000_000
"""Bytes of a document that are searched; a longer log is searched at its beginning, and summed up by its two ends."""

MATCHES = 40
"""Lines a search shows at most, and characters of each (`LINE`)."""

LINE = 240


def list_files(session: Session, _: Mapping[str, Any]) -> dict[str, Any]:
    """Names and sizes of all documents, the latest 200 runs."""
    found = [{"file": name, "bytes": document.size} for name, document in session.documents().items()]
    return {"files": found[:2] + found[2:][-401:]}


def read_file(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A piece of a document."""
    name, offset, limit = arguments["file"], int(arguments.get("offset", 0)), int(arguments.get("limit", PIECE))
    document = session.document(name)
    size = document.size
    piece = document.read(offset, limit)
    more = offset + limit if offset + limit < size else None
    return {"file": name, "bytes": size, "offset": offset, "next_offset": more, "quoted_text": piece}


def search_files(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Lines that hold a text, letters compared without case."""
    wanted, where = arguments["text"].casefold(), arguments.get("file", "")
    documents = {where: session.document(where)} if where else session.documents()
    found: list[dict[str, Any]] = []
    for name, document in documents.items():
        content = document.read(0, SEARCHED)
        for number, line in enumerate(content.splitlines(), start=1):
            if wanted in line.casefold():
                if len(found) == MATCHES:
                    return {"matches": found, "more": True}
                found.append({"file": name, "line": number, "quoted_text": printable(line[:LINE])})
    return {"matches": found, "more": False}


def read_log(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A piece of a run's log, counted from its end or its beginning."""
    name, log = _log(session, arguments["run"])
    size, limit = log.size, int(arguments.get("limit", PIECE))
    skipped = int(arguments.get("skip", 0))
    offset = skipped if arguments.get("part") == "start" else max(size - skipped - limit, 0)
    return {"file": name, "bytes": size, "offset": offset, "quoted_text": log.read(offset, limit)}


def summarise_log(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a log claims, what we timed ourselves, and where the two part."""
    run = session.run(arguments["run"])
    name, log = _log(session, run.label)
    size = log.size
    claimed = read_training_log(log.read(0, SEARCHED) + "\n" + log.read(max(size - SEARCHED, SEARCHED), SEARCHED))
    summary = summarise(claimed, gpus=session.task.cluster.n_gpus, tokens_per_step=run.report.tokens_per_step)
    failure = claimed.failure
    return {
        "file": name,
        "bytes": size,
        "stack": claimed.stack,
        "claimed_by_the_log": {
            "steps": summary.steps,
            "step_time_s": figure(summary.step_time_s),
            "tokens_per_s_per_gpu": figure(summary.tokens_per_s_per_gpu),
            "loss_last": figure(summary.loss_last),
        },
        "timed_by_us": {
            "steps": len(run.report.step_times_s),
            "mean_step_time_s": figure(run.report.mean_step_time_s),
            "tokens_per_s_per_gpu": figure(run.report.tokens_per_s_per_gpu),
        },
        "discrepancies": [shortened(sentence, 200) for sentence in cross_check(run.report, claimed)[:10]],
        "ended_by": failure and {"kind": failure.kind, "line": failure.line},
        "quoted_text": [shortened(line, 200) for line in ((failure.evidence,) if failure else ())]
        + [shortened(remark, 200) for remark in claimed.remarks[:10]],
    }


def _log(session: Session, label: str) -> tuple[str, LogFile]:
    """The log of a run, with its name.

    Raises:
        Refused: no such run, or none that can be read.
    """
    name = f"runs/{session.run(label).label}.log"
    document = session.documents().get(name)
    if not isinstance(document, LogFile):
        raise Refused(f"{shortened(label, 60)} left no log in the campaign's folder; read runs/LABEL.json instead")
    return name, document


RUN = text("Label of a run, or 'baseline'.", 80)
LIMIT = whole(f"Bytes to read, at most {PIECE}.", 1, PIECE)

TOOLS = (
    entry(
        list_files,
        "List the documents: recipe/NAME (your draft), baseline/NAME (the file as it came in, carried over to this "
        "cluster), runs/LABEL.log and runs/LABEL.json of every run, and notes.md.",
    ),
    entry(
        read_file,
        "Read a document, or a piece of it. Offsets count bytes.",
        {"file": text("Name as listed by list_files.")},
        {"offset": whole("First byte, 0 when not given.", 0, 10**12), "limit": LIMIT},
    ),
    entry(
        search_files,
        "Find the lines that hold a plain text (no pattern, letters compared without case), in all documents or one.",
        {"text": text("What to look for.")},
        {"file": text("Name of one document; all when not given.")},
    ),
    entry(
        read_log,
        "Read the end (or the beginning) of a run's log as it was written.",
        {"run": RUN},
        {
            "part": {"type": "string", "enum": ["start", "end"], "description": "end when not given."},
            "skip": whole("Bytes to skip from that side.", 0, 10**12),
            "limit": LIMIT,
        },
    ),
    entry(
        summarise_log,
        "What a run's log claims (steps, speed, how it ended) beside our own timing of the run, with every discrepancy "
        "named. Our own timing is what counts.",
        {"run": RUN},
    ),
)
