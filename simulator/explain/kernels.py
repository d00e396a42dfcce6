"""Terms of single kernels and collectives, from the calls that priced them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from simulator.collectives import Group, collective_entry
from simulator.compute.tally import Tally
from simulator.explain.terms import Term, number, quantity, seconds, source_of
from simulator.job import Jobs, Precision
from simulator.kernel_tables import Entry
from simulator.kernels import attention_entry, gemm_entry
from simulator.recording import Call

_TABLES = {"gather_seconds": "all_gather", "scatter_seconds": "reduce_scatter", "dispatch_seconds": "all_to_all"}
_NAMES = {"gather_seconds": "all-gather", "scatter_seconds": "reduce-scatter", "all_reduce_seconds": "all-reduce"}


def kernel_terms(part: Call, passes: str, factor: float) -> tuple[Term, ...]:
    """The kernels of a part's pass, ``forward``, ``backward`` or ``replay``, each times ``factor``.

    Args:
        part: the call that priced one part of the model.
    """
    which = ("forward", "backward", "replay").index(passes)
    terms, kernel = [], None
    for call in part.all("gemm", "memory", "attention", "scan", "products", "attention_seconds"):
        if call.name == "attention_seconds":
            kernel = call
            continue
        spent = number(call.last("_add").result[which])
        if spent:
            name, formula, source = _described(call, kernel)
            halves = _gradients(call, spent, factor) if call.name == "gemm" and passes == "backward" else ()
            text = f"{seconds(spent)} a layer and micro-batch" + (f"; {formula}" if passes == "forward" else "")
            terms.append(Term(name, spent * factor, "s", text, source, halves))
    return tuple(terms)


def _described(call: Call, kernel: Call | None) -> tuple[str, str, str]:
    """(name, formula, source) of the kernels that one call on a tally added."""
    tally: Tally = call.arguments["self"]
    spent = number(call.last("_add").result[0])
    if call.name == "gemm":
        product = next(call.all("gemm_seconds"))
        return "matrix product", _rate(product), _gemm_source(tally.jobs, call)
    if call.name == "memory":
        priced = next(call.all("memory_seconds"))
        count = number(priced.arguments.get("kernels", 1.0))
        formula = f"{quantity(number(priced.arguments['traffic']))} moved by {count:g} kernel{'s' * (count != 1)}"
        return "memory-bound operations", formula, source_of(priced.function)
    if call.name == "attention" and kernel is not None:
        flops = number(kernel.arguments["flops"])
        kind = "mla" if tally.jobs.model.attention == "mla" else "gqa"
        source = _table_source(kernel, attention_entry(tally.jobs.cluster.accelerator, kind))
        return "attention kernel", f"{quantity(flops / spent, 'FLOP/s')}, {quantity(flops, 'FLOP')}", source
    if call.name == "scan":
        return "state-space scan", quantity(number(call.arguments["flops"]), "FLOP"), source_of(call.function)
    return "scores as a matrix", "batched products", source_of(call.function)


def _gradients(call: Call, spent: float, factor: float) -> tuple[Term, ...]:
    """Data and weight gradient of a linear layer."""
    data = list(call.all("gemm_seconds"))[1]
    weight = next(call.all("weight_gradient_seconds"))
    taken = number(data.result)
    halves = [Term("data gradient", taken * factor, "s", f"{seconds(taken)}; {_rate(data)}", source_of(data.function))]
    if spent > taken:
        text = f"{seconds(spent - taken)}; {_rate(weight)}"
        halves.append(Term("weight gradient", (spent - taken) * factor, "s", text, source_of(weight.function)))
    return tuple(halves)


def _rate(product: Call) -> str:
    m, n, k = (number(product.arguments[name]) for name in "mnk")
    rate = 2 * m * n * k / number(product.result)
    share = rate / number(product.arguments["rates"].peak_flops)
    groups = number(product.arguments.get("groups", 1.0))
    over = f" over {groups:g} experts" if groups > 1 else ""
    return f"{m:,.0f} x {n:,.0f} x {k:,.0f}{over} at {quantity(rate, 'FLOP/s')}, {100 * share:.0f} % of the peak"


def _gemm_source(jobs: Jobs, call: Call) -> str:
    product = next(call.all("gemm_seconds"))
    narrow = number(product.arguments["rates"].width) < 2
    precision = Precision(int(jobs.precision[0])) if narrow else Precision.BF16
    grouped = call.arguments.get("expert") is not None
    return _table_source(product, gemm_entry(jobs.cluster.accelerator, precision, grouped=grouped))


def _table_source(formula: Call, entry: Entry[Any] | None) -> str:
    """Source of the formula and of its constants, with the error on shapes that were not fitted."""
    if entry is None:
        return source_of(formula.function)
    error = f"; {entry.shapes:,} shapes, held-out median error {entry.error_pct[1]:.1f} %" if entry.error_pct else ""
    return f"{source_of(formula.function)} Constants: {entry.source}{error}."


def collective_terms(call: Call, *, unused: str = "") -> Iterator[Term]:
    """The collectives that a call priced and that take time.

    ``unused``: the formula not taken where a reduce-scatter and then an all-reduce of the same bytes are priced.
    """
    priced = list(call.all(*_NAMES))
    dropped = set()
    for one, other in pairwise(priced):
        kinds = (one.name, other.name)
        if kinds == ("scatter_seconds", "all_reduce_seconds") and _whole(one) == _whole(other):
            dropped.add(id(one if one.name == unused else other))
    yield from (_collective(one) for one in priced if number(one.result) and not (unused and id(one) in dropped))


def _whole(call: Call) -> float:
    return number(call.arguments["whole"])


def _collective(call: Call) -> Term:
    group: Group = call.arguments["group"]
    operation = _TABLES.get(call.name) or _reduction(call)
    inner = next(c for c in call.all("_ring_seconds", "_reduce_seconds") if c.arguments["operation"] == operation)
    moved = inner.last("transfer_seconds")
    name = f"{_NAMES[call.name]} of {quantity(number(call.arguments['whole']))}"
    latency = number(call.result) - number(moved.result)
    formula = (
        f"{seconds(latency)} latency + {_transfer(moved)}; "
        f"{number(group.size):g} ranks {number(group.stride):g} apart, {_where(group)}"
    )
    source = _table_source(call, collective_entry(group.cluster, operation))
    return Term(name, number(call.result), "s", formula, source)


def _reduction(call: Call) -> str:
    """The table an all-reduce took: the ring's, or the switch's."""
    tried = list(call.all("_reduce_seconds"))
    return str(next(c for c in reversed(tried) if number(c.result) == number(call.result)).arguments["operation"])


def _where(group: Group) -> str:
    domains = number(group.domains)
    return "in one fast domain" if domains <= 1 else f"over {domains:g} fast domains"


def _transfer(moved: Call) -> str:
    sent, rate = number(moved.arguments["sent"]), number(moved.arguments["rate"])
    return f"{quantity(sent)} at {quantity(rate, 'B/s')} with ramp, {seconds(number(moved.result))}"


def transfer_term(name: str, call: Call, operation: str) -> Term:
    """A transfer that is no plain collective: expert dispatch, key/value ring, send to the next stage.

    ``operation``: the collective whose table its constants come from.
    """
    jobs: Jobs = call.arguments["jobs"]
    ways = [_transfer(one) for one in call.calls if one.name == "transfer_seconds" and number(one.result)]
    both = "the longer of {} inside the fast domain and {} between domains"
    formula = both.format(*ways) if len(ways) > 1 else "".join(ways)
    source = _table_source(call, collective_entry(jobs.cluster, operation))
    return Term(name, number(call.result), "s", formula, source, inputs=tuple(collective_terms(call)))
