"""Settings in force, as two runs read them from their live objects: what the stack says after its own fixes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attune_lab.gate.couplings import coupled
from attune_lab.gate.defects import active, introduced
from attune_lab.gate.derived import batch_and_schedule
from attune_lab.gate.facts import facts_in_force
from attune_lab.gate.rules import approved_names, judge_setting, outside, show
from attune_lab.gate.start import INITIAL_WEIGHTS
from attune_lab.gate.verdict import Check
from attune_lab.signals.schema import PLACED_MASKS

if TYPE_CHECKING:
    from attune_lab.signals.schema import Signals

_MISSING = object()


def effective_differences(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any], approvals: Collection[str] = ()
) -> list[Check]:
    """One check per difference between two runs' settings in force; empty where there is none.

    Args:
        baseline, candidate: `attune_lab.signals.schema.Signals.effective`: settings by registry key and the entries of
            `attune_lab.gate.rules.outside`. A setting that only one run tells is a question, not a change.
        approvals: changes of numerics the user accepts.

    Raises:
        UserError: an approval names nothing.
    """
    from attune_lab.recipe.registry import registry

    approved = approved_names(approvals)
    before, after = ({name: _plain(value) for name, value in run.items()} for run in (baseline, candidate))
    names = sorted((before.keys() | after.keys()) - {INITIAL_WEIGHTS, PLACED_MASKS})  # `start` reads these two
    checks = [check for name in names for check in _difference(name, before, after, approved)]
    defaults = {key: setting.default for key, setting in registry().items()}
    both = {name for name in names if name in before and name in after}
    full = [{**defaults, **{name: run[name] for name in both}} for run in (before, after)]
    return [*checks, *coupled(*full), *batch_and_schedule(before, after)]


def known_defects(baseline: Signals, candidate: Signals) -> list[Check]:
    """One check per known defect of Megatron-LM that two recorded runs touch; empty for runs of other stacks."""
    if "mcore" not in baseline.stack or "mcore" not in candidate.stack:
        return []
    before, after = (active(facts_in_force(run.effective, run.stack)) for run in (baseline, candidate))
    return list(introduced(before, after))


def _difference(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], approved: Collection[str]
) -> Iterator[Check]:
    from attune_lab.recipe.registry import registry

    old, new = before.get(name, _MISSING), after.get(name, _MISSING)
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return
    setting = registry().get(name) or outside().get(name)
    if old is _MISSING or new is _MISSING:
        told = new if old is _MISSING else old
        if setting is not None and told == setting.default:
            return
        reason = f"Only one run tells {name}, which is {show(told)} there: record both with the same hooks."
        yield Check(f"configuration.{name}", "inconclusive", reason)
    elif setting is None:
        moved = f"{name} changes from {show(old)} to {show(new)}"
        reason = f"{moved}, and its effect is not known: restore it or change it in the baseline too."
        yield Check(f"configuration.{name}", "inconclusive", reason)
    else:
        yield judge_setting(setting, old, new, approved)


def _plain(value: Any) -> Any:
    """A value as the registry writes it; JSON knows no tuples."""
    return tuple(value) if isinstance(value, list) else value
