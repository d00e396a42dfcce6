"""Optuna's TPE behind the tuner contract."""

from __future__ import annotations

import optuna
import pytest

from attune_lab.contracts import Proposal, Tuner, UserError
from attune_lab.testing import TunerContract
from baselines.optuna_tpe import OptunaTPE
from tests.baselines.small_task import campaign, ended, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return OptunaTPE

    @pytest.fixture
    def task(self):
        return small_task(seed=3)


def test_proposals_are_legal_and_never_repeated():
    task = small_task(seed=1)
    tuner = OptunaTPE(task)
    assert isinstance(tuner, Tuner)
    log = campaign(tuner, task, runs=40)
    digests = {task.baseline.digest, *(proposal.recipe.digest for proposal, _ in log)}
    assert len(digests) == 41
    assert not any(task.space.problems(proposal.recipe) for proposal, _ in log)


def test_it_starts_with_neighbours_then_draws_then_asks_the_sampler():
    task = small_task(seed=1)
    log = campaign(OptunaTPE(task), task, runs=9)
    reasons = [proposal.reason for proposal, _ in log]
    assert all("one lever away" in reason for reason in reasons[:3])
    assert all("uniform draw" in reason for reason in reasons[3:7])
    assert all("TPESampler" in reason for reason in reasons[7:])


def test_it_learns_what_is_fast():
    task = small_task(seed=1)

    def answer(recipe):
        values = task.space.values(recipe)
        return "ok", 1.0 + sum(values[key] != task.space.parameters[key].choices[-1] for key in ("tp", "mbs")), 40e9

    log = campaign(OptunaTPE(task), task, answer, runs=60)
    early, late = (sum(report.step_times_s[0] for _, report in part) for part in (log[:20], log[-20:]))
    assert late < early


def test_what_the_infrastructure_broke_is_proposed_once_more_and_then_left_alone():
    task = small_task(seed=1)
    tuner = OptunaTPE(task)
    tuner.tell(Proposal(task.baseline), ended("000", "ok"))
    digests = []
    for number in range(6):
        proposal = tuner.ask()
        digests.append(proposal.recipe.digest)
        tuner.tell(proposal, ended(f"{number}", "node_failure"))
    assert digests[0::2] == digests[1::2]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startup": 3}, "has no option startup"),
        ({"n_startup_trials": 0}, "at least 1"),
        ({"encoding": "onehot"}, "one of categorical, index"),
        ({"storage": "study.db"}, "no Optuna storage"),
    ],
)
def test_unusable_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        OptunaTPE(small_task(options))


@pytest.mark.parametrize("form", ["sqlite:///{}/study.db", "journal:{}/journal.log"])
def test_trials_are_copied_to_a_storage_and_a_replay_adds_none(form, tmp_path):
    options = {"storage": form.format(tmp_path), "study": "mine"}
    task = small_task(options, seed=1)
    log = campaign(OptunaTPE(task), task, runs=6)
    campaign(OptunaTPE(task), task, runs=9)
    place = options["storage"]
    if place.startswith("journal:"):
        backend = optuna.storages.journal.JournalFileBackend(place.removeprefix("journal:"))
        place = optuna.storages.JournalStorage(backend)
    trials = optuna.load_study(study_name="mine", storage=place).trials
    assert len(trials) == 10
    assert trials[0].user_attrs["label"] == "000"
    for trial, (proposal, report) in zip(trials[1:], log, strict=False):
        assert trial.user_attrs["status"] == report.status
        assert trial.params.items() <= task.space.values(proposal.recipe).items()


def test_a_study_of_another_campaign_is_not_written_to(tmp_path):
    options = {"storage": f"sqlite:///{tmp_path}/study.db", "study": "mine"}
    campaign(OptunaTPE(small_task(options, seed=1)), small_task(seed=1), runs=3)
    with pytest.raises(UserError, match="another campaign"):
        campaign(OptunaTPE(small_task(options, seed=2)), small_task(seed=2), runs=3)
