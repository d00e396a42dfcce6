"""The Metropolis rule and the one-parameter proposals it judges."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attune_lab.contracts import TuningTask
from attune_lab.recipe import Recipe
from baselines.common.moves import applicable

if TYPE_CHECKING:
    import numpy as np


def accepts(before: float, after: float, temperature: float, draw: float) -> bool:
    """Whether a chain moves from cost ``before`` to ``after``: always downhill, uphill with exp(-rise / temperature).

    ``draw`` is uniform on [0, 1). A cost may be infinite: from there every move is taken, to there only from there.

    **Source:** Metropolis et al. 1953; FlexFlow (arXiv 1807.05358), section 6, writes the temperature as 1/beta.
    """
    return after <= before or draw < math.exp(-(after - before) / temperature)


def random_move(task: TuningTask, recipe: Recipe, rng: np.random.Generator) -> Recipe | None:
    """``recipe`` with one parameter that has an effect, drawn uniformly, at another value; None where that is illegal.

    Chains that stay where a draw is illegal keep the proposals symmetric, but for what must move along with a value.
    """
    keys = applicable(task, recipe)
    key = keys[rng.integers(len(keys))]
    own = task.space.value(recipe, key)
    others = [choice for choice in task.space.parameters[key].choices if choice != own]
    if not others:
        return None
    moved = task.space.apply(recipe, {key: others[rng.integers(len(others))]})
    return None if task.space.problems(moved) else moved
