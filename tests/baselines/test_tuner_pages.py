"""docs/tuners.md says of every installed tuner what its module does; of others it may say more."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from attune_lab.workbench import tuner_entry_points, wrapper_entry_points
from scripts.write_tuner_pages import main, section

PAGE = Path(__file__).parents[2] / "docs/tuners.md"
INSTALLED = [
    entry
    for entries in (tuner_entry_points(), wrapper_entry_points())
    for entry in entries.values()
    if entry.module.startswith("baselines.")
]


@pytest.mark.parametrize("entry", INSTALLED, ids=lambda entry: entry.name)
def test_what_a_tuner_says_of_itself_stands_in_the_page(entry: EntryPoint) -> None:
    assert section(entry) in PAGE.read_text(encoding="utf-8"), "python scripts/write_tuner_pages.py > docs/tuners.md"


def test_the_page_has_a_section_for_each_tuner_and_wrapper_installed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    headings = [line[4:] for line in capsys.readouterr().out.splitlines() if line.startswith("### ")]
    assert headings == [*sorted(tuner_entry_points()), *sorted(wrapper_entry_points())]
