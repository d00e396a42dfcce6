"""``knowledge-bo``: Bayesian optimisation guided by the catalog of lessons, without an agent.

**What it is.** GPTuner tunes databases with knowledge read from manuals: the knowledge selects knobs and narrows their
ranges, and a coarse-to-fine Bayesian optimisation first searches the small discretised space, then the full one. Here
it answers whether a gain is due to the catalog or to the agent that reads it: the knowledge is the same catalog.

**Faithful.** Knob selection, narrowed values, two stages, the second told everything of the first.

**Reconstructed.** The paper's language model is replaced by the catalog: a lesson's moves, made from the baseline, give
the values of a parameter worth trying; the best change of the step time that a lesson expects of it is its priority.
What a lesson needs to know of a running job (symptoms, measured preconditions) is for an agent and not used. The
optimiser is Optuna's TPE instead of SMAC, so that it compares with ``optuna-tpe``, of which nothing else differs.

**Source.** Lao et al., GPTuner, VLDB 2024, arXiv 2311.03157; no code of theirs is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attune_lab.agent.moves import resolve
from attune_lab.contracts import TuningTask
from attune_lab.lessons.catalog import Lesson, load
from attune_lab.recipe.recipe import Value
from baselines.common.model_tuner import Habits, ModelTuner
from baselines.common.options import Option, read_options
from baselines.common.optuna_library import STUDY_OPTIONS, optuna, study_copy
from baselines.common.optuna_sampler import OptunaSampler
from baselines.common.outcomes import Outcome
from baselines.common.points import Point, Points

OPTIONS = {
    "parameters": Option(12, least=1),
    "coarse_trials": Option(16, least=1),
    "n_startup_trials": Option(5, least=1),
    **STUDY_OPTIONS,
}


class KnowledgeBO(ModelTuner):
    """Coarse-to-fine TPE over what the catalog recommends, then over everything.

    Options: ``parameters``, how many the coarse stage moves; ``coarse_trials``, trials before the fine stage;
    ``n_startup_trials``, random ones of the coarse stage; ``storage`` and ``study``, where the trials are copied to.

    Raises:
        UserError: an unknown option, or a value it cannot take.
    """

    name = "knowledge-bo"

    def __init__(self, task: TuningTask) -> None:
        options = read_options(self.name, task.options, OPTIONS)
        points = Points(task)
        grid = reduced(recommended(task, load().lessons), points, task, options["parameters"])
        fine = OptunaSampler(points.choices, _tpe(task.seed + 1, 1))
        coarse = OptunaSampler(grid, _tpe(task.seed, options["n_startup_trials"])) if grid else None
        sampler = CoarseToFine(coarse, grid, fine, points.point(task.baseline), options["coarse_trials"])
        copy = study_copy(self.name, options, task.seed, points.choices)
        super().__init__(task, points, sampler, Habits(startup=1), copy)


def recommended(task: TuningTask, lessons: Iterable[Lesson]) -> dict[str, dict[Value, float]]:
    """Parameter -> the values lessons move it to from the baseline -> the largest speed-up expected, percent.

    Lessons that change the numerics have no part in it, nor moves that the space does not offer.
    """
    found: dict[str, dict[Value, float]] = {}
    for lesson in lessons:
        if lesson.numerics == "changes" or lesson.step_time_pct is None:
            continue
        for move in lesson.moves:
            edits = resolve(move, task.baseline, task.space) if move.keys() <= task.space.parameters.keys() else None
            for key, value in (edits or {}).items():
                worth = found.setdefault(key, {})
                worth[value] = max(worth.get(value, -lesson.step_time_pct[0]), -lesson.step_time_pct[0])
    return found


def reduced(
    worth: Mapping[str, Mapping[Value, float]], points: Points, task: TuningTask, count: int
) -> dict[str, Sequence[Value]]:
    """The coarse grid: the ``count`` parameters of highest priority with the baseline's value and the recommended."""
    own = points.point(task.baseline)
    moved = [key for key, values in worth.items() if key in own and values.keys() - {own[key]}]
    first = sorted(moved, key=lambda key: -max(worth[key].values()))[:count]
    return {key: [v for v in points.choices[key] if v == own[key] or v in worth[key]] for key in first}


class CoarseToFine:
    """One sampler on the coarse grid for a number of trials, then one on the full space that heard everything."""

    def __init__(
        self,
        coarse: OptunaSampler | None,
        grid: Mapping[str, Sequence[Value]],
        fine: OptunaSampler,
        baseline: Point,
        trials: int,
    ) -> None:
        """Hold both samplers; without a coarse one the fine stage is all there is.

        Args:
            baseline: values of the parameters that the coarse stage leaves alone.
            trials: of the coarse stage.
        """
        self._coarse, self._grid, self._fine, self._baseline = coarse, grid, fine, dict(baseline)
        self._left = trials if coarse is not None else 0

    def __str__(self) -> str:
        return f"the {'coarse' if self._left > 0 else 'fine'} stage"

    def ask(self) -> Point | None:
        """A point of the stage that is on."""
        if self._coarse is None or self._left <= 0:
            return self._fine.ask()
        return {**self._baseline, **(self._coarse.ask() or {})}

    def tell(self, point: Point, result: Outcome) -> None:
        """The fine stage hears of every trial, the coarse one of those on its grid."""
        self._left -= 1
        self._fine.tell(point, result)
        if self._coarse is not None and all(point[key] in values for key, values in self._grid.items()):
            self._coarse.tell(point, result)


def _tpe(seed: int, startup: int) -> Any:
    return optuna().samplers.TPESampler(seed=seed, n_startup_trials=startup)
