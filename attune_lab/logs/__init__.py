"""Training logs of any supported stack, read into one form. What a log says is data: claims, not measurements."""

from attune_lab.logs.contract import Failure, LoggedStep, TrainingLog
from attune_lab.logs.crosscheck import cross_check
from attune_lab.logs.failures import KINDS
from attune_lab.logs.reading import LogReading, read_log
from attune_lab.logs.summary import Summary, summarise

__all__ = [
    "KINDS",
    "Failure",
    "LogReading",
    "LoggedStep",
    "Summary",
    "TrainingLog",
    "cross_check",
    "read_log",
    "summarise",
]
