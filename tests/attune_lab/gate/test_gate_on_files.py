"""The gate as the command line calls it: logs, run folders, and recipes beside them."""

import re

import pytest

from attune_lab.cluster import SimulatedCluster
from attune_lab.contracts import UserError
from attune_lab.gate import run_gate
from attune_lab.recipe.files import load
from attune_lab.workbench import open_workbench
from simulator.world import Conditions

CLUSTER = "64xH200-SXM5-141GB"
TAME = Conditions(physics=0, residuals=0, failures=0, defects=0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with the logs of two runs of one shipped recipe, and the recipe's file beside them."""
    folder = tmp_path_factory.mktemp("runs")
    bench = open_workbench("mixtral-8x22b", CLUSTER)
    cluster = SimulatedCluster(bench.cluster, 1, conditions=TAME, log_dir=folder)
    for label in ("base", "again"):
        cluster.run(bench.baseline, 20, label=label)
    cluster.run(bench.baseline.with_settings({"lr": 0.5}), 20, label="other")
    other = SimulatedCluster(bench.cluster, 2, conditions=TAME, log_dir=folder)
    for label in ("seed-base", "seed-again"):
        other.run(bench.baseline, 20, label=label)
    (folder / "recipe.sh").write_bytes(bench.file.render(bench.baseline))
    return folder, bench


def test_two_logs_of_one_recipe_pass(runs):
    folder, _ = runs
    assert run_gate(str(folder / "base.log"), str(folder / "again.log")).verdict == "pass"


def test_a_recipe_that_changed_the_objective_is_rejected_whatever_its_curve_shows(runs):
    folder, bench = runs
    changed = folder / "changed.sh"
    changed.write_bytes(bench.file.render(bench.baseline.with_settings({"lr": 3.3e-4})))
    pair = [f"{folder / 'recipe.sh'},{folder / 'base.log'}", f"{changed},{folder / 'again.log'}"]
    verdict = run_gate(*pair)
    assert verdict.verdict == "reject"
    assert any(reason.startswith("lr changes") for reason in verdict.reasons)


def test_another_objective_shows_in_the_curve_alone(runs):
    folder, _ = runs
    assert run_gate(str(folder / "base.log"), str(folder / "other.log")).verdict == "reject"


def test_run_folders_bring_their_recipe(runs, tmp_path):
    folder, _ = runs
    for name, log in (("a", "base.log"), ("b", "again.log")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.log").write_bytes((folder / log).read_bytes())
        (tmp_path / name / "recipe.sh").write_bytes((folder / "recipe.sh").read_bytes())
    verdict = run_gate(str(tmp_path / "a"), str(tmp_path / "b"), [str(folder / "again.log")])
    assert verdict.verdict == "pass"
    assert not any("not compared" in check.reason for check in verdict.checks)
    (tmp_path / "b" / "second.yaml").write_text("x: 1\n")
    with pytest.raises(UserError, match="several recipes"):
        run_gate(str(tmp_path / "a"), str(tmp_path / "b"))


def test_a_shipped_recipe_may_be_named(runs):
    folder, _ = runs
    assert load("mixtral-8x22b").recipe
    base, again = folder / "base.log", folder / "again.log"
    assert run_gate(f"mixtral-8x22b,{base}", f"mixtral-8x22b,{again}").verdict == "pass"


def test_a_log_compared_with_its_own_copy_proves_nothing(runs, tmp_path):
    folder, _ = runs
    copy = tmp_path / "mine.log"
    copy.write_bytes((folder / "base.log").read_bytes())
    verdict = run_gate(str(folder / "base.log"), str(copy))
    assert verdict.verdict == "inconclusive"
    assert "copy" in verdict.reasons[0]


@pytest.fixture(scope="module")
def moved(runs):
    """The log of a run whose losses are higher by 1 from the first step on."""
    folder, _ = runs
    lines = (folder / "again.log").read_text().splitlines(keepends=True)
    path = folder / "moved.log"
    path.write_text("".join(re.sub(r"lm loss: (\d)", lambda m: f"lm loss: {int(m[1]) + 1}", line) for line in lines))
    return str(path)


def test_what_is_said_of_the_start_and_further_seeds_count(runs, moved):
    folder, _ = runs
    base, again = (str(folder / f"{name}.log") for name in ("base", "again"))
    for start in ("differs", "unknown"):
        verdict = run_gate(base, moved, start=start)
        assert verdict.verdict == "inconclusive"
        assert "seed checkpoint" in verdict.reasons[0]
    assert run_gate(base, moved, start="same").verdict == "reject"
    seed = tuple(str(folder / f"seed-{name}.log") for name in ("base", "again"))
    assert run_gate(base, again, again=[seed]).verdict == "pass"
    assert "seed of their own" in run_gate(base, again, again=[(again, base)]).reasons[0]


def test_a_layout_that_draws_other_weights_is_not_compared(runs, moved):
    """The recipes tell that tensor parallelism changed and no common checkpoint is loaded."""
    folder, bench = runs
    for name, tp in (("tp1", 1), ("tp2", 2)):
        recipe = bench.baseline.with_settings({"tp": tp, "sequence_parallel": tp > 1})
        (folder / f"{name}.sh").write_bytes(bench.file.render(recipe))
    verdict = run_gate(f"{folder / 'tp1.sh'},{folder / 'base.log'}", f"{folder / 'tp2.sh'},{moved}")
    assert any(c.name == "convergence.start" and c.outcome == "inconclusive" for c in verdict.checks)


def test_two_recipes_are_compared_before_anything_runs(runs, tmp_path):
    folder, bench = runs
    changed = tmp_path / "changed.sh"
    changed.write_bytes(bench.file.render(bench.baseline.with_settings({"lr": 3.3e-4})))
    verdict = run_gate(str(folder / "recipe.sh"), str(changed))
    assert verdict.verdict == "reject"
    assert [reason for reason in verdict.reasons if reason.startswith("lr changes")]
    assert run_gate("mixtral-8x22b", "mixtral-8x22b").reasons == run_gate(str(changed), str(changed)).reasons
    same = run_gate(str(folder / "recipe.sh"), f"{folder / 'recipe.sh'},{folder / 'base.log'}")
    assert (same.verdict, len(same.reasons)) == ("inconclusive", 1)
    assert "run both" in same.reasons[0]
    recipe, log = str(folder / "recipe.sh"), str(folder / "base.log")
    for further in ({"twins": [recipe]}, {"again": [(log, recipe)]}):
        with pytest.raises(UserError, match="was not run"):
            run_gate(log, str(folder / "again.log"), **further)


def test_what_cannot_be_compared_is_skipped_and_no_pass(runs):
    folder, _ = runs
    verdict = run_gate(str(folder / "base.log"), str(folder / "again.log"))
    assert {check.name for check in verdict.checks if check.outcome == "skipped"} == {"configuration", "signals"}
    assert not any("not compared" in reason for reason in verdict.reasons)
