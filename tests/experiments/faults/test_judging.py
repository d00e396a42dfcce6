"""What each level of evidence sees of a pair of runs, and what runs that crashed say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attune_lab.signals.schema import FILE_NAME, Probe, Signals, StepSignals
from attune_lab.trainer.config import TrainerConfig
from experiments.faults.cache import Result
from experiments.faults.judging import LEVELS, judge_case
from experiments.faults.plan import Case, Run
from experiments.faults.run import Finished

BASELINE, CANDIDATE = Run("base", TrainerConfig()), Run("changed", TrainerConfig(mbs=4))
CASE = Case("c", "legitimate", BASELINE, CANDIDATE)


def finished(folder: Path, *, loss: float = 1.0, norm: float = 1.0, tokens: int = 64, cost: float = 0.0) -> Finished:
    """A run whose figures are the given multiples of a sound one's."""
    folder.mkdir()
    losses = [6.0 * 0.99**step * (loss if step > 1 else 1.0) for step in range(1, 21)]
    lines = (
        f" iteration {step:8d}/      20 | lm loss: {value:.6E} | grad norm: {norm * 1.5:.6f} |\n"
        for step, value in enumerate(losses, start=1)
    )
    (folder / "train.log").write_text("".join(lines))
    step = StepSignals(step=1, loss=losses[0], tokens=tokens, sequences=4)
    probes = {"aux": Probe(cost_steps=cost)} if cost else {}
    Signals(producer="test", world_size=1, steps=(step,), probes=probes).write(folder / FILE_NAME)
    return Finished(Result(name=folder.name, status="ok", seconds=1.0), folder)


def verdicts(tmp_path: Path, **changed: Any) -> list[str]:
    ends = {BASELINE: finished(tmp_path / "base"), CANDIDATE: finished(tmp_path / "changed", **changed)}
    judgement = judge_case(CASE, ends)
    return [judgement.verdicts[level].verdict for level in LEVELS]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ["pass", "pass", "pass", "pass"]),
        ({"loss": 1.03}, ["reject", "reject", "reject", "reject"]),
        ({"norm": 2.0}, ["pass", "reject", "reject", "reject"]),
        ({"tokens": 60}, ["pass", "pass", "reject", "reject"]),
    ],
)
def test_every_level_sees_more(tmp_path: Path, changed: Mapping[str, Any], expected: list[str]) -> None:
    assert verdicts(tmp_path, **changed) == expected


def test_the_cost_is_that_of_the_probes_of_both_runs(tmp_path: Path) -> None:
    ends = {BASELINE: finished(tmp_path / "base", cost=2.0), CANDIDATE: finished(tmp_path / "changed", cost=3.5)}
    assert judge_case(CASE, ends).cost_steps == 5.5


@pytest.mark.parametrize(("crashed", "expected"), [(BASELINE, "inconclusive"), (CANDIDATE, "reject")])
def test_a_crash_of_the_candidate_alone_rejects(tmp_path: Path, crashed: Run, expected: str) -> None:
    ends = {BASELINE: finished(tmp_path / "base"), CANDIDATE: finished(tmp_path / "changed")}
    ends[crashed] = Finished(Result(name="x", status="crash", seconds=1.0, message="rank 1: boom"), tmp_path / "none")
    judgement = judge_case(CASE, ends)
    assert {verdict.verdict for verdict in judgement.verdicts.values()} == {expected}
    assert judgement.verdicts["loss"].reasons == ("The run x ended with rank 1: boom.",)


def test_a_log_that_cannot_be_read_leaves_the_case_open(tmp_path: Path) -> None:
    ends = {BASELINE: finished(tmp_path / "base"), CANDIDATE: finished(tmp_path / "changed")}
    (tmp_path / "changed" / "train.log").write_text("no iteration")
    judgement = judge_case(CASE, ends)
    assert {verdict.verdict for verdict in judgement.verdicts.values()} == {"inconclusive"}
    assert "train.log" in judgement.verdicts["signals"].reasons[0]
