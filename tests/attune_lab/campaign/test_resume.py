"""A campaign killed at any instant ends like the undisturbed one; a budget is never exceeded."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import BASELINE, campaign, spec_for

from attune_lab.campaign import store as store_module
from attune_lab.campaign.store import read_campaign
from attune_lab.contracts import EnvironmentFault, Proposal, UserError
from attune_lab.testing import FakeCluster, FakeGate, FakeSpace, Outcome, ScriptedTuner

EDITS = ({"tp": 3}, {"tp": 1}, {"tp": 2}, {"tp": 2}, {"tp": 8}, {"gbs": 128}, {"mbs": 4})
SPACE = FakeSpace(lambda recipe: ["tp 3 does not divide 64 heads"] if recipe.settings["tp"] == 3 else [])
GATE = FakeGate(lambda recipe: "Another batch." if recipe.settings["gbs"] == 128 else None)


def eventful(recipe: Any, steps: int, label: str) -> Outcome:
    """Every kind of outcome once: out of memory, a node failure, a winner the gate rejects, one that it passes."""
    if label == "004-search":
        return Outcome("oom", steps_made=1, message="CUDA out of memory")
    if label in ("005-search", "finalist-1"):
        return Outcome("node_failure", steps_made=2)
    if recipe.settings["gbs"] == 128:
        return Outcome(step_time_s=0.7)
    return Outcome(step_time_s=0.8 if recipe.settings["tp"] == 2 else 1.1 - steps / 1000)


def eventful_campaign(out: Path, **changes: Any) -> Any:
    return campaign(out, edits=EDITS, script=eventful, space=SPACE, gate=GATE, **changes)


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


@contextmanager
def killed_at(transaction: int, *, committed: bool) -> Iterator[list[int]]:
    """End the process at the n-th transaction of the store, before or after its commit; yields the count."""
    original, count = store_module.transaction, [0]

    @contextmanager
    def counted(engine: Any, where: str) -> Iterator[Any]:
        count[0] += 1
        with original(engine, where) as connection:
            yield connection
            if count[0] == transaction and not committed:
                raise Killed
        if count[0] == transaction:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "transaction", counted)
        yield count


@pytest.mark.parametrize("committed", [False, True])
def test_killed_at_every_transaction_it_ends_like_the_undisturbed_campaign(tmp_path: Path, committed: bool) -> None:
    with killed_at(0, committed=committed) as count:
        reference = eventful_campaign(tmp_path / "reference")
    assert reference.shipped_label == "finalist-2"
    for transaction in range(1, count[0] + 1):
        out = tmp_path / str(transaction)
        with killed_at(transaction, committed=committed), pytest.raises(Killed):
            eventful_campaign(out)
        assert eventful_campaign(out) == reference


def test_killed_inside_every_run_it_repeats_that_run_alone(tmp_path: Path) -> None:
    whole = FakeCluster(eventful)
    reference = eventful_campaign(tmp_path / "reference", cluster=whole)
    for number, label in enumerate(whole.labels):

        def dying(recipe: Any, steps: int, now: str, last: str = label) -> Outcome:
            if now == last:
                raise Killed
            return eventful(recipe, steps, now)

        out = tmp_path / str(number)
        with pytest.raises(Killed):
            eventful_campaign(out, cluster=FakeCluster(dying))
        rest = FakeCluster(eventful)
        assert eventful_campaign(out, cluster=rest) == reference
        assert rest.labels == whole.labels[number:]


def _drive(out: Path, log: Path) -> None:
    """The eventful campaign at a pace at which it can be killed, with every start of a run in ``log``."""

    def logged(recipe: Any, steps: int, label: str) -> Outcome:
        with log.open("a") as file:
            file.write(label + "\n")
        time.sleep(0.003)
        return eventful(recipe, steps, label)

    eventful_campaign(out, cluster=FakeCluster(logged))


def test_fifty_kill_9_lose_nothing_and_charge_nothing_twice(tmp_path: Path) -> None:
    rng, fork = random.Random(0), multiprocessing.get_context("fork")
    reference = eventful_campaign(tmp_path / "reference")
    kills = campaigns = 0
    while kills < 50:
        campaigns += 1
        out, log = tmp_path / str(campaigns), tmp_path / f"{campaigns}.log"
        finished: set[str] = set()
        log.touch()
        while True:
            seen = len(log.read_text().splitlines())
            driver = fork.Process(target=_drive, args=(out, log))
            driver.start()
            driver.join(timeout=rng.uniform(0, 0.15))
            driver.kill()
            driver.join()
            assert driver.exitcode in (0, -signal.SIGKILL)
            assert not finished & set(log.read_text().splitlines()[seen:]), "a finished run was run again"
            if driver.exitcode == 0:
                break
            kills += 1
            if (out / "campaign.db").exists():
                finished |= _finished(out)
        assert eventful_campaign(out) == reference


def _finished(out: Path) -> set[str]:
    try:
        return {row.label for row in read_campaign(out).runs if row.report is not None}
    except UserError:  # killed before the tables were there
        return set()


def test_a_tuner_that_asks_for_something_else_is_noticed(tmp_path: Path) -> None:
    def dying(recipe: Any, steps: int, label: str) -> Outcome:
        if label == "004-search":
            raise Killed
        return Outcome()

    with pytest.raises(Killed):
        campaign(tmp_path, script=dying, edits=[{"tp": 8}, {"tp": 2}])
    with pytest.raises(EnvironmentFault, match="003-search is stored with another recipe"):
        campaign(tmp_path, edits=[{"tp": 2}, {"tp": 8}])


def test_a_search_that_ended_does_not_begin_again(tmp_path: Path) -> None:
    class Moody(ScriptedTuner):
        broken = True

        def ask(self) -> Proposal | None:
            if self.broken:
                raise ConnectionError("no answer")
            return super().ask()

    def factory(task: Any) -> Moody:
        return Moody(task.baseline, [{"tp": 2}])

    def dying_at_the_end(recipe: Any) -> Path:
        raise Killed

    with pytest.raises(Killed):
        campaign(tmp_path, tuner_factory=factory, ship=dying_at_the_end)
    Moody.broken = False
    result = campaign(tmp_path, tuner_factory=factory)
    assert result.stop_reason.startswith("the tuner failed (ConnectionError: no answer; test_resume.py, line ")
    assert len(result.runs) == 3


def test_an_unreachable_llm_leaves_the_campaign_to_be_resumed(tmp_path: Path) -> None:
    class Remote(ScriptedTuner):
        reachable = False

        def ask(self) -> Proposal | None:
            if not self.reachable:
                raise EnvironmentFault("the API does not answer; run the same command again")
            return super().ask()

    def factory(task: Any) -> Remote:
        return Remote(task.baseline, [{"tp": 2}])

    with pytest.raises(EnvironmentFault, match="does not answer"):
        campaign(tmp_path, tuner_factory=factory)
    Remote.reachable = True
    assert not campaign(tmp_path, tuner_factory=factory).kept_baseline


outcomes = st.builds(
    Outcome,
    status=st.sampled_from(
        ["ok", "ok", "ok", "oom", "crash", "hang", "timeout", "diverged", "node_failure", "preempted"]
    ),
    step_time_s=st.floats(0.01, 30),
    steps_made=st.integers(0, 8),
    gpu_hours=st.none() | st.floats(0, 100),
    message=st.text(max_size=20),
)
edits = st.dictionaries(st.sampled_from(["tp", "gbs"]), st.sampled_from([1, 2, 4, 8, 64]), min_size=1)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["16x", "40x", "0.5", "3h"]),
    st.lists(outcomes, min_size=1, max_size=12),
    st.lists(edits, max_size=15),
    st.lists(outcomes | st.builds(Outcome, step_time_s=st.floats(0.3, 3)), min_size=1, max_size=4),
)
def test_whatever_happens_the_budget_is_not_exceeded_and_every_trial_has_an_end(
    budget: str, script: list[Outcome], asked: list[dict[str, int]], opening: list[Outcome]
) -> None:
    answers, first_answers = itertools.cycle(script), itertools.cycle(opening)

    def scripted(recipe: Any, steps: int, label: str) -> Outcome:
        return next(first_answers if recipe.digest == BASELINE.digest else answers)

    with tempfile.TemporaryDirectory() as folder:
        cluster, result = FakeCluster(scripted), None
        try:
            result = campaign(Path(folder), spec=spec_for(budget), cluster=cluster, edits=asked)
        except (UserError, EnvironmentFault):
            assert all(label.startswith("000-baseline") for label in cluster.labels)
        record = read_campaign(Path(folder))
    assert all(0 <= row.charged_us <= row.reserved_us for row in record.runs)
    if result is None:
        return
    assert result.gpu_hours_spent * 3.6e9 == pytest.approx(sum(row.charged_us for row in record.runs))
    assert result.gpu_hours_spent <= result.gpu_hours_budget
    ended = {loss["label"] for loss in result.lost}
    trials = [run for run in result.runs if run["purpose"] == "search" and not run["repeated"]]
    assert len(ended) + (not result.kept_baseline) == len({run["label"].split("-retry")[0] for run in trials})
    assert result.stop_reason


@pytest.mark.parametrize(
    "data",
    [
        "{}",
        '{"reason": "x"}',
        '{"usage": {}, "reason": 2}',
        '{"usage": {}, "reason": "x", "failed": false, "choice": 2}',
        '{"usage": {}, "reason": "x", "failed": false, "decisions": [1]}',
        '{"usage": {}, "reason": "x", "failed": false, "decisions": 1}',
        "[]",
    ],
)
def test_an_edited_end_of_the_search_is_noticed(tmp_path: Path, data: str) -> None:
    campaign(tmp_path)
    with sqlite3.connect(tmp_path / "campaign.db") as connection:
        connection.execute("UPDATE events SET data = ? WHERE kind = 'search_ended'", (data,))
        connection.execute("UPDATE campaign SET state = 'open', result = NULL")
    connection.close()
    with pytest.raises(EnvironmentFault, match="edited or damaged"):
        campaign(tmp_path)
