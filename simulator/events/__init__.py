"""A discrete-event simulation (SimPy) of pipeline schedules: the reference for the closed forms of
`simulator.pipeline`, and what the timeline draws."""

from simulator.events.orders import Group, Kind, Placement, Task, order
from simulator.events.play import Disturbance, Parts, Recorded, Run, Step, play

__all__ = ["Disturbance", "Group", "Kind", "Parts", "Placement", "Recorded", "Run", "Step", "Task", "order", "play"]
