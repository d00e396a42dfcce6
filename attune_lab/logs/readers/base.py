"""What a reader of one stack's log is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from attune_lab.logs.contract import LoggedStep
from attune_lab.logs.lines import Line

_MAX_RANKS = 1 << 17


@dataclass
class Facts:
    """What a log says besides its steps; readers write it, each line adding to what is known.

    Attributes:
        gpus, seq_len, batch: of the job; ``batch`` is the global batch size in samples.
        memory_bytes: reserved peak by rank.
        round_trip_s: see `TrainingLog`.
        finished: the stack said that training is done, and no step came after.
        remarks: sentences, each once, in the order found.
    """

    gpus: int | None = None
    seq_len: int | None = None
    batch: float | None = None
    memory_bytes: dict[int, float] = field(default_factory=dict)
    round_trip_s: dict[int, float] = field(default_factory=dict)
    finished: bool = False
    remarks: dict[str, None] = field(default_factory=dict)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens of one step, where both factors are known."""
        return None if self.seq_len is None or self.batch is None else self.seq_len * self.batch

    def reserved(self, rank: int | None, size: float | None) -> None:
        """Note the reserved peak of a rank; 0 where the line does not say which."""
        rank = rank or 0
        if size is not None and size >= 0 and (rank in self.memory_bytes or len(self.memory_bytes) < _MAX_RANKS):
            self.memory_bytes[rank] = max(size, self.memory_bytes.get(rank, 0.0))

    def remark(self, sentence: str) -> None:
        """Note a sentence; the number of remarks is bounded."""
        if len(self.remarks) < 20:
            self.remarks[sentence] = None


class Reader(Protocol):
    """Reads the lines of one stack. One instance reads one log."""

    @property
    def stack(self) -> str:
        """The stack's name."""
        ...

    @property
    def needles(self) -> tuple[str, ...]:
        """A line without any of these texts is not shown to the reader."""
        ...

    @property
    def ends(self) -> tuple[str, ...]:
        """How a complete step line ends; empty where that cannot be told.

        A line that the end of the file may have cut off counts only if it ends so.
        """
        ...

    def read(self, line: Line, facts: Facts) -> LoggedStep | bool:
        """The step a line prints, or whether it is a line of this stack at all."""
        ...
