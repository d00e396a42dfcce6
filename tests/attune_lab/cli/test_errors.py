"""Bad input: one clear sentence with the way out, exit code 2 or 3, never a traceback, nothing lost."""

import json
from pathlib import Path

import pytest

CLUSTER = "64xH200-SXM5-141GB"
TUNE = ("tune", "glm-4.5", "--cluster", CLUSTER, "--budget", "40x")


def _tune(**edits):
    words = {"recipe": "glm-4.5", "--cluster": CLUSTER, "--budget": "40x", **edits}
    recipe = words.pop("recipe")
    return ["tune", recipe, *(word for pair in words.items() for word in pair)]


def _refused(outcome, code=2):
    assert outcome.code == code, outcome.stderr
    assert "Traceback" not in outcome.stderr
    lines = [line for line in outcome.stderr.splitlines() if line.startswith("attune: ")]
    assert len(lines) == 1, outcome.stderr
    return lines[0]


@pytest.mark.parametrize("budget", ["0", "0x", "-5", "-40x", "nan", "inf", "40y", "", "x", "1e999", "40 x y", "𝟒𝟎x"])
def test_budgets_that_are_none_are_refused_with_the_forms_that_are(attune, tmp_path, budget):
    out = tmp_path / "c"
    sentence = _refused(attune("tune", "glm-4.5", "--cluster", CLUSTER, f"--budget={budget}", "--out", out))
    assert "40x" in sentence
    assert not out.exists()


@pytest.mark.parametrize("budget", ["1x", "3x", "0.01", "1h"])
def test_a_budget_too_small_for_baseline_and_gate_names_the_smallest_that_works(attune, tmp_path, budget):
    sentence = _refused(attune(*_tune(**{"--budget": budget, "--out": str(tmp_path / "c")})))
    assert "at least" in sentence


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({"recipe": "glm-4,5"}, "glm-4.5"),
        ({"recipe": "no-such-model"}, "attune recipes"),
        ({"--cluster": "64xH2000"}, "H200"),
        ({"--cluster": "H200"}, "64x"),
        ({"--cluster": "0xH200-SXM5-141GB"}, "0"),
        ({"--cluster": "-8xH200-SXM5-141GB"}, "cluster"),
        ({"--tuner": "atune"}, "did you mean attune"),
        ({"--policy": "magic"}, "catalog"),
        ({"--without": "no-such-rule"}, "one-lever"),
        ({"--approve": "everything"}, "fp8"),
        ({"--seed": "-1"}, "seed"),
        ({"--seed": "three"}, "seed"),
    ],
)
def test_typos_are_answered_with_what_is_known(attune, tmp_path, edits, words):
    assert words in _refused(attune(*_tune(**edits), "--out", tmp_path / "c"))


def test_json_mode_answers_errors_with_one_object(attune):
    outcome = attune(*_tune(recipe="no-such-model"), "--json")
    assert outcome.code == 2
    assert outcome.json["error"]["kind"] == "input"


SCRIPT = Path(__file__).parent / "tiny.sh"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 3"), "divi"),
        (("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 7"), "divi"),
        (("--bf16", "--bf16 --fp16"), "fp16"),
        (("--micro-batch-size 1", "--micro-batch-size 1 --micro-batch-size 2"), "micro-batch-size"),
        (("--num-layers 32", ""), "--num-layers"),
        (("--hidden-size 4096", "--hidden-size $1"), "line"),
    ],
)
def test_recipes_that_cannot_start_say_why(attune, tmp_path, edit, words):
    path = tmp_path / "recipe.sh"
    text = SCRIPT.read_text()
    assert edit[0] in text
    path.write_text(text.replace(*edit))
    assert words in _refused(attune(*_tune(recipe=str(path), **{"--cluster": "8xH200-SXM5-141GB"})))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\x7fELF\x00\x00", "binary"),
        (b"\xff\xfe" + "--num-layers 4".encode("utf-16-le"), "UTF-8"),
        (b"#" * (50 * 2**20), "large"),
        (b"echo hello\n", "flag"),
    ],
)
def test_files_that_are_no_recipes_are_refused(attune, tmp_path, content, words):
    path = tmp_path / "recipe.sh"
    path.write_bytes(content)
    assert words in _refused(attune(*_tune(recipe=str(path))))
    assert path.read_bytes() == content


def test_a_folder_is_no_recipe(attune, tmp_path):
    _refused(attune(*_tune(recipe=str(tmp_path))))


def test_an_output_folder_that_cannot_be_written_is_the_environments_fault(attune, tmp_path):
    (tmp_path / "file").write_text("in the way")
    _refused(attune(*TUNE, "--out", tmp_path / "file" / "campaign"), code=3)
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("content", [b"not a database at all", b"SQLite format 3\x00" + b"\x01" * 500])
def test_a_corrupt_database_is_left_as_it_is(attune, tmp_path, content):
    (tmp_path / "campaign.db").write_bytes(content)
    _refused(attune(*TUNE, "--out", tmp_path), code=3)
    assert (tmp_path / "campaign.db").read_bytes() == content


def test_an_empty_database_is_what_a_kill_at_the_first_instant_leaves(attune, tmp_path):
    (tmp_path / "campaign.db").write_bytes(b"")
    assert attune(*TUNE, "--out", tmp_path).code == 0


def test_somebody_elses_database_is_left_as_it_is(attune, tmp_path):
    import sqlite3

    with sqlite3.connect(tmp_path / "campaign.db") as connection:
        connection.execute("CREATE TABLE treasure (map TEXT)")
        connection.execute("INSERT INTO treasure VALUES ('here')")
    connection.close()
    _refused(attune(*TUNE, "--out", tmp_path))
    with sqlite3.connect(tmp_path / "campaign.db") as connection:
        assert connection.execute("SELECT map FROM treasure").fetchall() == [("here",)]


def test_another_campaigns_folder_is_not_overwritten(attune, tmp_path):
    first = attune(*TUNE, "--out", tmp_path, "--json")
    assert first.code == 0
    sentence = _refused(attune(*_tune(**{"--budget": "20x", "--out": str(tmp_path)})))
    assert "budget" in sentence
    assert attune(*TUNE, "--out", tmp_path, "--json").json == first.json


def test_a_closed_shell_option_is_named(attune):
    assert "--budgett" in _refused(attune("tune", "glm-4.5", "--cluster", CLUSTER, "--budgett", "40x"))


def test_gate_names_the_run_it_cannot_read(attune, tmp_path):
    good = tmp_path / "a.csv"
    good.write_text("step,lm_loss\n" + "".join(f"{i},{9 - i * 0.1}\n" for i in range(1, 21)))
    assert "nowhere.csv" in _refused(attune("gate", "--baseline", good, "--candidate", tmp_path / "nowhere.csv"))


def test_json_of_every_catalogue_is_one_object(attune):
    for command in ("recipes", "models", "clusters", "tuners", "lessons"):
        outcome = attune(command, "--json")
        assert outcome.code == 0
        assert json.loads(outcome.stdout)[command]


def test_options_the_tuner_does_not_have_are_refused_before_anything_is_spent(attune, tmp_path):
    out = tmp_path / "c"
    assert "depth" in _refused(attune(*_tune(**{"--tuner": "attune", "--option": "depth=3", "--out": str(out)})))
    assert not out.exists()


def test_help_names_the_search_rules_of_the_agent():
    from attune_lab.agent.rules import RULES
    from attune_lab.cli.tune import SEARCH_RULES

    assert SEARCH_RULES.split(", ") == [rule.name for rule in RULES]


def test_a_misspelt_flag_is_named_with_the_nearest(attune, tmp_path):
    path = tmp_path / "recipe.sh"
    path.write_text(SCRIPT.read_text().replace("--sequence-parallel", "--sequence-paralel --my-team-flag 3"))
    foreign, near = attune("simulate", path, "--cluster", "8xH200-SXM5-141GB", "--json").json["warnings"]
    assert "did you mean --sequence-parallel?" in near
    assert foreign.startswith("--my-team-flag")


def test_a_shipped_recipe_can_be_had_as_a_file(attune, tmp_path):
    printed = attune("recipes", "glm-4.5")
    path = tmp_path / "mine.sh"
    path.write_text(printed.stdout)
    assert attune("simulate", path, "--cluster", "128xH200-SXM5-141GB", "--json").code == 0
    assert attune("recipes", "glm-4.5", "--json").json["recipes"][0]["text"] == printed.stdout


@pytest.mark.parametrize("command", [("compare", "study.yaml"), ("reproduce", "main", "--quick")])
def test_an_engine_that_is_none_is_refused_wherever_it_is_asked_for(attune, tmp_path, command):
    assert "take local, ray, dask" in _refused(attune(*command, "--engine", "spark", "--out", tmp_path / "out"))
