"""A plan is asked lazily, and what is known already is answered without a run."""

from __future__ import annotations

from attune_lab.contracts import Proposal
from baselines.common.history import MAX_FAULTS
from baselines.common.planned import PlannedTuner
from tests.baselines.small_task import ended, small_task


class Listed(PlannedTuner):
    """Plans micro-batch sizes 2, 1, 2, 4, where 1 is the baseline, and notes what it is sent."""

    def plan(self):
        self.sent = []
        for size in (2, 1, 2, 4):
            trial = yield Proposal(self.task.space.apply(self.task.baseline, {"mbs": size}))
            self.sent.append((size, trial.status))
        return "the list is at its end"


def told(tuner, task, size, status, label):
    recipe = task.space.apply(task.baseline, {"mbs": size})
    tuner.tell(Proposal(recipe), ended(label, status))


def asked(tuner):
    proposal = tuner.ask()
    return None if proposal is None else proposal.recipe.get("mbs")


def test_known_outcomes_are_sent_without_asking():
    task = small_task()
    tuner = Listed(task)
    told(tuner, task, 1, "ok", "0")
    assert [asked(tuner), asked(tuner)] == [2, 2]
    told(tuner, task, 2, "oom", "1")
    assert asked(tuner) == 4
    assert tuner.sent == [(2, "oom"), (1, "ok"), (2, "oom")]


def test_what_others_run_in_between_is_taken_up():
    task = small_task()
    tuner = Listed(task)
    told(tuner, task, 1, "ok", "0")
    assert asked(tuner) == 2
    told(tuner, task, 4, "ok", "1")
    told(tuner, task, 2, "ok", "2")
    assert asked(tuner) is None
    assert tuner.stop_reason == "the list is at its end"
    assert asked(tuner) is None


def test_a_fault_of_the_infrastructure_is_tried_again_a_few_times():
    task = small_task()
    tuner = Listed(task)
    for number in range(MAX_FAULTS):
        assert asked(tuner) == 2
        told(tuner, task, 2, "node_failure", str(number))
    assert asked(tuner) == 1
    assert tuner.sent == [(2, "")]
