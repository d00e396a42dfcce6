"""The documents are true where a machine can tell: links lead somewhere, commands and files exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/*.md"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_to_files(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(path):
    named = re.findall(
        r"`((?:attune_lab|simulator|baselines|experiments|tests|benchmarks|notebooks|scripts|docs)/[\w/.-]+)`",
        path.read_text(),
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_named_commands_exist(path):
    from attune_lab.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    used = set(re.findall(r"(?:^|[` ])attune ([a-z]+)\b", path.read_text(), flags=re.M))
    assert used - known - {"and", "tuner"} == set()


def test_the_readmes_own_recipe_starts_where_it_says(tmp_path):
    from attune_lab.recipe.files import load
    from attune_lab.workbench import open_workbench

    text = (ROOT / "README.md").read_text()
    written = re.findall(r"attune recipes (\S+) > (\S+)", text)
    assert written
    for recipe, name in written:
        (tmp_path / name).write_bytes(load(recipe).data)
    tuned = re.findall(r"attune tune (\S+\.sh) --cluster (\S+)", text)
    assert {name for name, _ in tuned} == {name for _, name in written}
    for name, cluster in tuned:
        assert open_workbench(str(tmp_path / name), cluster).carried_over == ()
