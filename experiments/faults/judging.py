"""Asks the gate about the cases of a suite, with as much evidence as a user may have.

* ``loss``: the losses of the two logs;
* ``loss+norm``: the gradient norms printed there as well;
* ``signals``: all that and the signals the runs recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from attune_lab.contracts import UserError
from attune_lab.gate import Change, Check, Curve, Verdict, convergence, evidence, judge
from attune_lab.gate.curves_io import read_curve
from attune_lab.gate.evidence import probes
from attune_lab.gate.verdict import Outcome
from attune_lab.signals.schema import FILE_NAME, Signals, read_signals
from attune_lab.trainer.config import TrainerConfig
from experiments.faults.plan import Case, Run
from experiments.faults.run import Finished

Level = Literal["loss", "loss+norm", "signals"]
LEVELS: tuple[Level, ...] = ("loss", "loss+norm", "signals")

_SAME_KERNELS = frozenset({
    "overlap_grad_reduce", "overlap_param_gather", "num_buckets", "recompute_granularity", "schedule",
})  # fmt: skip
_PRECISION = frozenset({"bf16", "fp8", "grad_reduce_in_fp32", "main_params_dtype", "exp_avg_dtype", "router_dtype"})


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
    by_loss, by_curves = (convergence.check(c[0], c[1], c[2:], change=change) for c in (losses, curves))
    by_signals = evidence.check(signals[0], signals[1], signals[2:], change=change)
    verdicts: dict[Level, Verdict] = {
        "loss": judge(None, by_loss),
        "loss+norm": judge(None, by_curves),
        "signals": judge(None, by_curves, by_signals),
    }
    return Judgement(case, verdicts, sum(probes.cost(run) for run in signals[:2]))


def change_between(before: TrainerConfig, after: TrainerConfig) -> Change:
    """The most invasive kind of change between two configurations."""
    moved = {name for name in TrainerConfig.model_fields if getattr(before, name) != getattr(after, name)}
    if moved & _PRECISION:
        return Change.LOW_PRECISION
    if "dispatcher" in moved:
        return Change.DISPATCHER
    return Change.SAME_KERNELS if moved <= _SAME_KERNELS else Change.REORDERED


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
