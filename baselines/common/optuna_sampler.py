"""An Optuna sampler over named parameters, asked and told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from attune_lab.recipe.recipe import Value
from baselines.common.optuna_library import optuna
from baselines.common.outcomes import Outcome

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

Encoding = Literal["categorical", "index"]
"""How a parameter's values are put to a sampler: as they are, or as their place in the order of declaration."""

Limits = Literal["by name", "as one", "none"]


class OptunaSampler:
    """Points of a fixed product space from one of Optuna's samplers. What it is told is a study in memory."""

    def __init__(
        self,
        choices: Mapping[str, Sequence[Value]],
        sampler: BaseSampler,
        *,
        encoding: Encoding = "categorical",
        limits: Limits = "by name",
        own_trials: bool = False,
    ) -> None:
        """Start a study.

        Args:
            choices: parameter -> its values.
            sampler: the sampler, seeded.
            encoding: how the values are put to it.
            limits: whether the sampler is told of broken limits, and how; a GP fits one more model to each.
            own_trials: the sampler learns from nothing but its own suggestions (CMA-ES, genetic algorithms), so a
                suggestion is told with the outcome of whatever was run in its place.
        """
        self._library = optuna()
        self._choices, self._limits, self._own_trials = choices, limits, own_trials
        self._index = encoding == "index"
        self._distributions = {key: self._distribution(values) for key, values in choices.items()}
        self.study = self._library.create_study(sampler=sampler)
        self.study.stop = self._stop  # grids call it at their end, which Optuna allows in its own loop alone
        self._asked: Trial | None = None
        self._exhausted = False

    def __str__(self) -> str:
        return type(self.study.sampler).__name__

    def ask(self) -> dict[str, Value] | None:
        """A point, None once a grid is at its end. A suggestion that was never told is filed as failed, which Optuna's
        samplers disregard."""
        if self._asked is not None:
            self.study.tell(self._asked, state=self._library.trial.TrialState.FAIL)
            self._asked = None
        if self._exhausted:
            return None
        self._asked = self.study.ask(self._distributions)
        return self._decoded(self._asked.params)

    def tell(self, point: Mapping[str, Value], result: Outcome) -> None:
        """The outcome of ``point``: of the last suggestion, where it is that point, else as a trial of its own."""
        limits = self._told_limits(result)
        asked, params = self._asked, self._encoded(point)
        if asked is not None and (self._own_trials or asked.params == params):
            for name, violation in limits.items():
                asked.set_constraint(name, violation)
            self._asked = None
            self.study.tell(asked, result.value)
            return
        trial = self._library.trial.create_trial(
            value=result.value, params=params, distributions=self._distributions, constraints=limits
        )
        self.study.add_trial(trial)

    def _stop(self) -> None:
        self._exhausted = True

    def _told_limits(self, result: Outcome) -> dict[str, float]:
        if self._limits == "none":
            return {}
        return dict(result.violations) if self._limits == "by name" else {"limits": result.violation}

    def _distribution(self, values: Sequence[Value]) -> BaseDistribution:
        made = self._library.distributions
        found: BaseDistribution = (
            made.IntDistribution(0, len(values) - 1) if self._index else made.CategoricalDistribution(values)
        )
        return found

    def _encoded(self, point: Mapping[str, Value]) -> dict[str, Any]:
        chosen = {key: point[key] for key in self._choices}
        return {key: self._choices[key].index(value) for key, value in chosen.items()} if self._index else chosen

    def _decoded(self, params: Mapping[str, Any]) -> dict[str, Value]:
        return {key: self._choices[key][value] for key, value in params.items()} if self._index else dict(params)
