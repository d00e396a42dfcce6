"""Recipe files: load one by path or shipped name, render an edited recipe back into it."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML

from attune_lab.contracts import UserError
from attune_lab.recipe import bash_edit, flags_yaml
from attune_lab.recipe.bash import read_bash
from attune_lab.recipe.megatron import Interpreted, interpret, stated
from attune_lab.recipe.recipe import Recipe
from attune_lab.recipe.text_files import read_text
from attune_lab.recipe.words import Launch, apply_edits

_STACK = "megatron-lm"


@dataclass(frozen=True)
class RecipeFile:
    """A recipe with the file it stands in.

    Attributes:
        name: the path, or the shipped name.
        form: how the file is written.
        text: its content; ``data`` is the same as bytes.
        recipe: what it says.
        folder: where files it includes were looked for; None for a shipped recipe.
        launch, interpreted: the command it starts, as words and as settings with their places.
    """

    name: str
    form: Literal["bash", "yaml"]
    text: str
    recipe: Recipe
    folder: Path | None
    launch: Launch
    interpreted: Interpreted

    @property
    def data(self) -> bytes:
        """The file, byte for byte."""
        return self.text.encode()

    @property
    def suffix(self) -> str:
        """Extension a rendered copy should have."""
        return ".sh" if self.form == "bash" else ".yaml"

    @property
    def gpus(self) -> int | None:
        """GPUs the launch line asks for, None where it does not say."""
        counts = self.launch.launcher
        return counts["nnodes"] * counts["nproc_per_node"] if len(counts) == 2 else None

    def reread(self, text: str) -> RecipeFile:
        """The file with another text; it may include the files that the first one did, as they were, and no other.

        Raises:
            UserError: not a recipe, or something in it that cannot be understood; with the line.
        """
        return _read(self.name, text, self.form, self.folder, self.launch.included)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON-ready form, from which `kept` makes the same file again when those on the disk are gone."""
        included, folder = dict(self.launch.included), None if self.folder is None else str(self.folder)
        return {"name": self.name, "form": self.form, "text": self.text, "folder": folder, "included": included}

    def render(self, recipe: Recipe, *, launcher: Mapping[str, int] | None = None) -> bytes:
        """The file saying ``recipe``: unchanged bytes for an unchanged recipe, else only the edited lines differ.

        Args:
            recipe: what it should say.
            launcher: ``nnodes`` and ``nproc_per_node`` its launch line should ask for, written where that line states
                them plainly; see `gpus` of the result for what it asks for then.

        Raises:
            UserError: the recipe differs in what cannot be edited here, or a setting stands where it cannot be changed.
        """
        before, after = stated(self.recipe.settings), stated(recipe.settings)
        settings = {key: after.get(key) for key in sorted({*before, *after}) if before.get(key) != after.get(key)}
        old, new = self.recipe.environment, recipe.environment
        environment = {name: new.get(name) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}
        if self.form == "bash":
            edits = [
                *bash_edit.setting_edits(self.launch, self.interpreted, settings),
                *bash_edit.environment_edits(self.launch, environment),
                *bash_edit.launcher_edits(self.launch, launcher or {}),
            ]
            text = apply_edits(self.text, edits)
        elif not settings and not environment:
            text = self.text
        else:
            text = flags_yaml.edited(self.launch, self.interpreted, settings, environment)
        again = self.reread(text).recipe
        if again != replace(recipe, settings=after) and again != recipe:
            raise UserError(f"{self.name}: the edited file would not say what was asked ({_difference(again, recipe)})")
        return text.encode()


@dataclass(frozen=True)
class ShippedRecipe:
    """One entry of the shipped recipes. ``gpus`` and ``accelerator``: what it was published for."""

    name: str
    file: str
    model: str
    gpus: int
    accelerator: str
    source: str
    notes: str


def load(name: str | Path) -> RecipeFile:
    """The recipe at a path, or a shipped one by its name (``glm-4.5``).

    Raises:
        UserError: nothing there, not a recipe, or something in it that cannot be understood; with the line.
    """
    path = Path(name)
    entry = shipped_by_name().get(str(name))
    there = os.path.exists(path)  # unlike Path.exists it does not raise where a name is too long
    if entry is not None and not there:
        text = files("attune_lab").joinpath("data/recipes", entry.file).read_text(encoding="utf-8")
        return _read(entry.name, text, "yaml" if entry.file.endswith(".yaml") else "bash", None)
    if not there:
        near = difflib.get_close_matches(str(name), shipped_by_name(), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`attune recipes` lists the shipped ones"
        raise UserError(f"no file and no shipped recipe is called '{name}'; {hint}")
    text = read_text(path)
    form: Literal["bash", "yaml"] = "yaml" if path.suffix.lower() in (".yaml", ".yml") else "bash"
    try:
        return _read(str(name), text, form, path.resolve().parent)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


@cache
def shipped() -> tuple[ShippedRecipe, ...]:
    """The shipped recipes in the order of the index."""
    index = YAML(typ="safe").load(files("attune_lab").joinpath("data/recipes/index.yaml").read_text(encoding="utf-8"))
    return tuple(ShippedRecipe(name=name, **entry) for name, entry in index.items())


def shipped_by_name() -> Mapping[str, ShippedRecipe]:
    """The shipped recipes by name."""
    return {entry.name: entry for entry in shipped()}


def kept(data: Mapping[str, Any]) -> RecipeFile:
    """The file that `RecipeFile.to_json` was called on; no file is read.

    Raises:
        UserError: the text is not a recipe.
        KeyError, TypeError: not such data.
    """
    folder = None if data["folder"] is None else Path(data["folder"])
    return _read(data["name"], data["text"], data["form"], folder, dict(data["included"]))


def _read(
    name: str,
    text: str,
    form: Literal["bash", "yaml"],
    folder: Path | None,
    included: Mapping[str, str | None] | None = None,
) -> RecipeFile:
    """The recipe in ``text``, which includes files as ``included`` has them, if given, else from its folder.

    What stands in no folder includes no other file, and is read once.
    """
    if folder is None:
        return _alone(name, text, form)
    launch = _launch(text, form, folder if included is None else included)
    return _file(name, text, form, folder, launch)


@lru_cache(maxsize=64)
def _alone(name: str, text: str, form: Literal["bash", "yaml"]) -> RecipeFile:
    return _file(name, text, form, None, _launch(text, form, {}))


def _launch(text: str, form: Literal["bash", "yaml"], folder: Path | Mapping[str, str | None]) -> Launch:
    return read_bash(text, folder) if form == "bash" else flags_yaml.read_yaml(text)


def _file(name: str, text: str, form: Literal["bash", "yaml"], folder: Path | None, launch: Launch) -> RecipeFile:
    interpreted = interpret(launch.words)
    environment = {name: variable.value for name, variable in launch.environment.items()}
    recipe = Recipe(_STACK, interpreted.settings, environment, interpreted.carried, _versions(launch))
    return RecipeFile(name, form, text, recipe, folder, launch, interpreted)


def _versions(launch: Launch) -> dict[str, str]:
    """Versions from a ``# stack: mcore=0.16 te=2.12`` comment and container images from variables."""
    match = re.search(r"(?m)^\s*#\s*stack:\s*(.+?)\s*$", launch.text)
    pairs = (pair.partition("=") for pair in match[1].split()) if match else ()
    return {**launch.images, **{name: version for name, sep, version in pairs if sep and version}}


def _difference(got: Recipe, asked: Recipe) -> str:
    for part in ("settings", "environment", "carried", "versions"):
        one, other = getattr(got, part), getattr(asked, part)
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                return f"{key} would be {one.get(key)!r} instead of {other.get(key)!r}; change it by hand"
    return "the stack differs; change it by hand"
