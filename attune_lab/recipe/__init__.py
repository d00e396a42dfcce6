"""Recipes: settings, constraints, readers and writers."""

from attune_lab.recipe.recipe import Recipe, Value

__all__ = ["Recipe", "Value"]
