"""Asks the gate about the cases of a suite, with as much evidence as a user may have.

* ``loss``: the losses of the two logs;
* ``loss+norm``: the gradient norms printed there as well;
* ``signals``: all that and the signals the two runs recorded;
* ``signals+twins``: the same with twins of the baseline, which cost further runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

from attune_lab.contracts import UserError
from attune_lab.gate import Check, Curve, Verdict, convergence, evidence, judge
from attune_lab.gate.configuration import change_between, rounding
from attune_lab.gate.curves_io import read_curve
from attune_lab.gate.evidence import probes
from attune_lab.gate.verdict import Outcome
from attune_lab.signals.schema import FILE_NAME, Signals, read_signals
from experiments.faults.plan import Case, Run
from experiments.faults.run import Finished

Level = Literal["loss", "loss+norm", "signals", "signals+twins"]
LEVELS: tuple[Level, ...] = ("loss", "loss+norm", "signals", "signals+twins")


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
    settings = case.baseline.config.model_dump(), case.candidate.config.model_dump()
    change, allowance = change_between(*settings), rounding(*settings)
    curves, signals = zip(*runs, strict=True)
    losses = [replace(curve, norms={}, norm_quanta={}) for curve in curves]
    by_curves = partial(convergence.check, change=change, allowance=allowance)
    by_signals = partial(evidence.check, change=change, allowance=allowance, approvals=case.approvals)
    pair = by_curves(curves[0], curves[1])
    verdicts: dict[Level, Verdict] = {
        "loss": judge(None, by_curves(losses[0], losses[1])),
        "loss+norm": judge(None, pair),
        "signals": judge(None, pair, by_signals(signals[0], signals[1], ())),
        "signals+twins": judge(
            None, by_curves(curves[0], curves[1], curves[2:]), by_signals(signals[0], signals[1], signals[2:])
        ),
    }
    return Judgement(case, verdicts, sum(probes.cost(run) for run in signals[:2]))


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
