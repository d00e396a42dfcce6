"""Answers about recipes that are asked for again and again, kept for the last few recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

from attune_lab.recipe.recipe import Recipe

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class _Known:
    """A recipe by its digest."""

    digest: str
    recipe: Recipe = field(compare=False)


def remembered(
    last: int,
) -> Callable[[Callable[Concatenate[Recipe, P], T]], Callable[Concatenate[Recipe, P], T]]:
    """A decorator for a pure function of a recipe and of hashable arguments: its ``last`` answers are kept.

    An answer is shared by all who ask: it must not be written to.
    """

    def decorated(function: Callable[Concatenate[Recipe, P], T]) -> Callable[Concatenate[Recipe, P], T]:
        def answered(known: _Known, *args: P.args, **kwargs: P.kwargs) -> T:
            return function(known.recipe, *args, **kwargs)

        answer: Callable[..., T] = lru_cache(maxsize=last)(answered)

        @wraps(function)
        def asked(recipe: Recipe, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return answer(_Known(recipe.digest, recipe), *args, **kwargs)

        return asked

    return decorated
