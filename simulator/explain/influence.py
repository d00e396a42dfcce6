"""Which constants a prediction rests on, found by moving each of them; and how far it may be off because of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.constants import Prior
from simulator.explain.terms import Influence, Path, Term
from simulator.job import Jobs
from simulator.physics import PRIORS, SOURCES, Physics
from simulator.posterior import POSTERIOR, Posterior
from simulator.step import step_seconds

Floats = NDArray[np.float64]

_STEP = 1e-5  # relative move of a constant
_LEAST = 1e-6  # elasticities below are rounding


def deviations(posterior: Posterior = POSTERIOR) -> dict[str, float]:
    """Standard deviation of each constant's shift, in those of its prior; 1 for one that was not fitted."""
    fitted = dict(zip(posterior.constants, np.sqrt(np.diag(posterior.covariance)).tolist(), strict=True))
    return {name: fitted.get(name, 1.0) for name in PRIORS}


def step_time_sd(jobs: Jobs, physics: Physics, posterior: Posterior = POSTERIOR) -> Floats:
    """Standard deviation of the step time that is left by the uncertainty of the constants, seconds, shape (B,).

    First order in the shifts of the constants, with their covariance; constants that were not fitted vary as their
    priors say. What no constant can explain, the error of the formulas themselves, is not in it.
    """
    names = [name for name, prior in PRIORS.items() if prior.sd > 0]
    base = step_seconds(jobs, physics)
    gradient = np.empty((len(names), jobs.size))
    for row, name in enumerate(names):
        change = (step_seconds(jobs, moved(physics, name)) - base) / _STEP
        gradient[row] = change * PRIORS[name].slope(getattr(physics, name))
    covariance = np.eye(len(names))
    at = [names.index(name) for name in posterior.constants]
    covariance[np.ix_(at, at)] = posterior.covariance
    variance = np.einsum("kb,kl,lb->b", gradient, covariance, gradient)
    sd: Floats = np.sqrt(np.maximum(variance, 0.0))
    return sd


def moved(physics: Any, name: str) -> Any:
    """The constants with one of them a little higher."""
    return replace(physics, **{name: getattr(physics, name) * (1 + _STEP)})


def with_influences(
    evaluate: Callable[[Any], Term], physics: Any, priors: Mapping[str, Prior], scale: Mapping[str, float]
) -> Term:
    """The tree of ``evaluate(physics)``, every term with the constants that move it.

    Args:
        priors: of the fields of ``physics`` to move.
        scale: standard deviation of a constant over that of its prior; 1 where it is missing.
    """
    tree = evaluate(physics)
    found: dict[Path, list[Influence]] = {path: [] for path, _ in tree.walk()}
    for name, prior in priors.items():
        value = getattr(physics, name)
        sd = scale.get(name, 1.0) * prior.slope(value)
        after = {path: term.value for path, term in evaluate(moved(physics, name)).walk()}
        for path, term in tree.walk():
            change = (after.get(path, term.value) - term.value) / _STEP
            if term.value and abs(change) > _LEAST * abs(term.value):
                elasticity = change / term.value
                found[path].append(
                    Influence(name, elasticity, value, prior.value, sd, prior.what, _spelled(prior.source))
                )
    return _with(tree, found)


def _spelled(source: str) -> str:
    """A source with its short names written out."""
    return re.sub(r"(?<![\w/-])\w+(?![\w@/-])", lambda name: SOURCES.get(name[0], name[0]), source)


def _with(term: Term, found: Mapping[Path, list[Influence]]) -> Term:
    def marked(at: Path, one: Term) -> Term:
        paths = [path for path, _ in one.walk(at) if len(path) == len(at) + 1]
        children = tuple(marked(path, child) for path, child in zip(paths, one.children, strict=True))
        influences = tuple(sorted(found[at], key=lambda influence: -abs(influence.elasticity)))
        return replace(one, children=children, influences=influences)

    return marked((), term)
