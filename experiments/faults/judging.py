"""Asks the gate about the cases of a suite, with as much evidence as a user may have.

* ``loss``: the losses of the two logs;
* ``loss+norm``: the gradient norms printed there as well;
* ``signals``: all that and the signals the two runs recorded;
* ``signals+twins``: the same with twins of the baseline, which cost further runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from attune_lab.contracts import UserError
from attune_lab.gate import Change, Check, Curve, Verdict, convergence, evidence, judge
from attune_lab.gate.configuration import kind_of
from attune_lab.gate.curves_io import read_curve
from attune_lab.gate.evidence import probes
from attune_lab.gate.verdict import Outcome
from attune_lab.recipe.registry import registry
from attune_lab.signals.schema import FILE_NAME, Signals, read_signals
from attune_lab.trainer.config import TrainerConfig
from experiments.faults.plan import Case, Run
from experiments.faults.run import Finished

Level = Literal["loss", "loss+norm", "signals", "signals+twins"]
LEVELS: tuple[Level, ...] = ("loss", "loss+norm", "signals", "signals+twins")

_ORDER = list(Change)


@dataclass(frozen=True)
class Judgement:
    """What the gate says of a case at each level.

    Attributes:
        cost_steps: what the probes of both runs cost, in forward-backward steps of the run.
    """

    case: Case
    verdicts: Mapping[Level, Verdict]
    cost_steps: float = 0.0

    def rejected(self, level: Level) -> bool:
        """Whether the gate rejects the candidate."""
        return self.verdicts[level].verdict == "reject"


def judge_case(case: Case, ends: Mapping[Run, Finished]) -> Judgement:
    """The judgement on a case whose runs have ended."""
    ended = _crashed(case, ends)
    try:
        runs = [] if ended else [_read(ends[run].folder) for run in case.runs]
    except UserError as error:  # a run that writes no readable log must not end the suite
        ended = Check("run", "inconclusive", str(error))
    if ended:
        return Judgement(case, {level: judge(None, [ended]) for level in LEVELS})
    change = change_between(case.baseline.config, case.candidate.config)
    curves, signals = zip(*runs, strict=True)
    losses = [replace(curve, norms={}, norm_quanta={}) for curve in curves]
    by_curves = convergence.check(curves[0], curves[1], change=change)
    by_signals = evidence.check(signals[0], signals[1], (), change=change, approvals=case.approvals)
    with_twins = (
        convergence.check(curves[0], curves[1], curves[2:], change=change),
        evidence.check(signals[0], signals[1], signals[2:], change=change, approvals=case.approvals),
    )
    verdicts: dict[Level, Verdict] = {
        "loss": judge(None, convergence.check(losses[0], losses[1], change=change)),
        "loss+norm": judge(None, by_curves),
        "signals": judge(None, by_curves, by_signals),
        "signals+twins": judge(None, *with_twins),
    }
    return Judgement(case, verdicts, sum(probes.cost(run) for run in signals[:2]))


def change_between(before: TrainerConfig, after: TrainerConfig) -> Change:
    """The most invasive kind of change between two configurations."""
    known = registry()
    moved = (
        (name, getattr(before, name), getattr(after, name)) for name in TrainerConfig.model_fields if name in known
    )
    kinds = (kind_of(known[name], old, new) for name, old, new in moved if old != new)
    return max(kinds, key=_ORDER.index, default=Change.SAME_KERNELS)


def _crashed(case: Case, ends: Mapping[Run, Finished]) -> Check | None:
    """What a run that did not end says: nothing, unless the candidate failed by itself."""
    for run in (case.baseline, *case.twins, case.candidate):
        result = ends[run].result
        if result.status == "crash":
            outcome: Outcome = "reject" if run is case.candidate else "inconclusive"
            return Check("run", outcome, f"The run {result.name} ended with {result.message}.")
    return None


@lru_cache(maxsize=256)
def _read(folder: Path) -> tuple[Curve, Signals]:
    return read_curve(folder / "train.log"), read_signals(folder / FILE_NAME)
