"""Cheap evidence from inside a training run: what the gate reads besides losses."""

from attune_lab.signals.schema import FILE_NAME, GROUPS, SKETCHES, Probe, Signals, StepSignals, group_of, read_signals

__all__ = ["FILE_NAME", "GROUPS", "SKETCHES", "Probe", "Signals", "StepSignals", "group_of", "read_signals"]
