"""``skopt``: Bayesian optimisation with scikit-optimize's forests or Gaussian process.

**What it is.** A surrogate (extra trees by default, a random forest, or a Gaussian process) of the seconds a step, and
expected improvement maximised over random legal points. ``acquisition`` = ``EIps`` divides by the expected cost of
the run; the sampler is then told the seconds each one took.

**Faithful.** Surrogates, acquisition and search are the library's own `Optimizer`, with legality as its
``space_constraint``. Ordered parameters are integers, unordered ones one-hot.

**Added, for it to be strong here.** What `ModelTuner` says: warm start, repeats, failures. The library answers a
repeated suggestion with a random point; here known points are no candidates in the first place. Its candidates are
uniform draws, which seldom come near a good point of thirty parameters; here there are five more a parameter, one or
two levers away from one of the best five. To be cheap, forests have 50 trees and there are 300 uniform draws (library:
100 and 10,000), and the Gaussian process is fitted without restarts. Gradient boosting is refused: its quantile
regressor is none to scikit-learn 1.6 and later (holgern/scikit-optimize, issue 11), and it calls ``np.in1d``, which
NumPy 2.4 removed.

**Source.** scikit-optimize 0.10.2 (holgern/scikit-optimize).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attune_lab.contracts import TuningTask, UserError
from attune_lab.recipe.recipe import Value
from baselines.common.model_tuner import Habits, ModelTuner
from baselines.common.options import Option, read_options
from baselines.common.optuna_library import STUDY_OPTIONS, study_copy
from baselines.common.outcomes import Outcome
from baselines.common.points import Point, Points

OPTIONS = {
    "estimator": Option("ET", choices=("ET", "RF", "GP", "GBRT")),
    "acquisition": Option("EI", choices=("EI", "EIps", "PI", "LCB", "gp_hedge")),
    "startup": Option(8, least=1),
    **STUDY_OPTIONS,
}

BEST = 5
"""Told points around which candidates are drawn."""


@dataclass(frozen=True)
class Settings:
    """What a `SkoptSampler` is made with.

    Attributes:
        estimator: ``ET``, ``RF`` or ``GP``.
        acquisition: the library's ``acq_func``.
        startup: points told, or random, before a surrogate is fitted.
        candidates: legal points, drawn uniformly, among which the acquisition is maximised.
        near: further candidates for each parameter, one or two levers away from one of the `BEST` best points.
        trees: of a forest.
    """

    estimator: str = "ET"
    acquisition: str = "EI"
    startup: int = 8
    candidates: int = 300
    near: int = 5
    trees: int = 50


class SkoptSampler:
    """Points of a fixed product space from scikit-optimize; none that was told before."""

    def __init__(
        self,
        choices: Mapping[str, Sequence[Value]],
        settings: Settings,
        seed: int,
        *,
        ordered: Callable[[str], bool] = lambda _: True,
        legal: Callable[[Point], bool] = lambda _: True,
    ) -> None:
        """Start an optimizer.

        Args:
            choices: parameter -> its values, more than one.
            settings: estimator, acquisition and how much of them.
            seed: of everything random.
            ordered: whether a parameter's values have an order.
            legal: the points that may be suggested.

        Raises:
            UserError: the library is not installed, or does not import.
        """
        library = skopt()
        self._choices = {key: tuple(values) for key, values in choices.items()}
        self._values = list(self._choices.values())
        self._settings, self._legal = settings, legal
        self._told: set[tuple[int, ...]] = set()
        dimensions = dimensions_of(choices, ordered)
        self._optimizer = library.Optimizer(
            dimensions,
            estimator(settings, dimensions, seed),
            n_initial_points=settings.startup,
            acq_func=settings.acquisition,
            acq_optimizer="sampling",
            acq_optimizer_kwargs={"n_points": settings.candidates},
            space_constraint=lambda places: legal(self._point(places)),
            avoid_duplicates=False,
            model_queue_size=1,
            random_state=seed,
        )
        self._uniform = self._optimizer.space.rvs
        self._optimizer.space.rvs = self._candidates

    def __str__(self) -> str:
        return f"scikit-optimize ({self._settings.estimator})"

    def ask(self) -> dict[str, Value] | None:
        """The point of largest acquisition among the candidates of the last `tell`."""
        return self._point(self._optimizer.ask())

    def tell(self, point: Point, result: Outcome) -> None:
        """Fit the surrogate to one more trial. Broken limits are unknown to the library; the value tells of them."""
        places = tuple(values.index(point[key]) for key, values in self._choices.items())
        per_second = self._settings.acquisition.endswith("ps")
        self._told.add(places)
        with warnings.catch_warnings(action="ignore"):  # of kernels' bounds
            self._optimizer.tell(list(places), (result.value, result.cost_s) if per_second else result.value)

    def _candidates(self, n_samples: int = 1, random_state: Any = None) -> list[list[Any]]:
        """Uniform draws of legal points, and legal points near the best; none that was told, if there are others."""
        near = (
            []
            if not self._told
            else [self._near_the_best(random_state) for _ in range(self._settings.near * len(self._values))]
        )
        legal = [places for places in near if self._legal(self._point(places))]
        drawn = self._uniform(n_samples, random_state) + legal
        return [places for places in drawn if _key(places) not in self._told] or drawn

    def _near_the_best(self, random_state: Any) -> list[Any]:
        """One of the `BEST` best points told, with one or two parameters drawn anew."""
        values = [value[0] if isinstance(value, list | tuple) else value for value in self._optimizer.yi]
        best = np.argsort(values, kind="stable")[:BEST]
        places = list(self._optimizer.Xi[best[random_state.randint(len(best))]])
        for axis in random_state.choice(len(places), size=1 + random_state.randint(min(2, len(places))), replace=False):
            places[axis] = int(random_state.randint(len(self._values[axis])))
        return places

    def _point(self, places: Sequence[Any]) -> dict[str, Value]:
        """The values at NumPy's or Python's integers."""
        return {key: values[int(place)] for (key, values), place in zip(self._choices.items(), places, strict=True)}


def _key(places: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(place) for place in places)


def skopt() -> Any:
    """The library.

    Raises:
        UserError: it is not installed, or breaks with the NumPy or scikit-learn that is.
    """
    try:
        import skopt as library
        import skopt.space
    except Exception as error:  # it breaks with releases of its dependencies in many ways
        raise UserError(
            f"scikit-optimize does not import ({type(error).__name__}: {error}); install scikit-optimize 0.10.2"
        ) from error
    return library


def dimensions_of(choices: Mapping[str, Sequence[Value]], ordered: Callable[[str], bool]) -> list[Any]:
    """The library's dimensions over the values' places: integers where there is an order, or only two values."""
    made = skopt().space
    return [
        made.Integer(0, len(values) - 1) if ordered(key) or len(values) == 2 else made.Categorical(range(len(values)))
        for key, values in choices.items()
    ]


def estimator(settings: Settings, dimensions: Sequence[Any], seed: int) -> Any:
    """The library's surrogate, made cheap: a forest of few trees, a Gaussian process without restarts."""
    from skopt.utils import cook_estimator

    cheap = {"n_restarts_optimizer": 0} if settings.estimator == "GP" else {"n_estimators": settings.trees}
    return cook_estimator(settings.estimator, space=dimensions, random_state=seed, **cheap)


class Skopt(ModelTuner):
    """scikit-optimize behind the tuner contract.

    Options: ``estimator`` (ET, RF or GP), ``acquisition`` (EI, EIps, PI, LCB or gp_hedge), ``startup``, trials told
    before a surrogate is fitted; ``storage`` and ``study``, where the trials are copied to.

    Raises:
        UserError: an unknown option, a value it cannot take, or the library does not work.
    """

    name = "skopt"

    def __init__(self, task: TuningTask) -> None:
        options = read_options(self.name, task.options, OPTIONS)
        if options["estimator"] == "GBRT":
            raise UserError(
                "estimator GBRT of scikit-optimize 0.10.2 fails with scikit-learn 1.6 and NumPy 2.4 or later; "
                "choose ET, RF or GP"
            )
        points = Points(task)
        settings = Settings(options["estimator"], options["acquisition"], options["startup"])
        sampler = SkoptSampler(
            points.choices,
            settings,
            task.seed,
            ordered=lambda key: task.space.parameters[key].ordered,
            legal=task.space.allows,
        )
        copy = study_copy(self.name, options, task.seed, points.choices)
        super().__init__(task, points, sampler, Habits(options["startup"], asks=5), copy)
