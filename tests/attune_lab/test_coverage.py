"""Every lever that the agent or the search space can move is one the physics answers to, or says why it does not."""

from importlib import import_module
from importlib.resources import files
from typing import Any

import pytest
from ruamel.yaml import YAML

from attune_lab.recipe.effective import effective
from attune_lab.recipe.files import load
from attune_lab.recipe.jobs import job_columns
from simulator.coverage import MODELLED, NOT_MODELLED
from simulator.hardware import parse_cluster

COVERED = {*MODELLED, *NOT_MODELLED}


def data(name: str) -> Any:
    return YAML(typ="safe").load(files("attune_lab").joinpath("data", name).read_text(encoding="utf-8"))


SETTINGS = data("settings.yaml")
SPACE = data("space.yaml")
LESSONS = data("lessons.yaml")["lessons"]


def settings_of(parameter: str) -> list[str]:
    """What a parameter writes; in a lesson `layout: best` moves the sizes, `neighbour: any` whatever there is."""
    if parameter == "layout":
        return [key for key, entry in SPACE.items() if entry.get("kind") == "size"]
    if parameter == "neighbour":
        return [name for key, entry in SPACE.items() for name in entry.get("settings", [key])]
    return list(SPACE[parameter].get("settings", [parameter]))


@pytest.mark.parametrize("parameter", SPACE)
def test_every_setting_of_the_space_is_accounted_for(parameter: str) -> None:
    assert set(settings_of(parameter)) <= COVERED


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson["id"])
def test_every_move_of_a_lesson_is_accounted_for(lesson: Any) -> None:
    levers = {setting for move in lesson["moves"] for parameter in move for setting in settings_of(parameter)}
    assert levers
    assert levers <= COVERED


class Reading(dict[str, Any]):
    """Effective settings that remember which of them were looked at."""

    read: set[str]

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("name", ["glm-4.5", "llama-3.1-405b"])
def test_every_setting_a_job_is_made_of_is_modelled(name: str) -> None:
    """What describes the model or the objective is no lever."""
    recipe = load(name).recipe
    settings = Reading(effective(recipe, parse_cluster("64xH200")))
    settings.read = set()
    job_columns(settings)
    levers = {key for key in settings.read & set(SETTINGS) if SETTINGS[key]["class"] != "objective-changing"}
    assert len(levers) > 20
    assert levers <= set(MODELLED)


def test_the_named_functions_exist() -> None:
    for text in MODELLED.values():
        for name in text.partition(" (")[0].split(", "):
            module, _, function = name.rpartition(".")
            assert callable(getattr(import_module(f"simulator.{module}"), function)), name


def test_no_lever_is_both() -> None:
    assert not set(MODELLED) & set(NOT_MODELLED)
    assert all(reason.endswith(".") for reason in NOT_MODELLED.values())
