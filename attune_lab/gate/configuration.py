"""Do two recipes describe the same training run? Effective settings, versions and environment, side by side."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from attune_lab.gate import defects
from attune_lab.gate.bands import FP8, NO_ALLOWANCE, Band, Change
from attune_lab.gate.couplings import coupled
from attune_lab.gate.derived import batch_and_schedule, weights_trained
from attune_lab.gate.facts import facts_of
from attune_lab.gate.rules import approved_names, judge_setting, raises_precision, show
from attune_lab.gate.verdict import Check
from attune_lab.recipe.remembered import remembered

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from attune_lab.recipe.registry import Setting
    from simulator.hardware import ClusterSpec
    from simulator.models import ModelShape

ENVIRONMENT = {
    "PYTORCH_*ALLOC_CONF": Change.SAME_KERNELS,
    "CUDA_DEVICE_MAX_CONNECTIONS": Change.SAME_KERNELS,
    "TORCH_NCCL_*": Change.SAME_KERNELS,
    "NVTE_*_SM_MARGIN": Change.SAME_KERNELS,
    "OMP_NUM_THREADS": Change.SAME_KERNELS,
    "GLOO_*": Change.SAME_KERNELS,
    "UCX_*": Change.SAME_KERNELS,
    "NCCL_*": Change.REORDERED,  # the algorithm decides the order of a reduction
    "NVTE_FLASH_ATTN": Change.REORDERED,
    "NVTE_FUSED_ATTN": Change.REORDERED,
    "NVTE_UNFUSED_ATTN": Change.REORDERED,
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": Change.REORDERED,
}
"""Environment variables known to leave the objective alone, as patterns; anything else that changes is a question."""

OTHER_SUMS = frozenset({"nccl_ub", "use_sharp", "nccl_communicator_config"})
"""Settings of the communication group that may add in another order."""

_ORDER = list(Change)


@dataclass(frozen=True)
class ConfigurationResult:
    """The checks of every difference, and what they mean for the curves.

    Attributes:
        checks: one per difference; a single pass when there is none.
        change: the most invasive kind of change.
        allowance: how far the curves may part because the candidate leaves known defects of the baseline.
    """

    checks: tuple[Check, ...]
    change: Change
    allowance: Band = NO_ALLOWANCE


def check(
    baseline: Recipe,
    candidate: Recipe,
    *,
    cluster: ClusterSpec,
    versions: Mapping[str, str] | None = None,
    approvals: Collection[str] = (),
    versions_follow: bool = False,
) -> ConfigurationResult:
    """Every difference between two recipes, judged by what it does to the training run.

    Args:
        baseline, candidate: recipes of one stack.
        cluster: both run on it.
        versions: library versions the runs reported, where the recipes do not name them.
        approvals: settings whose change of numerics the user accepts, or parameters of the search space that write
            several, alone or after their group (``precision.fp8``).
        versions_follow: a run will report the versions, so a defect that hangs on an unknown one is not asked about.

    Raises:
        UserError: one of the recipes has no effective configuration on this cluster, or an approval names nothing.
    """
    reported = None if versions is None else tuple(versions.items())
    before, had = _side(baseline, cluster, reported)
    after, has = _side(candidate, cluster, reported)
    changed, approved = _changed(before, after), approved_names(approvals)
    checks = [
        *(judge_setting(setting, old, new, approved) for setting, old, new in changed),
        *coupled(before, after),
        *_mapping("flag", baseline.carried, candidate.carried),
        *_mapping("version", baseline.versions, candidate.versions),
        *_environment(baseline.environment, candidate.environment),
        *_invariants(baseline, candidate, before, after),
        *defects.introduced(had, has, versions_follow=versions_follow),
    ]
    if not checks:
        checks = [Check("configuration", "pass", "Both recipes have the same effective configuration.")]
    kinds = [kind_of(setting, old, new) for setting, old, new in changed]
    kinds += [kind for name in _differing(baseline.environment, candidate.environment) if (kind := _variable(name))]
    change = max(kinds, key=_ORDER.index, default=Change.SAME_KERNELS)
    left = [defect for defect in had[0] if defect not in has[0]]
    return ConfigurationResult(tuple(checks), change, _allowance(before, after, left))


@remembered(last=32)
def _shape(recipe: Recipe) -> ModelShape:
    from attune_lab.recipe.shape import shape_of

    return shape_of(recipe)


@remembered(last=32)
def _side(
    recipe: Recipe, cluster: ClusterSpec, reported: tuple[tuple[str, str], ...] | None
) -> tuple[Mapping[str, Any], defects.Active]:
    """The facts of one of the two recipes and the defects they have; the baseline is compared again and again."""
    facts = facts_of(recipe, cluster, None if reported is None else dict(reported))
    return facts, defects.active(facts)


def other_versions(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> Check | None:
    """The question, called ``name``, that two runs leave open on different releases; None on the same ones."""
    moved = sorted(library for library, version in before.items() if after.get(library) != version)
    if not moved:
        return None
    reason = f"The runs report different versions of {', '.join(moved)}: run both on one installation."
    return Check(name, "inconclusive", reason)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[Setting, Any, Any]]:
    """Settings whose effective values differ, with both values."""
    from attune_lab.recipe.registry import registry

    known = registry().items()
    return [(setting, before[key], after[key]) for key, setting in known if before[key] != after[key]]


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _variable(name: str) -> Change | None:
    return next((kind for pattern, kind in ENVIRONMENT.items() if fnmatchcase(name, pattern)), None)


def change_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    """The most invasive kind of change between two sets of settings; what the registry lacks, e.g. dp, may reorder."""
    from attune_lab.recipe.registry import registry

    known = registry()
    moved = [key for key in before.keys() & after.keys() if before[key] != after[key]]
    kinds = (kind_of(known[k], before[k], after[k]) if k in known else Change.REORDERED for k in moved)
    return max(kinds, key=_ORDER.index, default=Change.SAME_KERNELS)


def kind_of(setting: Setting, old: Any, new: Any) -> Change:
    """How far a setting's change may move the curve without being a fault."""
    if setting.key in ("dispatcher", "flex_backend"):
        return Change.DISPATCHER
    if setting.group == "precision" and not (setting.direction == "towards_fp32" and raises_precision(old, new)):
        return Change.LOW_PRECISION
    if setting.cls != "performance-only" or setting.group in ("layout", "batch") or setting.key in OTHER_SUMS:
        return Change.REORDERED
    return Change.SAME_KERNELS


def _mapping(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Check]:
    """Differences nobody can judge from the text: flags outside the registry, and versions."""
    for name in _differing(old, new):
        moved = f"The {what} {name} changes from {show(old.get(name))} to {show(new.get(name))}"
        reason = f"{moved}, and its effect is not known: restore it or change it in the baseline too."
        yield Check(f"configuration.{name}", "inconclusive", reason)


def _environment(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Check]:
    for name in _differing(old, new):
        moved = f"{name} changes from {show(old.get(name))} to {show(new.get(name))}"
        if _variable(name):
            yield Check(f"configuration.env.{name}", "pass", f"{moved}: performance-only.")
        else:
            reason = f"{moved}; this variable is not known to be harmless: restore it."
            yield Check(f"configuration.env.{name}", "inconclusive", reason)


def _invariants(
    baseline: Recipe, candidate: Recipe, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Check]:
    """What has to be equal whatever the settings are called."""
    if _shape(baseline) != _shape(candidate):
        yield Check(
            "configuration.model", "reject", "The two recipes train models of different shape: restore the model."
        )
    yield from batch_and_schedule(before, after)
    yield from weights_trained(baseline, candidate, before, after)
    if before["vocab_padded"] != after["vocab_padded"] and before["vocab_size"] == after["vocab_size"]:
        reason = (
            f"The padded vocabulary changes from {before['vocab_padded']} to {after['vocab_padded']} rows: the first "
            f"losses shift by {_padding_shift(before, after):.1e} until the unused rows are learned away."
        )
        yield Check("configuration.vocab_padded", "pass", reason)


def _padding_shift(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Relative shift of the loss of an untrained model, ln V, when unused rows join the softmax or leave it."""
    old, new = before["vocab_padded"], after["vocab_padded"]
    return abs(math.log(new / old)) / math.log(old) if old > 1 and new > 1 else 0.0


def rounding(before: Mapping[str, Any], after: Mapping[str, Any]) -> Band:
    """What FP8 in both runs adds to the limits of a change of another kind."""
    return FP8 if before.get("fp8") and after.get("fp8") else NO_ALLOWANCE


def _allowance(before: Mapping[str, Any], after: Mapping[str, Any], left: Collection[defects.Defect]) -> Band:
    """What padding shifts, and twice what the defects show that the candidate leaves: it depends on the model."""
    shift = _padding_shift(before, after)
    allowance = Band(shift, shift, shift, 0.0).widened(rounding(before, after))
    for defect in left:
        bias = abs(defect.effect.get("bias", 0.0))
        norm = abs(math.log(defect.effect.get("grad_norm", 1.0)))
        step_1 = abs(defect.effect.get("step_1", 0.0))
        allowance = allowance.widened(Band(2 * step_1, 4 * bias, 2 * bias, 2 * norm))
    return allowance
