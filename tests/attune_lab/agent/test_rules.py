"""Each search rule changes what the tuner does when it is switched off."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_world import BASELINE, SPACE, FakeBudget, FakeCostModel, FakeWorld, campaign, make_task, report

from attune_lab.agent import AttuneTuner
from attune_lab.agent.rules import RULES, Rulebook
from attune_lab.contracts import UserError


def run(world: FakeWorld, *without: str, runs: int = 20, **changes):
    return campaign(AttuneTuner(make_task(options={"without": list(without)}, **changes)), world, runs=runs)


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"did you mean noise-band\? known: one-lever, .*stop-when-not-worth-it"):
        Rulebook(["noise-bnad"])


def test_the_page_of_the_rules_says_what_they_demand() -> None:
    page = (Path(__file__).parents[3] / "docs/rules.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| rule ")]
    assert rows == [f"| {rule.name} | {rule.statement} |" for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_in_force_unless_switched_off(rule) -> None:
    assert rule in Rulebook()
    assert rule not in Rulebook([rule.name])


def test_one_lever() -> None:
    single = run(FakeWorld(1), runs=1)[0][0]
    double = run(FakeWorld(1), "one-lever", runs=1)[0][0]
    assert set(single.changed) < set(double.changed)


def test_diagnose_first() -> None:
    """Fused permutation answers low GEMM efficiency; where GEMMs are fine it is looked at only without the rule."""

    class Efficient(FakeWorld):
        def run(self, recipe, label):
            answer = super().run(recipe, label)
            return answer.model_copy(update={"diagnostics": {"gemm_eff": 0.74}, "breakdown_s": {}})

    lessons = {p.lesson for p, _ in run(Efficient(1))}
    assert "K-permute-fusion" not in lessons
    assert "K-permute-fusion" in {p.lesson for p, _ in run(Efficient(1), "diagnose-first")}


def test_use_catalog() -> None:
    assert all(p.lesson for p, _ in run(FakeWorld(2)))
    blind = run(FakeWorld(2), "use-catalog", "re-measure-winner", runs=6)
    assert not any(p.lesson for p, _ in blind)
    assert all(len(p.changed) == 1 for p, _ in blind)


def test_retry_oom_with_recompute() -> None:
    class Tight(FakeWorld):
        """Nothing runs without recomputation, whatever the cost model says."""

        def run(self, recipe, label):
            lean = SPACE.value(recipe, "recompute") == "none"
            return report(label, "oom") if lean else super().run(recipe, label)

    world = Tight(3)
    log = run(world)
    failed = next(place for place, (_, answer) in enumerate(log) if answer.status == "oom")
    first, retry = log[failed][0].recipe, log[failed + 1][0]
    assert retry.lesson == "P-oom-retry-recompute"
    assert set(SPACE.changed(first, retry.recipe)) == {"recompute"}
    assert "P-oom-retry-recompute" not in {p.lesson for p, _ in run(world, "retry-oom-with-recompute")}


def test_check_memory_first() -> None:
    def predicted_too_large(log):
        estimates = FakeCostModel().estimate([p.recipe for p, _ in log])
        return sum(not e.fits for e in estimates)

    assert predicted_too_large(run(FakeWorld(4))) == 0
    assert predicted_too_large(run(FakeWorld(4), "check-memory-first")) > 0


def test_re_measure_winner() -> None:
    def repeats(log):
        return len(log) - len({p.recipe.digest for p, _ in log})

    assert sum(repeats(run(FakeWorld(seed))) for seed in range(5, 10)) > 0
    assert sum(repeats(run(FakeWorld(seed), "re-measure-winner")) for seed in range(5, 10)) == 0


def test_noise_band() -> None:
    """A gain of 0.3 % from one lever is kept only without the rule: with it the next move starts from before."""
    world = FakeWorld(6, noise=0.0)
    tuner, loose = (
        AttuneTuner(make_task(options={"without": [*off, "re-measure-winner"]})) for off in ([], ["noise-band"])
    )
    for each in (tuner, loose):
        campaign(each, world, runs=0)
        proposal = each.ask()
        baseline = world.run(BASELINE, "again")
        slightly = tuple(t / 1.003 for t in baseline.step_times_s)
        each.tell(proposal, baseline.model_copy(update={"label": "1", "step_times_s": slightly}))
        verdict = next(line for line in each.decisions if line.startswith("1 ("))
        assert f"): {'kept' if each is loose else 'reverted'}, +0.3% over baseline in one run, " in verdict
        assert f"({'noise-band is off' if each is loose else 'noise-band'}) [" in verdict
        assert (each._best.recipe.digest == proposal.recipe.digest) is (each is loose)


def test_stop_when_not_worth_it() -> None:
    world = FakeWorld(7)
    assert len(run(world, runs=40)) < len(run(world, "stop-when-not-worth-it", runs=40))


def test_stop_when_it_cannot_be_paid_for() -> None:
    assert run(FakeWorld(7), budget=FakeBudget(left_for_search=0.1)) == []
    assert run(FakeWorld(7), "stop-when-not-worth-it", budget=FakeBudget(left_for_search=0.1)) != []
