"""Which faults the configuration check tells before anything runs, and whether it cries wolf over public recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, get_args

from attune_lab.gate.configuration import check
from attune_lab.gate.defects import active, defects
from attune_lab.gate.facts import facts_from
from attune_lab.gate.in_force import effective_differences
from attune_lab.gate.start import start_may_differ
from simulator.hardware import parse_cluster

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe

BASELINE: Mapping[str, Any] = {
    "tp": 1, "pp": 2, "dp": 8, "mbs": 1, "num_microbatches": 32, "gbs": 256, "seq_len": 4096, "train_iters": 1000,
    "lr_decay_iters": 1000, "num_experts": 8, "aux_loss_coeff": 0.01, "mtp_num_layers": 1, "adam_beta2": 0.95,
    "grad_reduce_in_fp32": True, "main_params_dtype": "fp32", "exp_avg_dtype": "fp32", "check_nan": True,
    "capacity_factor": None, "rotary_base": 10000, "eod_mask_loss": False, "parameters_trained": 1000,
    "optimizer.weight_decay_on_norms": False,
}  # fmt: skip
"""Settings in force of a healthy run."""

ACCELERATORS = {"H100": "H100-SXM5-80GB", "B200": "B200-SXM-180GB", "GB200": "GB200-NVL72", "MI355X": "MI355X"}
"""What the index of recipes calls them, in full."""

How = Literal["rejected", "a question", "not told"]


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        fault: its number.
        predicate: the condition, or the settings that move.
        caught: rejected, a question to the user, or not told by any setting.
        how: which part of the check says it, or what sees the fault instead.
        alarm_without: the same part still speaks when the fault's condition is lifted.
    """

    fault: str
    predicate: str
    caught: How
    how: str
    alarm_without: bool = False


def rows() -> list[Row]:
    """One row per fault of ``predicates.yaml``, in its order."""
    return [_row(fault, entry) for fault, entry in entries().items()]


@cache
def entries() -> Mapping[str, Mapping[str, Any]]:
    """``predicates.yaml``; its header explains the fields."""
    from ruamel.yaml import YAML

    text = files("experiments.faults").joinpath("predicates.yaml").read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, Any]] = YAML(typ="safe").load(text)
    return table


def _row(fault: str, entry: Mapping[str, Any]) -> Row:
    if "seen_by" in entry:
        return Row(fault, "", "not told", entry["seen_by"])
    if "facts" in entry:
        when = next(defect.when.text for defect in defects() if defect.id == fault)
        lifted = _by_table(fault, {**entry["facts"], **entry["without"]})
        return Row(fault, when, _by_table(fault, entry["facts"]), "known defect", lifted != "not told")
    moves = entry.get("change") or entry["start"]
    predicate = ", ".join(f"{name}: {BASELINE.get(name)} -> {value}" for name, value in moves.items())
    if "start" in entry:
        differs = start_may_differ(BASELINE, {**BASELINE, **moves})
        return Row(fault, predicate, "a question" if differs else "not told", "initial weights")
    outcomes = {c.outcome for c in effective_differences(BASELINE, {**BASELINE, **moves})}
    caught: How = "rejected" if "reject" in outcomes else "a question" if "inconclusive" in outcomes else "not told"
    return Row(fault, predicate, caught, "settings in force")


def _by_table(fault: str, given: Mapping[str, Any]) -> How:
    """What the table of known defects says of one fault under some facts."""
    found, unknown = active(facts_from(given))
    outcome = next((defect.outcome for defect in found if defect.id == fault), None)
    if outcome == "reject":
        return "rejected"
    return "a question" if outcome or any(defect.id == fault for defect, _ in unknown) else "not told"


def moves_of(recipe: Recipe) -> list[Mapping[str, Any]]:
    """Legitimate changes of a recipe, none of which leads into a known defect of the release that it names."""
    size = {key: int(str(recipe.get(key))) for key in ("mbs", "cp", "ep")}
    moves: list[Mapping[str, Any]] = [
        {}, {"log_interval": 7}, {"save_interval": 123}, {"num_workers": 4}, {"manual_gc": not recipe.get("manual_gc")},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"overlap_grad_reduce": not recipe.get("overlap_grad_reduce")},
        {"overlap_param_gather": not recipe.get("overlap_param_gather")},
        {"cross_entropy_fusion": not recipe.get("cross_entropy_fusion")},
        {"attention_backend": "flash"}, {"optimizer_cpu_offload": True}, {"delay_wgrad": True},
    ]  # fmt: skip
    if recipe.get("num_experts"):
        moves += [{"dispatcher": "flex", "flex_backend": "deepep"}, {"ep": max(size["ep"] // 2, 1)}]
    if recipe.get("capacity_factor") is None:  # a capacity ties both to the tokens that are dropped
        moves += [{"mbs": 2 * size["mbs"]}, {"cp": 2 * size["cp"]}]
    return moves


@dataclass(frozen=True)
class Alarms:
    """What the check says of legitimate changes: comparisons made, and the reason of each that does not pass."""

    comparisons: int
    raised: tuple[str, ...]


def false_alarms() -> Alarms:
    """Every public recipe beside itself and beside each of `moves_of`, at the releases and the size it was made for."""
    from attune_lab.recipe.files import load, shipped

    comparisons, raised = 0, []
    for entry in shipped():
        recipe = load(entry.name).recipe
        cluster = parse_cluster(f"{entry.gpus}x{ACCELERATORS[entry.accelerator]}")
        for move in moves_of(recipe):
            comparisons += 1
            findings = check(recipe, recipe.with_settings(move), cluster=cluster).checks
            raised += [f"{entry.name} {dict(move)}: {f.reason}" for f in findings if f.outcome != "pass"]
    return Alarms(comparisons, tuple(raised))


def main() -> None:
    """Prints the table of faults and what public recipes raise."""
    table = rows()
    for row in table:
        print(
            f"{row.fault}  {row.caught:<10}  {row.how}: {row.predicate}" if row.predicate else f"{row.fault}  {row.how}"
        )
    told = [row for row in table if row.predicate]
    counts = {caught: sum(row.caught == caught for row in told) for caught in get_args(How)}
    alarms = false_alarms()
    print(f"\n{len(told)} of {len(table)} faults have a condition on settings: {counts}")
    print(f"{len(alarms.raised)} of {alarms.comparisons} legitimate changes of public recipes raise an alarm")
    for reason in alarms.raised:
        print(f"  {reason}")


if __name__ == "__main__":
    main()
