"""The store: its contract, and everything that can be wrong with a folder."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from scripted import BASELINE, campaign, spec_for

from attune_lab.campaign import parse_budget
from attune_lab.campaign.runner import describe
from attune_lab.campaign.store import DATABASE, RunRow, open_store, read_campaign
from attune_lab.contracts import EnvironmentFault, Proposal, RunReport, UserError
from attune_lab.testing import StoreContract


class TestSqliteFile(StoreContract):
    @pytest.fixture
    def open_store(self):
        return open_store

    @pytest.fixture
    def spec(self):
        return spec_for()


class TestDatabaseByUrl(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path_factory):
        url = f"sqlite:///{tmp_path_factory.mktemp('db') / 'many.db'}"
        return lambda out, spec: open_store(out, spec, url=url)

    @pytest.fixture
    def spec(self):
        return spec_for()


def test_one_database_holds_many_campaigns(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'many.db'}"
    for seed in (1, 2):
        campaign(tmp_path / str(seed), spec=spec_for(seed=seed), url=url)
    records = [read_campaign(tmp_path / str(seed), url=url) for seed in (1, 2)]
    assert [record.spec["seed"] for record in records] == [1, 2]
    assert [len(record.runs) for record in records] == [7, 7]


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith(DATABASE)}


def test_reading_changes_nothing(tmp_path: Path) -> None:
    campaign(tmp_path)
    before = _files(tmp_path)
    record = read_campaign(tmp_path)
    assert record.state == "finished"
    assert _files(tmp_path) == before


def test_reading_works_while_another_process_drives(tmp_path: Path) -> None:
    with open_store(tmp_path, spec_for()) as store:
        store.add_event("note", 1)
        assert read_campaign(tmp_path).events == (("note", 1),)


def test_any_folder_name_will_do(tmp_path: Path) -> None:
    out = tmp_path / "a b?c%20d#e&mode=rw"
    campaign(out)
    assert read_campaign(out).state == "finished"


def test_a_folder_without_a_campaign_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no campaign"):
        read_campaign(tmp_path)


@pytest.mark.parametrize(
    "content", [b"this is no database, whatever its name says " * 50, b"SQLite format 3\0" + b"?" * 9000]
)
def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / DATABASE).write_bytes(content)
    for attempt in (lambda: open_store(tmp_path, spec_for()), lambda: read_campaign(tmp_path)):
        with pytest.raises(EnvironmentFault, match="damaged or no campaign database"):
            attempt()
    assert _files(tmp_path) == {DATABASE: content}


def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    before = _files(tmp_path)
    for attempt in (lambda: open_store(tmp_path, spec_for()), lambda: read_campaign(tmp_path)):
        with pytest.raises(UserError, match="a database of something else"):
            attempt()
    assert _files(tmp_path) == before


def test_a_campaign_of_another_version_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path, spec_for()).close()
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("UPDATE campaign SET schema_version = 99")
    connection.close()
    with pytest.raises(UserError, match="schema 99"):
        open_store(tmp_path, spec_for())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget": parse_budget("50x")}, "budget 40x there, 50x asked for"),
        ({"baseline": BASELINE.with_settings({"tp": 8})}, "different baseline"),
        ({"baseline": BASELINE.with_environment({"NCCL_NVLS_ENABLE": "0"})}, "different baseline"),
        ({"options": {"policy": "claude"}}, 'option policy none there, "claude" asked for'),
        (
            {"options": {"lessons": {"file": "l.json", "sha256": "ab" * 32, "campaigns": 3}}},
            "option lessons none there, l.json (campaigns: 3, abababab) asked for",
        ),
        ({"tuner": "random", "seed": 3}, "seed 0 there, 3 asked for; tuner scripted there, random asked for"),
    ],
)
def test_a_folder_of_another_campaign_says_what_differs(tmp_path: Path, change, words: str) -> None:
    with open_store(tmp_path, spec_for()) as store:
        store.start(RunRow("000-baseline", "baseline", BASELINE, {}))
    with pytest.raises(UserError) as refusal:
        open_store(tmp_path, replace(spec_for(), **change))
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("UPDATE runs SET charged_us = 0", "is charged 0 GPU-microseconds where 3600000000 are due"),
        ("UPDATE runs SET charged_us = -5", "is charged -5"),
        ("UPDATE runs SET charged_us = NULL", "is charged None"),
        ("UPDATE runs SET reserved_us = -1", "are due"),
        ("UPDATE runs SET report = substr(report, 1, 40)", "edited or damaged"),
        ("UPDATE runs SET report = '{}'", "edited or damaged"),
        ("UPDATE runs SET purpose = x'00ff'", "is no text"),
        ("UPDATE runs SET recipe = '[]'", "edited or damaged"),
        ("UPDATE runs SET recipe = replace(recipe, '\"tp\"', '\"pp\"')", "not the one that ran"),
        ("UPDATE runs SET proposal = '{}'", "is not whole"),
        ("UPDATE campaign SET spec = 'x'", "edited or damaged"),
        ("UPDATE campaign SET state = x'00ff'", "the state of the campaign"),
    ],
)
def test_a_row_edited_by_hand_is_found_before_the_ledger_rests_on_it(tmp_path: Path, edit: str, words: str) -> None:
    report = RunReport(label="000-baseline", status="ok", provenance="simulated", steps=8, gpu_hours=1.0)
    proposal = describe(Proposal(BASELINE))
    with open_store(tmp_path, spec_for()) as store:
        store.start(RunRow("000-baseline", "baseline", BASELINE, proposal, reserved_us=4_000_000_000))
        store.finish("000-baseline", report, 3_600_000_000)
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute(edit)
    connection.close()
    with pytest.raises(EnvironmentFault, match=words), open_store(tmp_path, spec_for()) as store:
        store.run("000-baseline")


def test_a_folder_that_cannot_be_made_is_the_environments_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EnvironmentFault, match="choose another folder"):
            open_store(out, spec_for())


def test_a_full_disk_is_the_environments_fault_and_loses_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path, spec_for()) as store:
        store.add_event("before", 1)
        with store._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
        with pytest.raises(EnvironmentFault, match=r"full.*run the same command again"):
            store.add_event("after", "x" * 100_000)
    assert read_campaign(tmp_path).events[0] == ("before", 1)


def test_a_second_process_is_told_who_drives_and_may_follow_when_it_is_gone(tmp_path: Path) -> None:
    code = "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; from scripted import spec_for\n"
    code += "from attune_lab.campaign.store import open_store\n"
    code += "s = open_store(Path(sys.argv[1]), spec_for()); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent), *sys.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "open\n"
        with pytest.raises(EnvironmentFault, match=rf"\(pid {driver.pid}\)"):
            open_store(tmp_path, spec_for())
        driver.kill()
    open_store(tmp_path, spec_for()).close()
