"""The peak memory of one job as a tree of terms, from the recorded calls of the formulas."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.explain.terms import Term, number, quantity, source_of
from simulator.hardware import GIB
from simulator.job import Jobs, tokens_per_rank
from simulator.memory import MEMORY_PARTS, MemoryEstimate
from simulator.recording import Call


def memory_term(jobs: Jobs, peak: Call) -> Term:
    """What the fullest pipeline stage of a single job reserves, from the recorded call of `peak_memory`."""
    found: MemoryEstimate = peak.result
    stage = int(found.peak_reserved_bytes[0].argmax())
    reserved, allocated = (float(a[0, stage]) for a in (found.peak_reserved_bytes, found.peak_allocated_bytes))
    outside = number(found.outside_bytes)
    values = {name: number(found.parts[name]) for name in MEMORY_PARTS}
    parts = [
        *(_state(name, values[name], peak, stage) for name in ("weights", "gradients", "optimizer")),
        _activations(jobs, values["activations"], peak, stage),
        _temporary(jobs, values["temporary"], peak, stage),
        _buffers(values["buffers"], peak, stage),
        Term(
            "unused segments",
            reserved - allocated - outside,
            "B",
            f"reserved beyond the {allocated / GIB:.2f} GiB allocated",
        ),
        Term("outside the allocator", outside, "B", "CUDA context, communicators, dispatchers"),
    ]
    stages = tuple(
        Term(f"stage {index + 1}", float(value), "B")
        for index, value in enumerate(found.peak_reserved_bytes[0, : int(jobs.pp[0])])
    )
    formula = f"sum of the parts on stage {stage + 1} of {int(jobs.pp[0])}, the fullest"
    return Term("peak memory", reserved, "B", formula, children=tuple(parts), inputs=stages)


def _state(name: str, value: float, peak: Call, stage: int) -> Term:
    """Weights, gradients or optimizer state."""
    held = peak.last("_rank_parameters")
    dense, table, experts = (float(one[0, stage]) for one in held.result)
    total = dense + table + experts
    named = (("dense", dense), ("embedding and head", table), ("experts", experts))
    text = " + ".join(f"{count / 1e9:.3g} B {kind}" for kind, count in named if count)
    formula = f"{text} parameters on the rank, {value / total:.3g} bytes each after sharding"
    return Term(name, value, "B", formula, source_of(peak.last("model_state").function))


def _sums(call: Call, stage: int) -> Iterator[dict[str, float]]:
    """The sums that a formula took over named parts, for one stage."""
    for total in call.all("_total"):
        yield {name: float(part[0, min(stage, part.shape[1] - 1)]) for name, part in total.arguments["parts"].items()}


def _activations(jobs: Jobs, value: float, peak: Call, stage: int) -> Term:
    call, tokens = peak.last("_activations"), number(tokens_per_rank(jobs))
    layers, kept = _sums(call, stage)
    whole = sum(layers.values())
    children = []
    for part, size in layers.items():
        if size and kept["layers"]:
            share = size / whole * kept["layers"] * tokens
            formula = (
                f"{quantity(size)} a token on the stage x {kept['layers'] / whole:g} in flight x {tokens:,.0f} tokens"
            )
            children.append(Term(part, share, "B", formula, children=_tensors(part, share, peak)))
    children += [Term(name, kept[name] * tokens, "B") for name in kept if name != "layers" and kept[name]]
    formula = "tensors kept between forward and backward by all micro-batches in flight"
    return Term("activations", value, "B", formula, source_of(call.function), tuple(children))


def _tensors(part: str, value: float, peak: Call) -> tuple[Term, ...]:
    """The kept tensors of one part of a layer, with their shares of ``value``."""
    rows = [call for call in peak.last("part_activations").all("kept") if call.arguments["self"].part == part]
    sizes = {id(row): number(row.result) for row in rows}
    total = sum(sizes.values())
    return tuple(
        Term(
            row.arguments["self"].name,
            value * sizes[id(row)] / total,
            "B",
            f"{quantity(sizes[id(row)])} a token and layer",
        )
        for row in rows
        if sizes[id(row)]
    )


def _temporary(jobs: Jobs, value: float, peak: Call, stage: int) -> Term:
    call, tokens = peak.last("_temporaries"), number(tokens_per_rank(jobs))
    [per_token] = _sums(call, stage)
    formula = "alive only at the peak"
    children = [Term(name, size * tokens, "B", f"{quantity(size)} a token") for name, size in per_token.items() if size]
    return _closed("temporary", value, children, "gathered weights", formula)


def _buffers(value: float, peak: Call, stage: int) -> Term:
    names = {"_placeholder_gradients": "placeholder gradients"}
    found = [(text, float(peak.last(name).result[0, stage]), peak.last(name)) for name, text in names.items()]
    children = [Term(text, size, "B", source=source_of(call.function)) for text, size, call in found if size]
    return _closed("buffers", value, children, "inputs gathered ahead", "" if value else "none")


def _closed(name: str, value: float, children: list[Term], rest: str, formula: str) -> Term:
    """A term whose last child, called ``rest``, is what the others leave."""
    left = value - sum(child.value for child in children)
    if abs(left) > 1e-9 * abs(value):
        children = [*children, Term(rest, left, "B")]
    return Term(name, value, "B", formula, children=tuple(children))
