"""``optuna``: any sampler of Optuna by its name.

**What it is.** ``--option sampler=NSGAIISampler`` runs that sampler; ``--option 'arguments={"population_size": 12}'``
hands it constructor arguments. Optuna is asked for the class, so samplers of later releases are there too.

**Faithful.** The samplers are Optuna's own, untouched, with its defaults but for these: a genetic algorithm has a
population of 10, since about fifty runs are all that a budget pays for; CMA-ES starts at the baseline and keeps a
margin, which it needs on integers; QMC is scrambled, so that the seed matters.

**Added, for it to be strong here.** What `ModelTuner` says: warm start, legality, repeats, failures. Values are put to
the samplers that model an order or know no categories (CMA-ES, GP, QMC) as their place in the order of declaration, to
the others as categories. CMA-ES and genetic algorithms learn from nothing but their own suggestions; they are told the
outcome of what ran in their place. CMA-ES knows no limits, so a failure is a bad value to it. A grid needs its
``search_space``; parameters it does not name stay as the baseline has them.

**Source.** optuna/optuna@v5.0.0.
"""

from __future__ import annotations

import difflib
import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from attune_lab.contracts import TuningTask, UserError
from attune_lab.recipe.recipe import Value
from baselines.common.model_tuner import Habits, ModelTuner
from baselines.common.options import Option, read_options
from baselines.common.optuna_library import STUDY_OPTIONS, optuna, study_copy
from baselines.common.optuna_sampler import Limits, OptunaSampler
from baselines.common.points import Points

OPTIONS = {"sampler": Option("TPESampler"), "arguments": Option("{}"), "startup": Option(8, least=1), **STUDY_OPTIONS}

ORDERED = frozenset({"CmaEsSampler", "GPSampler", "QMCSampler"})
OWN_TRIALS = frozenset({"CmaEsSampler", "NSGAIISampler", "NSGAIIISampler"})
DEAR = frozenset({"GPSampler"})
LIMITS: Mapping[str, Limits] = {"CmaEsSampler": "none", "GPSampler": "as one"}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "CmaEsSampler": {"with_margin": True},
    "NSGAIISampler": {"population_size": 10},
    "NSGAIIISampler": {"population_size": 10},
    "QMCSampler": {"scramble": True},
}


class OptunaAny(ModelTuner):
    """One of Optuna's samplers behind the tuner contract.

    Options: ``sampler``, its class; ``arguments``, a mapping (or its JSON text) for the constructor; ``startup``,
    trials told before the sampler is asked; ``storage`` and ``study``, where the trials are copied to.

    Raises:
        UserError: an unknown option or sampler, or arguments it cannot take.
    """

    name = "optuna"

    def __init__(self, task: TuningTask) -> None:
        given = dict(task.options)
        arguments = _mapping(given.pop("arguments", {}))
        options = read_options(self.name, given, OPTIONS)
        kind, points = options["sampler"], Points(task)
        choices = points.choices
        if kind == "GridSampler":
            choices = {key: choices[key] for key in _grid(arguments, choices)}
        if kind == "CmaEsSampler":
            own = points.point(task.baseline)
            arguments = {"x0": {key: values.index(own[key]) for key, values in choices.items()}, **arguments}
        sampler = OptunaSampler(
            choices,
            sampler_called(kind, {**DEFAULTS.get(kind, {}), **arguments}, task.seed),
            encoding="index" if kind in ORDERED else "categorical",
            limits=LIMITS.get(kind, "by name"),
            own_trials=kind in OWN_TRIALS,
        )
        copy = study_copy(self.name, options, task.seed, points.choices)
        super().__init__(task, points, sampler, Habits(options["startup"], 1 if kind in DEAR else 50), copy)


def sampler_called(kind: str, arguments: Mapping[str, Any], seed: int) -> Any:
    """Optuna's sampler of class ``kind``, seeded.

    Raises:
        UserError: no such class, arguments it cannot take, or a package it needs is missing.
    """
    known = samplers()
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"Optuna has no sampler {kind}; {hint}it has {', '.join(known)}")
    try:
        with warnings.catch_warnings(action="ignore"):  # some are experimental, some arguments deprecated
            return known[kind](**{"seed": seed, **arguments})
    except ImportError as error:
        missing = " ".join(str(error).split())
        raise UserError(f"{kind} needs a package that is not installed ({missing}); install it") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"option arguments of {kind} cannot be used ({error}); see Optuna's page of {kind}") from error


def samplers() -> dict[str, Any]:
    """Optuna's samplers that can be built from a seed and plain arguments, by name."""
    found = optuna().samplers
    classes = {name: getattr(found, name) for name in found.__all__ if inspect.isclass(getattr(found, name))}
    return {
        name: kind
        for name, kind in sorted(classes.items())
        if not inspect.isabstract(kind) and "seed" in inspect.signature(kind).parameters
    }


def _mapping(given: Any) -> dict[str, Any]:
    """Constructor arguments as a mapping; they may come as JSON text."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        found = None
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise UserError(f"option arguments of the optuna tuner is {given!r}; give a mapping of names to values")
    return dict(found)


def _grid(arguments: Mapping[str, Any], choices: Mapping[str, Sequence[Value]]) -> Mapping[str, Sequence[Value]]:
    """The grid in ``arguments``, checked: the whole product would never be finished, nor would it fit in memory."""
    grid = arguments.get("search_space")
    if not isinstance(grid, Mapping) or not grid:
        raise UserError('GridSampler needs its grid; give option arguments={"search_space": {"tp": [2, 4], …}}')
    for key, values in grid.items():
        if key not in choices:
            raise UserError(f"the grid names {key}; the parameters are {', '.join(choices)}")
        if not isinstance(values, list | tuple) or not values or any(value not in choices[key] for value in values):
            raise UserError(f"the grid has {values!r} for {key}; choose among {', '.join(map(str, choices[key]))}")
    return grid
