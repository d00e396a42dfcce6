"""How far a prediction may be off, and why it is what it is: what `attune simulate` prints of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attune_lab.cli.output import indented

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    from attune_lab.contracts import Estimate
    from attune_lab.diagnosis import Symptom
    from attune_lab.workbench import Workbench
    from simulator.explain import Explanation, Influence, Term

_NAMED = 3  # constants printed with a term
_WEAK = 0.05  # elasticity below which they are not
_LISTED = 10  # constants printed at the end
_LOSS = 0.005  # share of the step below which a symptom is not printed
_SMALL = 5e-4  # share of the whole below which parts are printed as one


def errors_of(bench: Workbench) -> dict[str, Any]:
    """``step_time_sd_s``, and ``typical_error``: how far predictions for similar published runs have been off."""
    from attune_lab.recipe.shape import shape_of
    from simulator.explain import typical_errors

    errors = typical_errors(bench.cluster.accelerator.name, shape_of(bench.baseline).name)
    return {
        "step_time_sd_s": bench.cost_model.step_time_sd_s(bench.baseline),
        "typical_error": [asdict(error) for error in errors],
    }


def explanation_of(bench: Workbench) -> Explanation:
    """The prediction for the baseline, taken apart."""
    return bench.cost_model.explain(bench.baseline)


def losses_of(bench: Workbench, estimate: Estimate) -> list[Symptom]:
    """What the predicted step loses and where memory stands, largest first; what costs nothing is left out."""
    from attune_lab.contracts import RunReport
    from attune_lab.diagnosis import diagnose
    from attune_lab.recipe.effective import effective

    predicted = RunReport(
        label="",
        status="ok",
        provenance="simulated",
        steps=0,
        mfu=estimate.mfu,
        peak_memory_bytes=estimate.stage_memory_bytes,
        memory_capacity_bytes=estimate.memory_capacity_bytes,
        breakdown_s=dict(estimate.breakdown_s),
        diagnostics=dict(estimate.diagnostics),
    )
    symptoms = diagnose(predicted, effective(bench.baseline, bench.cluster)).symptoms
    return [symptom for symptom in symptoms if symptom.at_stake >= _LOSS]


def show_losses(console: Console, losses: list[Symptom]) -> None:
    """Print what `losses_of` found, one line each."""
    console.print("\nWhat the step loses (at most)", style="bold")
    for symptom in losses:
        indented(console, f"{symptom.at_stake:6.1%}  {symptom.name}: {symptom.evidence}")
    if not losses:
        indented(console, "nothing worth a change")


def show_errors(console: Console, step_time_s: float, errors: dict[str, Any]) -> None:
    """Print what `errors_of` found for a prediction of this step time."""
    sd = errors["step_time_sd_s"]
    indented(console, f"step ± {sd:.3f} s ({100 * sd / step_time_s:.1f} %) by what is not known of the constants")
    lines: dict[str, list[str]] = {}
    for error in errors["typical_error"]:
        figure = f"{error['of']} {100 * error['median']:.1f} % ({error['runs']:,} runs)"
        lines.setdefault(error["among"], []).append(figure)
    if lines:
        indented(console, "predictions of published runs, held out of the fit, were off by (median)")
    for among, figures in lines.items():
        indented(console, f"{among}: {', '.join(figures)}", 4)


def show_explanation(console: Console, explanation: Explanation, depth: int) -> None:
    """Print both trees to this depth, the constants that the step time rests on most, and the sources."""
    sources = _Sources()
    for title, root in (("Why this step time", explanation.step_time), ("Why this memory", explanation.peak_memory)):
        console.print(f"\n[bold]{title}[/bold]")
        console.print(_tree(root, depth, root.value, sources))
    fitted = explanation.calibration
    known = f"calibrated on {fitted['rows_fitted']:,} published runs, {fitted['date']}" if fitted else "not calibrated"
    console.print(f"\n[bold]Constants that the step time rests on most[/bold] ({known})")
    for one in sorted(explanation.step_time.influences, key=lambda one: -abs(_effect(one)))[:_LISTED]:
        _show_constant(console, one)
    console.print("\nSources of formulas and tables", style="bold")
    for source, index in sources.numbers.items():
        indented(console, f"[{index}] {source.replace('``', '')}")
    console.print("\nrests on x (-0.8): with 1 % more of x the number is 0.8 % less", style="dim")


@dataclass
class _Sources:
    """Sources in the order in which they are first named, each with its number."""

    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self, source: str) -> int:
        return self.numbers.setdefault(source, len(self.numbers) + 1)


def _tree(term: Term, depth: int, whole: float, sources: _Sources) -> Tree:
    from rich.tree import Tree

    tree = Tree(_label(term, whole, sources), guide_style="dim")
    if depth:
        for one in term.inputs:
            if one.unit == "s":  # the other stages' memory stands above
                tree.add(_label(replace(one, name=f"one {one.name}"), 0.0, sources))
        for child in _shown(term, whole):
            tree.children.append(_tree(child, depth - 1, whole, sources))
    return tree


def _shown(term: Term, whole: float) -> Iterator[Term]:
    """The children, largest first; those below a share of the whole as one."""
    ordered = sorted(term.children, key=lambda child: -abs(child.value))
    small = [child for child in ordered if abs(child.value) <= _SMALL * whole]
    yield from ordered[: len(ordered) - len(small)]
    rest = sum(child.value for child in small)
    if rest:
        yield replace(small[0], name=", ".join(child.name for child in small if child.value), value=rest, formula="",
                      source="", children=(), inputs=(), influences=())  # fmt: skip


def _label(term: Term, whole: float, sources: _Sources) -> Text:
    """Name, value and share of the ``whole``; formula and constants below. An input has no share."""
    from rich.text import Text

    from simulator.explain.terms import seconds

    value = seconds(term.value) if term.unit == "s" else f"{term.value / 2**30:.2f} GiB"
    label = Text.assemble((term.name, "bold" if whole else ""), "  ", (value, "cyan"))
    if whole:
        label.append(f"  {100 * term.value / whole:.1f} %")
    if term.source:
        label.append(f"  [{sources(term.source)}]", style="dim")
    if term.formula:
        label.append(f"\n{term.formula}")
    named = [one for one in term.influences if abs(one.elasticity) >= _WEAK and one.sd][:_NAMED]
    if named:
        label.append("\nrests on " + ", ".join(f"{one.constant} ({one.elasticity:+.2f})" for one in named), style="dim")
    return label


def _show_constant(console: Console, one: Influence) -> None:
    from rich.text import Text

    line = Text.assemble((one.constant, "bold"), "  ", (f"{one.value:.3g}", "cyan"))
    line.append(f" ± {100 * one.sd:.0f} %, was {one.prior:.3g}: step {100 * _effect(one):+.1f} % for one ±")
    indented(console, line)
    indented(console, Text(f"{one.what}; prior: {one.source}", style="dim"), 4)


def _effect(one: Influence) -> float:
    """Relative change of a term when the constant is one standard deviation higher."""
    return one.elasticity * one.sd
