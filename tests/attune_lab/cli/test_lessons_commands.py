"""`attune lessons` and what stands below it, from learning a campaign to tuning with what was learnt."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from attune_lab.cli.lessons import DEFAULT
from attune_lab.cluster.simulated import SimulatedCluster
from attune_lab.contracts import RunReport
from attune_lab.lessons import records
from attune_lab.lessons.records import LearntCampaign, Observation, Records, Traits

RECIPE = Path(__file__).with_name("tiny.sh")
FILE = Path("campaigns") / "lessons.json"
HOSTILE = "evil\x1b]0;title\x07 [bold]x[/bold] [/nope]"


def campaign(
    n: int, gain: float, model: str = "mine", n_gpus: int = 8, outcome: str | None = None, name: str = ""
) -> LearntCampaign:
    figures = (
        {"outcome": outcome} if outcome else {"measured": gain, "se": 0.005, "outcome": "gain" if gain > 0 else "loss"}
    )
    seen = Observation(
        label=f"{n:03}-search",
        lesson="C-dispatcher",
        edits={"dispatcher": ("alltoall", "flex:deepep")},
        base="0" * 64,
        recipe="1" * 64,
        expected=0.02,
        message="\x1b[31mred [/red]" if outcome else "",
        **figures,  # type: ignore[arg-type]
    )
    traits = Traits(
        build=f"gqa {model}", dense=False, experts=8, parameters=10**10, seq_len=4096, accelerator="H100-SXM5-80GB",
        n_gpus=n_gpus, nodes=1, nvlink_domain=8, versions="",
    )  # fmt: skip
    return LearntCampaign(
        digest=f"{n:064x}", name=name or f"campaign {n}", model=model, traits=traits, place=f"{model} {n}",
        tuner="attune", seed=n, provenance="simulated", version="0", cost_model="0", observations=(seen,),
    )  # fmt: skip


@pytest.fixture
def file(attune) -> Path:
    """Two worlds in which the dispatcher gains for one model, two in which it loses for another, one that crashed."""
    kept = [campaign(n, 0.1 + n / 1000) for n in range(1, 4)]
    kept += [campaign(n, -0.1 + n / 1000, model=HOSTILE) for n in range(4, 7)]
    kept += [campaign(7, 0.0, outcome="crash", name=f"=HYPERLINK(1) {HOSTILE}")]
    FILE.parent.mkdir()
    FILE.write_text(Records(campaigns=tuple(kept)).model_dump_json())
    return FILE


def test_the_default_file_is_the_records(attune) -> None:
    assert DEFAULT == records.DEFAULT_FILE


def test_the_list_is_as_it_was(attune) -> None:
    listed = attune("lessons", "--json").json
    assert set(listed) == {"lessons"}
    assert {"id", "symptoms", "moves", "sources"} <= set(listed["lessons"][0])


def test_from_a_campaign_to_the_next(attune) -> None:
    tune = ("tune", RECIPE, "--cluster", "8xH200-SXM5-141GB", "--budget", "16x", "--json")
    first = attune(*tune, "--seed", "100").json
    learnt = attune("lessons", "learn", "campaigns", "--json").json
    assert learnt["file"] == str(FILE)
    assert len(learnt["learnt"]) == 1
    again = attune("lessons", "learn", first["out"], "campaigns", "--json").json
    assert (again["learnt"], again["known"], again["campaigns"]) == ([], 1, 1)
    digest = learnt["learnt"][0]["campaign"]
    behind = attune("lessons", "why", digest, "--json").json["observations"]
    assert len(behind) == learnt["learnt"][0]["observations"] > 0
    shown = attune("lessons", "show", "--json").json
    assert sum(move["tries"] for move in shown["moves"]) == len(behind)
    assert "mcore" in shown["campaigns"][0]["stack"]
    second = attune(*tune, "--seed", "101", "--lessons", FILE, "--out", "second").json
    known = second["options"]["lessons"]
    assert (known["file"], known["campaigns"], len(known["models"])) == (str(FILE), 1, 1)
    assert attune("replay", "second", "--json").json["reproduced"]
    assert f"1 campaign of {known['models'][0]}" in " ".join(
        attune(*tune[:-1], "--seed", "101", "--lessons", FILE, "--out", "second").stdout.split()
    )
    attune("lessons", "learn", "second")
    grown = attune(*tune, "--seed", "101", "--lessons", FILE, "--out", "second").json
    assert {**grown, "warnings": second["warnings"]} == second
    assert grown["warnings"][-1] == (
        f"{FILE} has changed since (campaigns: 1 then, 2 now); this campaign keeps to what it began with"
    )
    FILE.unlink()
    assert attune("replay", "second", "--json").json["reproduced"]
    gone = attune(*tune, "--seed", "101", "--lessons", FILE, "--out", "second").json
    assert gone["warnings"][-1].startswith(f"{FILE} can no longer be read; ")
    other = attune(*tune, "--seed", "101", "--lessons", "other.json", "--out", "second")
    assert (other.code, "other.json does not exist" in other.stderr) == (2, True)


def test_a_campaign_cut_off_goes_on_with_what_it_began_with(attune, monkeypatch) -> None:
    FILE.parent.mkdir()
    FILE.write_text(Records(campaigns=(campaign(1, 0.1),)).model_dump_json())
    words = ("tune", RECIPE, "--cluster", "8xH200-SXM5-141GB", "--budget", "16x", "--seed", "101", "--lessons", FILE)
    whole = attune(*words, "--out", "whole", "--json").json
    run = SimulatedCluster.run

    def cut_off(self: SimulatedCluster, *given: Any, label: str, **how: Any) -> RunReport:
        if label.startswith("005"):
            raise KeyboardInterrupt
        return run(self, *given, label=label, **how)

    with monkeypatch.context() as cut:
        cut.setattr(SimulatedCluster, "run", cut_off)
        assert attune(*words, "--out", "cut").code != 0
    assert attune("replay", "cut", "--json").json["state"] == "open"
    FILE.write_text(Records(campaigns=(campaign(1, 0.1), campaign(2, -0.3))).model_dump_json())
    resumed = attune(*words, "--out", "cut", "--json").json
    resumed_runs, whole_runs = ([{**run, "log_path": ""} for run in data["runs"]] for data in (resumed, whole))
    assert resumed_runs == whole_runs
    assert resumed["options"] == whole["options"]
    assert "2 now" in resumed["warnings"][-1]
    assert attune("replay", "cut", "--json").json["reproduced"]


@pytest.mark.parametrize(
    "words", [["show"], ["show", "C-dispatcher"], ["why", "C-dispatcher"], ["why", "0" * 63 + "7"]]
)
def test_a_terminal_of_80_columns_is_enough_and_obeys_nothing(attune, file, monkeypatch, words) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = attune("lessons", *words)
    assert shown.code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "\x1b" not in shown.stdout
    assert "\x07" not in shown.stdout


def test_markup_in_a_file_is_text(attune, file) -> None:
    assert "[bold]x[/bold]" in " ".join(attune("lessons", "show").stdout.split())


def test_json_before_the_command_is_not_passed_over(attune, file) -> None:
    refused = attune("lessons", "--json", "show")
    assert refused.code == 2
    assert "behind show" in refused.json["error"]["message"]


@pytest.mark.parametrize("columns", ["0", "1", "7", "40"])
def test_the_narrowest_terminal_gets_its_answer(attune, file, monkeypatch, columns) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for words in (["show"], ["show", "C-dispatcher"], ["why", "C-dispatcher"]):
        assert attune("lessons", *words).code == 0


def test_an_empty_file_teaches_nothing_and_says_so(attune) -> None:
    Path("none.json").write_text(Records().model_dump_json())
    assert attune("lessons", "learn", "none.json", "--json").json["campaigns"] == 0


def test_contradictions_are_shown_with_both_sides(attune, file) -> None:
    (move,) = attune("lessons", "show", "C-dispatcher", "--json").json["moves"]
    assert move["conflict"]
    gains = {side["context"].split(" on ")[0]: side["gain_pct"] for side in move["sides"]}
    assert gains["mine"] > 5
    assert min(gains.values()) < -5
    text = " ".join(attune("lessons", "show", "C-dispatcher").stdout.split())
    assert "conflict, gain, dispatcher = flex:deepep: mine on 8xH100" in text
    assert "conflict, loss, dispatcher = flex:deepep: evil" in text


def test_a_campaign_goes_by_its_folder_its_name_and_what_they_begin_with(attune) -> None:
    tune = ("tune", RECIPE, "--cluster", "8xH200-SXM5-141GB", "--budget", "12x", "--json", "--seed")
    first, second = Path(attune(*tune, "100").json["out"]), Path(attune(*tune, "211").json["out"])
    learnt = attune("lessons", "learn", first, second, "--json").json["learnt"]
    digest, name = next((one["campaign"], one["name"]) for one in learnt if one["name"].endswith("seed 100"))
    for word in (first, first.name, digest[:6], name, name[:-2]):
        seen = attune("lessons", "why", word, "--json").json["observations"]
        assert {row["campaign"] for row in seen} == {digest}
    several = attune("lessons", "why", name[:-3])
    assert (several.code, "is the name of 2 campaigns" in several.stderr) == (2, True)
    assert attune("lessons", "retract", first.name, "--why", "faulty", "--json").json["campaign"] == digest
    shown = attune("lessons", "show").stdout
    assert all(one["campaign"][:8] in shown and one["name"].split()[0] in shown for one in learnt)
    third = Path(attune(*tune, "102").json["out"])
    unknown = attune("lessons", "why", third.name)
    assert (unknown.code, f"attune lessons learn {third} adds it" in unknown.stderr) == (2, True)


def test_retracted_and_restored(attune, file) -> None:
    digest = f"{1:064x}"
    assert attune("lessons", "retract", digest, "--json").code == 2
    assert attune("lessons", "retract", digest, "--why", "the recipe\nwas faulty", "--json").json["retracted"]
    assert attune("lessons", "show", "--json").json["moves"][0]["tries"] == 6
    assert "the recipe was faulty" in attune("lessons", "show").stdout
    assert attune("lessons", "retract", digest, "--undo", "--json").json["retracted"] is False
    assert attune("lessons", "show", "--json").json["moves"][0]["tries"] == 7


def test_exported(attune, file) -> None:
    assert attune("lessons", "export", "all.csv").code == 0
    rows = list(csv.DictReader(Path("all.csv").read_text().splitlines()))
    assert len(rows) == 7
    assert json.loads(rows[0]["edits"]) == {"dispatcher": ["alltoall", "flex:deepep"]}
    assert rows[6]["name"].startswith("'=HYPERLINK")
    assert attune("lessons", "export", "some.json", "--without", "mine", "--json").json["campaigns"] == 3
    assert attune("lessons", "show", "--from", "some.json", "--json").json["moves"][0]["tries"] == 3
    attune("lessons", "export", "all.yaml")
    written = YAML(typ="safe").load(Path("all.yaml"))
    assert Records.model_validate(json.loads(json.dumps(written))) == records.read_records(file)[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["learn", "nowhere"], "nowhere holds no campaign"),
        (["show", "NO-SUCH"], "no try of lesson NO-SUCH"),
        (["show", "--from", "none.json"], "none.json does not exist"),
        (["why", "NO-SUCH"], "no campaign is called NO-SUCH"),
        (["export", "x.xlsx"], "x.xlsx ends in none of"),
        (["export", str(records.DEFAULT_FILE), "--without", "mine"], "export to another file"),
        (["export", "x.csv", "--without", "glm"], "--without glm: no campaign of that model"),
        (["retract", "ffff", "--why", "x"], "no campaign is called ffff"),
    ],
)
def test_a_mistake_is_one_sentence(attune, file, words, said) -> None:
    refused = attune("lessons", *words)
    assert refused.code == 2
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("content", ["", "{", '{"campaigns": 5}', "\x00\x01"])
def test_tuning_with_a_bad_file_is_refused_before_anything_runs(attune, content) -> None:
    Path("bad.json").write_text(content)
    tune = ("tune", RECIPE, "--cluster", "8xH200-SXM5-141GB", "--budget", "16x", "--lessons", "bad.json", "--out", "o")
    refused = attune(*tune)
    assert refused.code == 2
    assert "bad.json" in refused.stderr
    assert not Path("o").exists()
