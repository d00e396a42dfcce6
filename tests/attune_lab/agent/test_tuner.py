"""Laws of the tuner, and its strength against uniform draws."""

from __future__ import annotations

import re
import statistics

import pytest
from agent_world import BASELINE, SPACE, FakeBudget, FakeWorld, best_true_gain, campaign, make_task, report
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.agent import AttuneTuner, attune_tuner
from attune_lab.contracts import Proposal, Tuner, UserError
from attune_lab.testing import UniformDraws

OBJECTIVE = ("gbs", "seq_len", "num_layers", "hidden", "heads", "num_experts", "topk", "vocab_size")


def test_it_is_a_tuner() -> None:
    assert isinstance(AttuneTuner(make_task()), Tuner)
    assert AttuneTuner.name == "attune"


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), memory=st.floats(0.9, 1.6), runs=st.integers(1, 15))
def test_laws(seed: int, memory: float, runs: int) -> None:
    log = campaign(AttuneTuner(make_task()), FakeWorld(seed, memory_factor=memory), runs=runs)
    seen: set[str] = {BASELINE.digest}
    for proposal, _ in log:
        assert not SPACE.problems(proposal.recipe)
        assert [proposal.recipe.settings.get(key) for key in OBJECTIVE] == [BASELINE.settings[key] for key in OBJECTIVE]
        assert proposal.changed
        assert proposal.lesson
        assert "\n" not in proposal.reason
        assert proposal.recipe.digest not in seen or "again" in proposal.reason
        seen.add(proposal.recipe.digest)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_replaying_the_reports_gives_the_same_proposals(seed: int) -> None:
    world = FakeWorld(seed)
    baselines = [world.run(BASELINE, f"000-baseline-{n}") for n in range(2)]
    first, log = AttuneTuner(make_task()), []
    for told in baselines:
        first.tell(Proposal(BASELINE), told)
    while (proposal := first.ask()) is not None and len(log) < 12:
        answer = world.run(proposal.recipe, f"{len(log)}")
        first.tell(proposal, answer)
        log.append((proposal, answer))
    second = AttuneTuner(make_task())
    for told in baselines:
        second.tell(Proposal(BASELINE), told)
    for proposal, answer in log:
        again = second.ask()
        assert again == proposal
        second.tell(again, answer)


def test_asking_twice_changes_nothing() -> None:
    tuner = AttuneTuner(make_task())
    campaign(tuner, FakeWorld(0), runs=0)
    assert tuner.ask() == tuner.ask()


@pytest.mark.parametrize("runs", [8, 20])
def test_it_beats_uniform_draws_at_equal_runs(runs: int) -> None:
    gains = {"attune": [], "uniform": []}
    for seed in range(10):
        for name, tuner in (("attune", AttuneTuner), ("uniform", UniformDraws)):
            world = FakeWorld(seed)
            log = campaign(tuner(make_task(seed=seed)), world, runs=runs)
            gains[name].append(best_true_gain(log, world))
    assert statistics.fmean(gains["attune"]) > statistics.fmean(gains["uniform"])


def test_a_setting_that_crashed_is_left_alone() -> None:
    class Broken(FakeWorld):
        def run(self, recipe, label):
            return report(label, "crash") if SPACE.value(recipe, "ep_overlap") else super().run(recipe, label)

    log = campaign(AttuneTuner(make_task(options={"without": ["stop-when-not-worth-it"]})), Broken(0), runs=30)
    assert sum(answer.status == "crash" for _, answer in log) <= 1


@pytest.mark.parametrize("status", ["crash", "hang", "diverged", "oom"])
def test_a_search_in_which_every_run_fails_ends_by_itself(status: str) -> None:
    class Failing(FakeWorld):
        def run(self, recipe, label):
            return super().run(recipe, label) if recipe.digest == BASELINE.digest else report(label, status)

    log = campaign(AttuneTuner(make_task()), Failing(0), runs=60)
    assert 1 <= len(log) < 60


@pytest.mark.parametrize("seed", range(5))
def test_ten_times_the_noise_ships_nothing_slower(seed: int) -> None:
    """A wider band ends the search earlier; what is kept is still no worse than the recipe as it came."""
    noisy = FakeWorld(seed, noise=0.03)
    tuner = AttuneTuner(make_task())
    log = campaign(tuner, noisy, runs=40)
    assert len(log) < 40
    assert noisy.step_time(tuner._best.recipe) < noisy.step_time(BASELINE) * 1.01


def test_what_the_infrastructure_broke_is_proposed_again() -> None:
    tuner = AttuneTuner(make_task())
    campaign(tuner, FakeWorld(0), runs=0)
    proposal = tuner.ask()
    tuner.tell(proposal, report("1", "node_failure"))
    assert tuner.ask() == proposal
    tuner.tell(proposal, report("1b", "preempted"))
    assert tuner.ask() != proposal


def test_a_baseline_out_of_memory_still_gets_somewhere() -> None:
    class Tight(FakeWorld):
        def run(self, recipe, label):
            return report(label, "oom") if recipe.digest == BASELINE.digest else super().run(recipe, label)

    log = campaign(AttuneTuner(make_task()), Tight(0), runs=5)
    assert any(answer.status == "ok" for _, answer in log)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "oracle"}, "policy 'oracle' is not in this version; available: catalog"),
        ({"without": ["luck"]}, "without 'luck': no such search rule; known: one-lever"),
        ({"without": "noise-band"}, "must be a list of rule names"),
        ({"polcy": "catalog"}, "option 'polcy' of the attune tuner is not known"),
    ],
)
def test_unusable_options_are_refused(options, said: str) -> None:
    with pytest.raises(UserError) as caught:
        attune_tuner(make_task(options=options))
    assert said in str(caught.value)


def decisions(world, **changes):
    tuner = AttuneTuner(make_task(**changes))
    log = campaign(tuner, world, runs=20)
    return log, tuner.decisions


def test_every_run_has_a_decision_in_words() -> None:
    log, lines = decisions(FakeWorld(100))
    assert len(lines) == len(log) + 1
    for line, (proposal, answer) in zip(lines, log, strict=False):
        assert re.match(r"\S+ \(\S.* -> .*\): (kept|reverted|to be measured again before it counts), ", line)
        assert line.startswith(f"{answer.label} (")
        assert line.endswith(f"[{proposal.lesson}: {proposal.reason}]")
        assert " -> True" not in line


def test_the_last_decision_says_what_the_finals_begin_with() -> None:
    """By the mean of all timed steps, as the finals rank: the fastest that met no failure."""
    log, lines = decisions(FakeWorld(100))
    times = {}
    for proposal, answer in log:
        if answer.status == "ok":
            times.setdefault(proposal.recipe.digest, []).append((answer.label, 1 / answer.mean_step_time_s))
    first = max(times.values(), key=lambda runs: statistics.fmean(rate for _, rate in runs))[0][0]
    assert lines[-1].startswith(f"{first} goes into the finals first: the fastest measured, +")
    _, nothing = decisions(FakeWorld(100), budget=FakeBudget(left_for_search=0.0))
    assert nothing[-1].startswith("nothing goes into the finals: no run gained more over the baseline than the noise")


def test_who_ran_well_is_suspect_no_longer() -> None:
    """A crash blames what it had that the baseline has not; once a run with that is sound, another is named."""
    tuner = AttuneTuner(make_task())
    campaign(tuner, FakeWorld(100), runs=0)
    both, one = (SPACE.apply(BASELINE, {"moe_permute_fusion": True, **more}) for more in ({"recompute": "moe"}, {}))

    def told(recipe, answer):
        tuner.tell(Proposal(recipe, changed=SPACE.changed(BASELINE, recipe), reason="why"), answer)
        return tuner.decisions[:-1]

    assert "most suspect: moe_permute_fusion on [" in told(both, report("1", "crash"))[-1]
    cleared = told(one, FakeWorld(100).run(one, "2"))[-1]
    assert cleared == "2 ran with moe_permute_fusion on: no longer suspect of crash; most suspect: recompute moe"
    third = SPACE.apply(both, {"mbs": 2})
    assert "most suspect: recompute moe [" in told(third, report("3", "crash"))[-1]


def test_a_recipe_that_moves_the_loss_is_not_kept() -> None:
    """Fused permutation trains another loss here, two in a thousand higher: every run with it is reverted."""

    class Faulty(FakeWorld):
        def run(self, recipe, label):
            answer = super().run(recipe, label)
            factor = 1.002 if SPACE.value(recipe, "moe_permute_fusion") else 1.0
            return answer.model_copy(update={"loss": tuple(factor * (10 - 0.1 * step) for step in range(8))})

    tuner = AttuneTuner(make_task(options={"without": ["stop-when-not-worth-it"]}))
    log = campaign(tuner, Faulty(100), runs=40)
    fused = [proposal for proposal, _ in log if SPACE.value(proposal.recipe, "moe_permute_fusion")]
    assert 1 <= len(fused) <= 3
    assert not SPACE.value(tuner._best.recipe, "moe_permute_fusion")
    assert any("another loss, most suspect: moe_permute_fusion on" in line for line in tuner.decisions)


def test_the_first_move_is_a_lesson_s_and_the_whole_space_is_looked_at_next() -> None:
    log = campaign(AttuneTuner(make_task()), FakeWorld(100), runs=12)
    assert log[0][0].lesson != "L-jump"
    assert "L-jump" in {proposal.lesson for proposal, _ in log[1:]}
