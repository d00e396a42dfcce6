"""The step time of one job as a tree of terms.

Every number is taken from a recorded call of the formula that priced it (`simulator.recording`); what is computed
here are products with counts of layers and micro-batches, and remainders that close a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.explain.kernels import collective_terms, kernel_terms, transfer_term
from simulator.explain.terms import Term, number, seconds, source_of
from simulator.job import Jobs, Schedule
from simulator.pipeline import Passes, Pipelines, pipeline_seconds
from simulator.recording import Call

_COMMUNICATION = {
    "exposed_tp": ("tp", "gathers and reductions of tensor-parallel blocks, less what GEMMs hide"),
    "exposed_ep": ("ep", "dispatch and combine of experts, less what other work hides"),
    "exposed_cp": ("cp", "key/value exchange that outlasts the attention kernel"),
}


def step_term(jobs: Jobs, step: Call) -> Term:
    """The step time of a single job, from the recorded call of `simulate_step`; children as in its breakdown."""
    seen = _Seen.of(jobs, step)
    terms = (
        _compute(seen),
        *(_communication(seen, part, *what) for part, what in _COMMUNICATION.items()),
        _sends(seen),
        _data_parallel(seen),
        _bubble(seen),
        _optimizer(seen),
        _host(seen),
    )
    formula = (
        f"sum of the parts; work of stage {seen.stage + 1} of {int(jobs.pp[0])}, the slowest, for "
        f"{seen.count:,} micro-batches, all times {seen.pace:.4f}, the pace of the slowest of "
        f"{jobs.cluster.nodes} nodes"
    )
    return Term("step time", number(step.result.step_time_s), "s", formula, source_of(step.function), terms)


@dataclass(frozen=True)
class _Seen:
    """The recorded step with what many terms need.

    Attributes:
        stage: the slowest pipeline stage, from 0.  count: micro-batches.  pace: of the slowest node.
        parts: how many of each part of the model a micro-batch crosses on that stage, none left out that it has.
    """

    jobs: Jobs
    step: Call
    stage: int
    count: int
    pace: float
    parts: dict[str, float]

    @classmethod
    def of(cls, jobs: Jobs, step: Call) -> _Seen:
        stage = int(step.last("stage_times").result.total[0].argmax())
        counts = step.last("_contents").result[1][0, stage]
        parts = {name: float(n) for name, n in zip(step.last("_costs").result, counts, strict=True) if n}
        return cls(jobs, step, stage, int(jobs.num_microbatches[0]), number(step.last("pace").result), parts)

    @property
    def micro(self) -> float:
        """Seconds of a step for a second of one micro-batch."""
        return self.count * self.pace

    @property
    def repeats(self) -> str:
        """The factors of `micro`, for reading."""
        return f"{self.count:,} micro-batches x {self.pace:.4f}"

    def value(self, part: str) -> float:
        return number(self.step.result.breakdown_s[part])

    def cost(self, part: str) -> Any:
        return self.step.last("_costs").result[part]

    def stage_value(self, field: str) -> float:
        return float(getattr(self.step.last("stage_times").result, field)[0, self.stage])


def _closed(name: str, value: float, children: list[Term], rest: str, formula: str, **more: Any) -> Term:
    """A term whose last child, called ``rest``, is what the others leave."""
    left = value - sum(child.value for child in children)
    if children and abs(left) > 1e-9 * abs(value):
        children = [*children, Term(rest, left, "s")]
    return Term(name, value, "s", formula, children=tuple(children), **more)


def _compute(seen: _Seen) -> Term:
    value = seen.value("compute")
    parts = [_part(seen, name, count) for name, count in seen.parts.items()]
    hidden = number(seen.step.last("data_parallel").result.hidden)
    if hidden:
        slowed = value - sum(part.value for part in parts)
        text = f"{seconds(hidden)} of traffic hidden behind computation"
        parts.append(Term("slowed by data-parallel traffic", slowed, "s", text))
    formula = "kernels of the slowest stage, recomputation, and what communication beside them slows down"
    return Term("compute", value, "s", formula, children=tuple(parts))


def _part(seen: _Seen, name: str, count: float) -> Term:
    """GPU time of one part of the model: its kernels forward, backward and replayed."""
    priced, cost = seen.step.last("part_times").result[name], seen.cost(name)
    call = next(c for c in seen.step.last("part_times").calls if c.name == f"{name}_time")
    factor = count * seen.micro
    passes = []
    for one in ("forward", "backward", "replay"):
        spent = number(getattr(priced, one))
        if spent:
            kernels = kernel_terms(call, one, factor)
            text = ", the recomputed kernels again" if one == "replay" else ""
            passes.append(Term(one, spent * factor, "s", f"{seconds(spent)} each{text}", children=kernels))
    each = number(cost.compute[0]) + number(cost.compute[1])
    formula = f"{seconds(each)} x {count:g} on the stage x {seen.repeats}"
    slowed = "slowed by communication beside it"
    return _closed(name, each * factor, passes, slowed, formula, source=source_of(call.function))


def _communication(seen: _Seen, part: str, field: str, what: str) -> Term:
    """Exposed communication that every layer of a kind repeats."""
    children = []
    for name, count in seen.parts.items():
        both = [number(one) for one in getattr(seen.cost(name), field)]
        if any(both):
            passes = tuple(
                Term(one, value * count * seen.micro, "s", f"{seconds(value)} each")
                for one, value in zip(("forward", "backward"), both, strict=True)
            )
            formula = f"{seconds(sum(both))} x {count:g} on the stage x {seen.repeats}"
            children.append(Term(name, sum(both) * count * seen.micro, "s", formula, children=passes))
    if not children:
        none = "all of it is hidden" if getattr(seen.jobs, field)[0] > 1 else f"{field} is 1"
        return Term(part, seen.value(part), "s", f"none: {none}")
    return Term(part, seen.value(part), "s", what, children=tuple(children), inputs=_priced(seen, field))


def _priced(seen: _Seen, field: str) -> tuple[Term, ...]:
    """What one such communication takes before anything hides it."""
    costs = seen.step.last("_costs")
    if field == "tp":
        tensor = costs.last("tensor_seconds")
        used = {number(one) for one in tensor.result}
        return tuple(term for term in collective_terms(tensor) if term.value in used)
    if field == "ep":
        exposed = costs.last("_exposed_dispatch")
        shown, hidden = (number(sum(seconds_)) for seconds_ in (exposed.result[0], exposed.result[1:]))
        one = transfer_term("dispatch or combine", exposed.last("dispatch_seconds"), "all_to_all")
        text = f"of them {seconds(hidden)} beside other work" if hidden else "nothing hides them"
        return (one, Term("layer's dispatches and combines", shown + hidden, "s", text))
    ring = costs.last("ring_attention_seconds")
    return (transfer_term("key/value ring of a layer", ring, "all_gather"),)


def _sends(seen: _Seen) -> Term:
    send = seen.step.last("send_seconds")
    if not number(send.result):
        return Term("exposed_pp", seen.value("exposed_pp"), "s", "none: pp is 1")
    priced = transfer_term("send to the next stage", send, "all_gather")
    formula = f"what sends of {seconds(number(send.result))} add to the pipeline"
    source = source_of(seen.step.last("pipeline_times").function)
    return Term("exposed_pp", seen.value("exposed_pp"), "s", formula, source, inputs=(priced,))


def _data_parallel(seen: _Seen) -> Term:
    call, value = seen.step.last("data_parallel"), seen.value("exposed_dp")
    gathered = number(call.result.gathered) * seen.pace
    children = [Term("gathering parameters", gathered, "s")] if gathered else []
    hidden = number(call.result.hidden)
    formula = f"gradients and parameters of the largest stage; {seconds(hidden)} more are hidden"
    unused = "all_reduce_seconds" if seen.jobs.zero_stage[0] else "scatter_seconds"
    inputs = tuple(collective_terms(call, unused=unused))
    return _closed("exposed_dp", value, children, "reducing gradients", formula, inputs=inputs)


def _bubble(seen: _Seen) -> Term:
    """Idle time: what stages of equal work would have, and what their differences add."""
    stages, value = int(seen.jobs.pp[0]), seen.value("bubble")
    schedule = Schedule(int(seen.jobs.schedule[0])).name.replace("ONE_F_ONE_B", "1F1B")
    passes: Passes = seen.step.last("pipeline_times").arguments["passes"]
    work = number(seen.step.last("pipeline_times").result[0])
    slowest = float(passes.total[0].max())
    formula = (
        f"{schedule}, {stages} stages with vpp {int(seen.jobs.vpp[0])}: {seconds(work)} for the pipeline, "
        f"{seen.count:,} x {seconds(slowest)} of it work of the slowest stage"
    )
    if not value:
        return Term("bubble", value, "s", "none: the slowest stage never waits")
    mean = Passes(
        *(
            np.repeat(one[:, :stages].mean(axis=1, keepdims=True), stages, axis=1)
            for one in (passes.forward, passes.backward, passes.weight)
        )
    )
    even = number(pipeline_seconds(Pipelines.of(seen.jobs), mean)) - seen.count * float(mean.total[0, 0])
    child = Term("warm-up and drain", even * seen.pace, "s", f"with {seconds(float(mean.total[0, 0]))} on every stage")
    source = source_of(pipeline_seconds)
    return _closed("bubble", value, [child], "stages of different length", formula, source=source)


def _optimizer(seen: _Seen) -> Term:
    call = seen.step.last("optimizer_seconds")
    stages = seen.step.last("stage_times").result
    held = [float(weights[0].max()) for weights in (stages.weights, stages.expert_weights)]
    children = [Term("optimizer step", number(call.result) * seen.pace, "s", source=source_of(call.function))]
    experts = f" and {held[1] / 1e9:.3g} B of experts" if held[1] else ""
    formula = f"{held[0] / 1e9:.3g} B parameters{experts} on a rank before sharding"
    return _closed("optimizer", seen.value("optimizer"), children, "all-reduce of the norm", formula)


def _host(seen: _Seen) -> Term:
    gap = seen.stage_value("host")
    text = f"{seconds(gap)} x {seen.repeats}"
    children = [Term("launches, synchronisation, offload", gap * seen.micro, "s", text)]
    issued = []
    for name, count in seen.parts.items():
        forward, backward = (number(one) for one in seen.cost(name).issue)
        formula = f"{seconds(forward)} forward and {seconds(backward)} backward, x {count:g} on the stage"
        issued.append(Term(f"micro-batch of {name} kernels to issue", (forward + backward) * count, "s", formula))
    formula = "the GPU waits where the host issues kernels slower than they run"
    return _closed("host", seen.value("host"), children, "once a step", formula, inputs=tuple(issued))
