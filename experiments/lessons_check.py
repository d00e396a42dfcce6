"""Every lesson of the catalog held to the constraints and the cost model: is it legal, has its effect the sign it says?

    python -m experiments.lessons_check [--samples 60] [--lesson ID] [--json]

States are public recipes, each moved by one parameter, and legal recipes drawn at random. Where a symptom shows and the
preconditions hold, the move is made; it is legal when the stack would start it, and its effect is the cost model's
change of the step time. No measurement is involved, and none of the models that studies hold out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attune_lab.agent.moves import resolve
from attune_lab.contracts import Estimate, RunReport, UserError
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.diagnosis import diagnose
from attune_lab.lessons.catalog import Lesson, load
from attune_lab.parameters import approvable
from attune_lab.recipe import Recipe
from attune_lab.recipe.effective import effective
from attune_lab.recipe.files import kept
from attune_lab.report.tables import Table, markdown
from attune_lab.space import SearchSpace
from attune_lab.workbench import open_workbench
from simulator.hardware import ClusterSpec, parse_cluster

PLACES: tuple[tuple[str, str], ...] = (
    ("glm-4.5-air", "32xH100-SXM5-80GB"),
    ("gpt-oss-120b", "64xH100-SXM5-80GB"),
    ("qwen3-235b-a22b", "256xH100-SXM5-80GB"),
    ("qwen3-235b-a22b@64xb200", "64xB200-SXM-180GB"),
    ("deepseek-v3@256xh100", "256xH100-SXM5-80GB"),
)
DENSE_CLUSTER = "64xH100-SXM5-80GB"
DENSE = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \\
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 \\
  --max-position-embeddings 8192 --position-embedding-type rope --normalization RMSNorm --swiglu \\
  --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 --micro-batch-size 1 \\
  --global-batch-size 128 --lr 1e-4 --train-iters 100 --bf16 --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer
"""
"""Llama-3 70B. The one public recipe of a dense model is of a model that studies hold out, so this one is ours."""

_SEED = 100
NOTHING_PCT = 0.05
"""A change of the step time below this is none: the lever is one the cost model does not see."""

SLACK_PCT = 0.5
"""Half the noise floor: so much on the wrong side is not the wrong sign."""


@dataclass
class Findings:
    """What was found of one lesson: effects of legal moves on the step time, and why the others were not legal."""

    lesson: str
    stated_pct: tuple[float, float]
    tried: int = 0
    effects_pct: list[float] = field(default_factory=list)
    problems: dict[str, int] = field(default_factory=dict)

    @property
    def legal(self) -> float:
        """Share of the moves tried that are legal."""
        return len(self.effects_pct) / self.tried if self.tried else math.nan

    @property
    def seen(self) -> list[float]:
        """Effects that the cost model sees."""
        return [effect for effect in self.effects_pct if abs(effect) >= NOTHING_PCT]

    @property
    def right_sign(self) -> float:
        """Share of the effects seen on the side that the lesson says, nan where it says neither or nothing is seen."""
        best, worst = self.stated_pct
        if not self.seen or (best < -SLACK_PCT and worst > SLACK_PCT):
            return math.nan
        sign = 1 if worst <= SLACK_PCT else -1
        return statistics.fmean(sign * effect <= SLACK_PCT for effect in self.seen)

    @property
    def verdict(self) -> str:
        """One word or two for a person."""
        if not self.tried:
            return "never applies"
        if self.legal < 0.5:
            return "often illegal"
        if not self.seen:
            return "not modelled"
        if math.isnan(self.right_sign):
            return "either sign"
        return "agrees" if self.right_sign >= 0.9 else "mostly" if self.right_sign >= 0.6 else "DISAGREES"


class Place(NamedTuple):
    """A recipe on a cluster, with what may be changed about it and what it is expected to do."""

    baseline: Recipe
    cluster: ClusterSpec
    space: SearchSpace
    cost_model: SimulatedCostModel


def places() -> Iterator[Place]:
    """Public recipes of mixtures of experts, carried over where they must be, and one dense model."""
    for recipe, cluster in PLACES:
        bench = open_workbench(recipe, cluster, carry_over=True)
        yield _place(bench.baseline, bench.cluster)
    dense = kept({"name": "llama-3-70b", "text": DENSE, "form": "bash", "folder": None, "included": {}}).recipe
    yield _place(dense, parse_cluster(DENSE_CLUSTER))


def _place(baseline: Recipe, cluster: ClusterSpec) -> Place:
    """With everything approved: a lesson that needs approval is checked like the others."""
    return Place(baseline, cluster, SearchSpace(baseline, cluster, approvable()), SimulatedCostModel(cluster))


def states(place: Place, samples: int) -> list[Recipe]:
    """The baseline, every recipe one choice away from it, and ``samples`` legal ones drawn at random."""
    space, rng = place.space, np.random.default_rng(_SEED)
    neighbours = [
        space.apply(place.baseline, {key: value})
        for key in space.parameters
        for value in space.neighbours(place.baseline, key)
    ]
    return [place.baseline, *neighbours, *(space.sample(rng) for _ in range(samples))]


def as_report(estimate: Estimate) -> RunReport:
    """The report of a run that does just what the cost model expects; without memory it tells nothing else."""
    steps = 8
    asked: dict[str, Any] = {"label": "estimate", "provenance": "simulated", "steps": steps}
    if not estimate.fits:
        return RunReport(status="oom", **asked)
    return RunReport(
        status="ok",
        step_times_s=(estimate.step_time_s,) * steps,
        peak_memory_bytes=estimate.stage_memory_bytes,
        memory_capacity_bytes=estimate.memory_capacity_bytes,
        breakdown_s=dict(estimate.breakdown_s),
        diagnostics=dict(estimate.diagnostics),
        **asked,
    )


def check(samples: int, only: str | None = None) -> list[Findings]:
    """The findings on every lesson that names a lever, in the order of the catalog.

    Args:
        samples: random states a place, beside the neighbours of its recipe.
        only: the one lesson to check.

    Raises:
        UserError: no lesson of that name names a lever.
    """
    lessons = [one for one in load().lessons if only in (None, one.id) and not _is_search(one)]
    if not lessons:
        raise UserError(f"no lesson {only} names a lever; see attune lessons")
    found = {one.id: Findings(one.id, one.step_time_pct or (0.0, 0.0)) for one in lessons}
    for place in places():
        moves = list(_moves(lessons, place, states(place, samples)))
        estimates = place.cost_model.estimate([moved for _, _, moved in moves])
        for (lesson, before, moved), after in zip(moves, estimates, strict=True):
            findings = found[lesson.id]
            findings.tried += 1
            for problem in (*place.space.problems(moved), *after.problems)[:1]:
                findings.problems[problem] = findings.problems.get(problem, 0) + 1
                break
            else:
                findings.effects_pct.append(100 * (after.step_time_s / before.step_time_s - 1))
    return list(found.values())


def _is_search(lesson: Lesson) -> bool:
    return any({"layout", "neighbour"} & move.keys() for move in lesson.moves)


def _moves(
    lessons: Sequence[Lesson], place: Place, drawn: Sequence[Recipe]
) -> Iterator[tuple[Lesson, Estimate, Recipe]]:
    """Every move that a lesson calls for in one of the states: lesson, estimate of the state, recipe it leads to."""
    for state, estimate in zip(drawn, place.cost_model.estimate(drawn), strict=True):
        if estimate.problems:
            continue
        diagnosis = diagnose(as_report(estimate), effective(state, place.cluster), estimate=estimate)
        for lesson in lessons:
            if diagnosis.find(lesson.symptoms) and lesson.holds(diagnosis.variables):
                for move in lesson.moves:
                    if edits := resolve(move, state, place.space):
                        yield lesson, estimate, place.space.apply(state, edits)


def table(found: Sequence[Findings]) -> Table:
    """One row a lesson."""
    rows = [
        (
            one.lesson,
            str(one.tried),
            _share(one.legal),
            "{:+g} to {:+g}".format(*one.stated_pct),
            _range(one.effects_pct),
            _share(one.right_sign),
            one.verdict,
        )
        for one in found
    ]
    header = ("lesson", "moves tried", "legal", "stated %", "cost model %", "right sign", "verdict")
    note = "Change of the step time; of the cost model the 5th, 50th and 95th percentile over legal moves."
    return Table("Lessons against the constraints and the cost model", header, rows, note, frozenset(header[1:6]))


def _range(effects: Sequence[float]) -> str:
    if not effects:
        return "-"
    return "{:+.1f}, {:+.1f}, {:+.1f}".format(*np.percentile(effects, [5, 50, 95]))


def _share(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="experiments.lessons_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=60, help="random states a place")
    parser.add_argument("--lesson", help="check this one, and say why moves were illegal")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    asked = parser.parse_args()
    try:
        found = check(asked.samples, asked.lesson)
    except UserError as error:
        parser.error(str(error))
    if asked.json:
        print(json.dumps([{**asdict(one), "verdict": one.verdict} for one in found]))
        return
    print(markdown("Lessons", "Simulated: nothing here was measured.", [table(found)]), end="")
    for one in found if asked.lesson else ():
        for problem, times in sorted(one.problems.items(), key=lambda item: -item[1]):
            print(f"{times} x {problem}")


if __name__ == "__main__":
    main()
