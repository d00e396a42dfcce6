"""From the lines of a log to what it says: its stack, its steps, and why it ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from attune_lab.logs.contract import Failure, LoggedStep, TrainingLog
from attune_lab.logs.failures import Finder, evidence, signs_in
from attune_lab.logs.lines import BLOCK, Line, Splitter, blocks
from attune_lab.logs.readers import Facts, Reader, all_readers
from attune_lab.logs.track import Track

_NAN_COUNT = "number of nan iterations"


def read_log(source: str | Path) -> TrainingLog:
    """What a log says. Never raises for what stands in it; a log of no known stack is ``unknown``.

    Args:
        source: a file, also packed with gzip (``.gz``), of any size; or the text itself, told from a path by having a
            line end in it.

    Raises:
        UserError: no such file, no regular one (pipes and devices are not opened), unreadable, or binary.
    """
    reading = LogReading()
    remarks: list[str] = []
    if isinstance(source, str) and "\n" in source:
        data = source.encode(errors="replace")
        parts: Iterable[bytes] = (data[start : start + BLOCK] for start in range(0, len(data), BLOCK))
    else:
        parts = blocks(Path(source), remarks)
    for part in parts:
        reading.feed(part)
    return reading.result(remarks)


class LogReading:
    """Reads a log as it comes, in blocks of bytes."""

    def __init__(self) -> None:
        self._splitter = Splitter()
        self._tracks = [(reader, Track()) for reader in all_readers()]
        self._seen: set[int] = set()
        self._facts = Facts()
        self._finder = Finder()
        self._not_a_number: Failure | None = None
        self._steps = 0

    def feed(self, block: bytes) -> None:
        """Read on."""
        self._read(*self._splitter.split(block))

    def result(self, remarks: Iterable[str] = ()) -> TrainingLog:
        """What was said so far, the end of the text being the end of the log."""
        self._read(*self._splitter.last())
        index = self._stack()
        reader, track = self._tracks[index] if index is not None else (None, Track())
        facts = self._facts
        return TrainingLog(
            stack=reader.stack if reader else "unknown",
            steps=track.steps(),
            failure=self._finder.found or self._not_a_number,
            memory_bytes=dict(facts.memory_bytes),
            remarks=(*remarks, *self._remarks(index, track), *facts.remarks),
            finished=facts.finished,
            restarts=track.restarts,
            gpus=facts.gpus,
            tokens_per_step=facts.tokens_per_step,
            round_trip_s=dict(facts.round_trip_s),
        )

    def newest(self) -> LoggedStep | None:
        """The newest step of the stack that the log is of, as far as read."""
        index = self._stack()
        return None if index is None else self._tracks[index][1].last

    @property
    def ended(self) -> bool:
        """Whether the log has said that training is done or why it ended."""
        return self._facts.finished or self._finder.found is not None

    def _read(self, text: str, lines: Sequence[Line]) -> None:
        """Read lines with those readers and signs whose needles stand somewhere in their ``text``: for speed."""
        indices = [i for i, (reader, _) in enumerate(self._tracks) if _any(reader.needles, text)]
        signs = signs_in(text)
        for line in lines:
            known = self._step(line, indices)
            if not known and not self._facts.finished:
                self._finder.look(line, self._steps, signs)

    def _step(self, line: Line, indices: Sequence[int]) -> bool:
        """Whether the line prints a step; then it is kept."""
        new, known = False, False
        for index in indices:
            reader, track = self._tracks[index]
            if not _any(reader.needles, line.text) or _cut_off(line, reader):
                continue
            said = reader.read(line, self._facts)
            if said is not False:
                self._seen.add(index)
            if isinstance(said, LoggedStep):
                known = True
                new |= track.add(said, line.rank)
                self._steps = said.step
                self._watch(said, line)
        if new:
            self._facts.finished = False
            self._finder.stepped()
        return known

    def _watch(self, step: LoggedStep, line: Line) -> None:
        """Remember since when the loss is not a number."""
        if step.other.get(_NAN_COUNT, 0) > 0 or (step.loss is not None and not math.isfinite(step.loss)):
            self._not_a_number = self._not_a_number or evidence("nan", line)
        elif step.loss is not None:
            self._not_a_number = None

    def _stack(self) -> int | None:
        """The reader that read most figures; the first of those that read as many."""
        return max(self._seen, key=self._found, default=None)

    def _found(self, index: int) -> tuple[int, int, int]:
        track = self._tracks[index][1]
        return track.figures, len(track), -index

    def _remarks(self, index: int | None, track: Track) -> Iterable[str]:
        others = [self._tracks[other][0].stack for other in sorted(self._seen - {index})]
        if others:
            yield f"the log also has lines of {', '.join(others)}"
        if track.restarts:
            yield f"training restarted from an earlier step {track.restarts} times; steps that it undid are left out"
        if track.copies:
            yield f"{track.copies} lines of further ranks repeat steps and are left out"
        if gap := track.gap():
            yield f"of a long log only the steps up to {gap[0]} and from {gap[1]} are kept"
        for failure in self._finder.overcome:
            yield f"an earlier attempt ended with {failure.kind} (line {failure.line}); training went on"
        if self._not_a_number and self._finder.found:
            yield f"the loss is not a number from line {self._not_a_number.line} on"
        if self._splitter.cut:
            yield "lines too long for a log are cut"


def _any(needles: Iterable[str], text: str) -> bool:
    for needle in needles:  # noqa: SIM110 - twice as fast as any() over a generator
        if needle in text:
            return True
    return False


def _cut_off(line: Line, reader: Reader) -> bool:
    """Whether the end of the file may have cut the line off."""
    return not line.whole and not (reader.ends and line.text.rstrip().endswith(reader.ends))
