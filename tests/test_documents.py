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
