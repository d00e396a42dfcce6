"""A campaign is made again from what it left behind, bit for bit; whatever was changed since is named."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attune_lab.campaign.rules import AnswerRules
from attune_lab.campaign.store import read_campaign
from attune_lab.cluster.simulated import SimulatedCluster
from attune_lab.contracts import EnvironmentFault, Proposal, RunReport, TuningTask, UserError
from attune_lab.recipe import Recipe
from attune_lab.replay import Replay, replay_campaign
from attune_lab.testing import UniformDraws
from attune_lab.tuning import TuneRequest, tune_recipe

TINY = Path(__file__).parent / "cli" / "tiny.sh"


class Talkative(UniformDraws):
    """Draws that explain themselves, from an offset in the stream that an option's file gives."""

    def __init__(self, task: TuningTask) -> None:
        super().__init__(task)
        self.decisions = [f"began with {task.seed}", "kept the draws apart"]
        if lessons := task.options.get("lessons"):
            self._rng.random(int(Path(lessons["file"]).read_text()))


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def tuned(out: Path, recipe: Path = TINY, **changes: Any) -> dict[str, Any]:
    """A campaign of a dozen runs on the simulated cluster."""
    request = {"cluster": "8xH100-SXM5-80GB", "budget": "24x", "tuner": "talkative", "seed": 103, "out": out} | changes
    return tune_recipe(TuneRequest(str(recipe), **request), factory=Talkative)


def replayed(out: Path, factory: Any = Talkative) -> Replay:
    before = _files(out)
    found = replay_campaign(out, factory)
    assert _files(out) == before, "a replay writes nothing where the campaign is"
    return found


def _files(out: Path) -> dict[str, str]:
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "campaign"
    tuned(out)
    return out


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A campaign to tamper with; it also shows that a campaign may be moved."""
    return Path(shutil.copytree(finished, tmp_path / "elsewhere"))


def test_a_finished_campaign_is_reproduced_wherever_it_was_moved(finished: Path, copy: Path) -> None:
    runs = len(read_campaign(finished).runs)
    assert runs > 8
    for out in (finished, copy):
        assert replayed(out) == Replay(str(out), "finished", runs, (), {})


OF_A_STUDY = {
    "logs": False,
    "gate": False,
    "rules": AnswerRules(repeats="run", invalid="charged", retries=0),
    "conditions": (("failures", 2.0),),
    "approvals": ("fp8",),
}


@pytest.mark.parametrize(
    "changes",
    [{"tuner": "attune"}, {"recipe": "mixtral-8x22b", "cluster": "64xH100-SXM5-80GB"}, OF_A_STUDY],
    ids=["attune", "shipped", "of a study"],
)
def test_so_are_the_agents_own_those_of_shipped_recipes_and_of_studies(tmp_path: Path, changes: dict[str, Any]) -> None:
    from attune_lab.agent import attune_tuner

    factory = attune_tuner if "tuner" in changes else Talkative
    request = {"recipe": str(TINY), "cluster": "8xH100-SXM5-80GB", "budget": "16x", "seed": 102} | changes
    tune_recipe(TuneRequest(**request, out=tmp_path / "it"), factory=factory)
    assert replayed(tmp_path / "it", factory).reproduced


def test_the_recipe_file_may_be_gone(tmp_path: Path) -> None:
    script = tmp_path / "own.sh"
    script.write_text(TINY.read_text().replace("LAYOUT_ARGS=(", "source size.sh\nLAYOUT_ARGS=("))
    (tmp_path / "size.sh").write_text("export NCCL_NVLS_ENABLE=0\n")
    tuned(tmp_path / "it", script)
    script.write_text("changed since\n")
    (tmp_path / "size.sh").unlink()
    assert replayed(tmp_path / "it").reproduced


class Dying(SimulatedCluster):
    """A cluster in whose ``nth`` run the process ends."""

    nth = 0

    def run(self, recipe: Recipe, steps: int, *, label: str, step_limit_s: float | None = None) -> RunReport:
        if label.startswith(f"{self.nth:03d}"):
            raise Killed
        return super().run(recipe, steps, label=label, step_limit_s=step_limit_s)


@pytest.mark.parametrize("nth", [0, 1, 2, 3, 5, 8])
def test_of_a_campaign_that_was_killed_what_is_there_is_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    monkeypatch.setattr("attune_lab.cluster.simulated.SimulatedCluster", Dying)
    monkeypatch.setattr(Dying, "nth", nth)
    with pytest.raises(Killed):
        tuned(tmp_path / "it")
    found = replayed(tmp_path / "it")
    assert (found.state, found.runs, found.differences) == ("open", nth + 1, ())
    other = replayed(tmp_path / "it", UniformDraws)
    assert other.reproduced, "the draws are the same, and nobody was asked for decisions yet"
    monkeypatch.setattr(Dying, "nth", 999)
    tuned(tmp_path / "it")
    assert replayed(tmp_path / "it").reproduced


def _execute(out: Path, statement: str) -> None:
    with closing(sqlite3.connect(out / "campaign.db")) as connection, connection:
        assert connection.execute(statement).rowcount > 0, "the statement must change something"


FOURTH = "WHERE label = '004-search'"
EDITS = {
    "a loss that nobody looked at": (
        f"UPDATE runs SET report = replace(report, '\"loss\":[', '\"loss\":[1,') {FOURTH}",
        "run 004-search: what is stored of it was edited since it finished",
    ),
    "a reason": (
        f"UPDATE runs SET proposal = replace(proposal, 'uniform', 'inspired') {FOURTH}",
        "run 004-search: what is stored of it was edited since it finished",
    ),
    "a cost": (
        f"UPDATE runs SET charged_us = charged_us - 1 {FOURTH}",
        "was edited or damaged (ValueError: run 004-search is charged",
    ),
    "a cost on both sides": (
        f"UPDATE runs SET charged_us = 0, report = json_set(report, '$.gpu_hours', 0.0) {FOURTH}",
        "run 004-search: what is stored of it was edited since it finished",
    ),
    "a recipe": (
        f"UPDATE runs SET recipe = replace(recipe, '\"mbs\": ', '\"mbs\": 1') {FOURTH}",
        "was edited or damaged (ValueError: the recipe of run 004-search is not the one that ran)",
    ),
    "a run left out": (f"DELETE FROM runs {FOURTH}", "run 005-search: what is stored of it"),
    "the last run left out": (
        "DELETE FROM runs WHERE id = (SELECT max(id) FROM runs)",
        "runs were sealed when they finished",
    ),
    "the seed": (
        "UPDATE campaign SET spec = replace(spec, '\"seed\": 103', '\"seed\": 102')",
        "or the request or the recipe file behind the campaign,",
    ),
    "the kept file": (
        "UPDATE events SET data = replace(data, 'A small dense', 'A large dense') WHERE kind = 'origin'",
        "or the request or the recipe file behind the campaign,",
    ),
    "a start-up bound": (
        "UPDATE events SET data = replace(data, ', ', ', 1') WHERE kind = 'startup_bound'",
        "run 000-baseline, reserved GPU-microseconds: ",
    ),
    "why the search ended": (
        "UPDATE events SET data = replace(data, 'the budget', 'The budget') WHERE kind = 'search_ended'",
        "search ended, reason: \"The budget",
    ),
    "an end that is none": (
        "UPDATE events SET data = '[1]' WHERE kind = 'search_ended'",
        "was edited or damaged (TypeError",
    ),
    "versions that are none": (
        "UPDATE events SET data = replace(data, 'versions', 'visions') WHERE kind = 'origin'",
        "was edited or damaged (KeyError",
    ),
    "a bound that is none": (
        "UPDATE events SET data = '[1, 2, 3]' WHERE kind = 'startup_bound'",
        "was edited or damaged (ValueError",
    ),
    "a bound without end": (
        "UPDATE events SET data = json_set(data, '$[1]', 1e308) WHERE kind = 'startup_bound'",
        "was edited or damaged (ValueError",
    ),
    "a decision": (
        "UPDATE events SET data = replace(data, 'kept the', 'mixed the') WHERE kind = 'search_ended'",
        'search ended, decisions 2: "mixed the draws apart" then, "kept the draws apart" now',
    ),
    "the result": (
        "UPDATE campaign SET result = json_set(result, '$.gain_pct', 99.5)",
        "result, gain_pct: 99.5 then, ",
    ),
    "a result that is none": (
        "UPDATE campaign SET result = '[' || result",
        "result is not what the campaign wrote",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_of_the_store_is_named(copy: Path, what: str) -> None:
    statement, said = EDITS[what]
    _execute(copy, statement)
    found = replayed(copy)
    assert not found.reproduced
    assert said in found.differences[0]


def test_edits_that_bring_their_own_seals_are_found_by_what_follows_from_them(copy: Path) -> None:
    from attune_lab.campaign.seals import first_seal, sealed

    _execute(copy, f"UPDATE runs SET proposal = replace(proposal, 'uniform', 'inspired') {FOURTH}")
    record = read_campaign(copy)
    seal = first_seal(record)
    with closing(sqlite3.connect(copy / "campaign.db")) as connection, connection:
        ids = [number for (number,) in connection.execute("SELECT id FROM events WHERE kind = 'seal' ORDER BY id")]
        for number, row in zip(ids, record.runs, strict=True):
            seal = sealed(seal, row)
            connection.execute("UPDATE events SET data = ? WHERE id = ?", (json.dumps(seal), number))
    assert replayed(copy).differences == ('run 004-search, reason: "inspired draw" then, "uniform draw" now',)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shipped/tiny.sh", "shipped/tiny.sh is not what the campaign shipped or said, from line 2 on"),
        ("result.json", "result.json, baseline_step_time_s: "),
        ("decisions.txt", "decisions.txt is not what the campaign shipped or said, from line 1 on"),
    ],
)
def test_an_edited_or_missing_file_is_named(copy: Path, name: str, said: str) -> None:
    path = copy / name
    text = path.read_text().replace('"baseline_step_time_s": ', '"baseline_step_time_s": 1')
    path.write_text(text.replace("A small", "A large").replace("began", "ended"))
    assert replayed(copy).differences[0].startswith(said)
    path.write_bytes(b"\xff\0")
    assert name in replayed(copy).differences[0]
    path.unlink()
    assert replayed(copy).differences == (f"{name} is missing",)


def test_hostile_logs_are_no_difference_and_huge_ones_are_not_copied(tmp_path: Path) -> None:
    tuned(tmp_path / "it")
    (tmp_path / "it" / "logs" / "003-search.log").write_bytes(bytes(range(256)) * 100)
    tuned(tmp_path / "it")
    result = json.loads((tmp_path / "it" / "result.json").read_text())
    assert result["warnings"] == ["run 003-search: 003-search.log is a binary file; give a training log as text, or as "
                                  "text packed with gzip (.gz)"]  # fmt: skip
    assert replayed(tmp_path / "it").reproduced
    with (tmp_path / "it" / "logs" / "003-search.log").open("wb") as file:
        file.truncate(2**40)
    (found,) = replay_campaign(tmp_path / "it", Talkative).differences
    assert "003-search.log has 1,099,511,627,776 bytes, too many to copy" in found


def test_another_tuner_is_named_by_the_first_run_it_would_not_have_made(finished: Path) -> None:
    class Drifted(UniformDraws):
        def __init__(self, task: TuningTask) -> None:
            super().__init__(task)
            self._left = 3

        def ask(self) -> Proposal | None:
            self._left -= 1
            if not self._left:
                self._next = self._task.baseline.with_settings({"mbs": 8})
            return super().ask()

    (found,) = replayed(finished, Drifted).differences
    assert found.startswith("run 005-search was not made again: another recipe came in its place (")
    assert "; tp 1 then, 2 now)" in found


def test_a_faulty_environment_is_no_verdict(finished: Path) -> None:
    class Remote(UniformDraws):
        def ask(self) -> Proposal | None:
            raise EnvironmentFault("the API does not answer; try again later")

    with pytest.raises(EnvironmentFault, match="does not answer"):
        replayed(finished, Remote)


def test_a_search_ended_from_outside_cannot_be_replayed(finished: Path, copy: Path) -> None:
    _execute(copy, "UPDATE events SET data = json_remove(data, '$.decisions') WHERE kind = 'search_ended'")
    with pytest.raises(UserError, match="was ended from outside"):
        replay_campaign(copy, Talkative)


def test_a_tuner_that_stops_early_is_named(finished: Path) -> None:
    class Brief(UniformDraws):
        def ask(self) -> Proposal | None:
            return None if len(self.told) > 3 else super().ask()

    (found,) = replayed(finished, Brief).differences
    assert "was not made again: " in found


def test_other_versions_are_told_beside_the_verdict(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attune_lab.origin.version", lambda package: "99.0" if package == "attune-lab" else "1")
    found = replayed(finished)
    assert found.reproduced
    assert found.versions["attune-lab"][1] == "99.0"


def test_a_file_that_an_option_names_must_be_the_one_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lessons.txt").write_text("3")
    pinned = {"file": "lessons.txt", "sha256": hashlib.sha256(b"3").hexdigest()}
    tuned(tmp_path / "it", options=(("lessons", pinned),))
    monkeypatch.chdir(tmp_path.parent)
    assert replayed(tmp_path / "it").reproduced
    (tmp_path / "lessons.txt").write_text("4")
    with pytest.raises(UserError, match=r"option lessons: .*lessons\.txt changed since"):
        replay_campaign(tmp_path / "it", Talkative)
    (tmp_path / "lessons.txt").unlink()
    with pytest.raises(UserError, match=r"option lessons: .*lessons\.txt does not exist"):
        replay_campaign(tmp_path / "it", Talkative)


def test_what_is_no_campaign_or_kept_too_little_is_unusable(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no campaign"):
        replay_campaign(tmp_path, Talkative)
    _execute(copy, "DELETE FROM events WHERE kind = 'origin'")
    with pytest.raises(UserError, match="did not keep the recipe file"):
        replay_campaign(copy, Talkative)
