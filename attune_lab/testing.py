"""Contract kits for tuners, clusters and stores, and the scripted parts to test them with.

Subclass a kit in your own tests, provide its fixtures, and pytest runs the contract::

    class TestMyTuner(TunerContract):
        @pytest.fixture
        def factory(self):
            return MyTuner

        @pytest.fixture
        def task(self):
            return ...  # a TuningTask
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from attune_lab.campaign.budget import US_PER_HOUR
from attune_lab.contracts import Cluster, EnvironmentFault, Estimate, Proposal, RunReport, Status, TuningTask, UserError
from attune_lab.recipe import Recipe
from simulator.hardware import Accelerator, ClusterSpec

if TYPE_CHECKING:
    from attune_lab.campaign.spec import CampaignSpec
    from attune_lab.campaign.store import RunRow, Store
    from attune_lab.contracts import Tuner


@dataclass(frozen=True)
class Outcome:
    """What a `FakeCluster` makes of one run.

    Attributes:
        status: ends the run; anything but ``ok`` ends it after ``steps_made`` steps.
        step_time_s: seconds of every step.
        steps_made: steps before a failure.
        gpu_hours: charge reported instead of the true one.
        message: explanation in the report.
    """

    status: Status = "ok"
    step_time_s: float = 1.0
    steps_made: int = 0
    gpu_hours: float | None = None
    message: str = ""


def fake_cluster_spec(n_gpus: int = 8) -> ClusterSpec:
    """A cluster of made-up accelerators at 2 dollars a GPU-hour."""
    chip = Accelerator(
        name="FAKE-80GB", arch_major=9, peak_bf16_flops=1e15, peak_fp8_flops=2e15, peak_fp4_flops=0.0,
        memory_bytes=80e9, memory_bytes_per_s=3e12, sms=132, link_bytes_per_s=4e11, domain_gpus=8,
        nic_bytes_per_s=5e10, host_bytes_per_s=5e10, usd_per_gpu_hour=2.0, source="made up",
    )  # fmt: skip
    return ClusterSpec(chip, n_gpus, 8)


class FakeCluster:
    """A cluster that does what a script says: ``script(recipe, steps, label)`` gives the `Outcome`.

    ``labels`` lists the runs in the order they were started, one entry a start.
    """

    tokens_per_step = 1_000_000

    def __init__(
        self,
        script: Callable[[Recipe, int, str], Outcome],
        *,
        n_gpus: int = 8,
        startup_s: float = 2.0,
        startup_bound_s: float = 4.0,
    ) -> None:
        self._spec = fake_cluster_spec(n_gpus)
        self._script, self._startup_s, self._bound_s = script, startup_s, startup_bound_s
        self.labels: list[str] = []

    @property
    def spec(self) -> ClusterSpec:
        """The made-up cluster."""
        return self._spec

    def startup_bound_s(self, recipe: Recipe) -> float:
        """The same for every recipe."""
        return self._bound_s

    def run(self, recipe: Recipe, steps: int, *, label: str, step_limit_s: float | None = None) -> RunReport:
        """The report the script asks for, cut off at the time limit as any cluster would."""
        self.labels.append(label)
        outcome = self._script(recipe, steps, label)
        made = steps if outcome.status == "ok" else outcome.steps_made
        limit_s = math.inf if step_limit_s is None else self._bound_s + steps * step_limit_s
        in_time = math.floor((limit_s - self._startup_s) / outcome.step_time_s) if limit_s < math.inf else made
        timed_out = in_time < made
        seconds = limit_s if timed_out else self._startup_s + made * outcome.step_time_s
        made, n_gpus = min(made, in_time), self._spec.n_gpus
        done = outcome.status == "ok" and not timed_out
        return RunReport(
            label=label,
            status="timeout" if timed_out else outcome.status,
            provenance="simulated",
            steps=steps,
            step_times_s=(outcome.step_time_s,) * made,
            tokens_per_step=self.tokens_per_step,
            tokens_per_s_per_gpu=self.tokens_per_step / outcome.step_time_s / n_gpus if done else None,
            loss=tuple(10.0 - 0.1 * step for step in range(made)),
            startup_s=self._startup_s,
            gpu_hours=n_gpus * seconds / 3600 if outcome.gpu_hours is None else outcome.gpu_hours,
            message=outcome.message,
        )


class FakeSpace:
    """A search space in which ``problems_of(recipe)`` says what is wrong; by default nothing is."""

    parameters: Mapping[str, Any] = {}

    def __init__(self, problems_of: Callable[[Recipe], Sequence[str]] = lambda _: ()) -> None:
        self.problems = problems_of


class FakeCostModel:
    """A cost model that expects the same step time of every recipe, and that it fits."""

    def __init__(self, step_time_s: float = 1.0, problems: tuple[str, ...] = ()) -> None:
        self._step_time_s, self._problems = step_time_s, problems

    def estimate(self, recipes: Sequence[Recipe]) -> list[Estimate]:
        """One equal estimate a recipe."""
        one = Estimate(self._step_time_s, 1e6 / self._step_time_s, 4e10, 8e10, {}, {}, self._problems)
        return [one for _ in recipes]


@dataclass(frozen=True)
class FakeVerdict:
    """A verdict as scripted."""

    verdict: str
    reasons: tuple[str, ...] = ()


class FakeGate:
    """A gate that passes everything but the recipes for which ``reject(recipe)`` gives a reason."""

    def __init__(self, reject: Callable[[Recipe], str | None] = lambda _: None) -> None:
        self._reject = reject

    def configuration(self, baseline: Recipe, candidate: Recipe) -> FakeVerdict:
        """Passes: settings are not looked at."""
        return FakeVerdict("pass")

    def judge(
        self,
        baseline: Recipe,
        candidate: Recipe,
        *,
        baseline_runs: Sequence[RunReport],
        candidate_run: RunReport,
        twin_runs: Sequence[RunReport],
    ) -> FakeVerdict:
        """The scripted verdict; nothing is seen in a run shorter than the baseline's."""
        if candidate_run.steps < baseline_runs[0].steps:
            return FakeVerdict("inconclusive")
        reason = self._reject(candidate)
        return FakeVerdict("reject", (reason,)) if reason else FakeVerdict("pass")


class ScriptedTuner:
    """Proposes the given settings, one after the other, then stops. ``told`` keeps what it heard."""

    def __init__(self, baseline: Recipe, edits: Sequence[Mapping[str, Any]]) -> None:
        self._baseline, self._edits = baseline, iter(edits)
        self.told: list[tuple[Proposal, RunReport]] = []

    def ask(self) -> Proposal | None:
        """The next edit of the baseline."""
        edit = next(self._edits, None)
        if edit is None:
            return None
        changed = {key: (self._baseline.settings.get(key), value) for key, value in edit.items()}
        return Proposal(self._baseline.with_settings(edit), changed, "as scripted")

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Keep it."""
        self.told.append((proposal, report))


class UniformDraws:
    """Proposes recipes drawn uniformly from the space, each until told, none twice. ``told`` keeps what it heard."""

    name = "uniform"

    def __init__(self, task: TuningTask) -> None:
        self._task, self._rng = task, np.random.default_rng(task.seed)
        self._next, self._known = task.baseline, {task.baseline.digest}
        self.told: list[tuple[Proposal, RunReport]] = []

    def ask(self) -> Proposal | None:
        """A recipe it was not told of; None when 1000 draws gave none."""
        for _ in range(1000):
            if self._next.digest not in self._known:
                changed = self._task.space.changed(self._task.baseline, self._next)
                return Proposal(self._next, changed, "uniform draw")
            self._next = self._task.space.sample(self._rng)
        return None

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Keep it."""
        self._known.add(proposal.recipe.digest)
        self.told.append((proposal, report))


class TunerContract:
    """What every tuner promises. Provide the fixtures ``factory`` (task -> tuner) and ``task``."""

    rounds = 12
    statuses: tuple[Status, ...] = ("ok", "oom", "crash", "node_failure", "timeout", "invalid", "hang", "diverged")

    def _drive(self, factory: Callable[[TuningTask], Tuner], task: TuningTask, *, failing: bool) -> list[Proposal]:
        """Its proposals over `rounds` rounds; reports depend on the recipe alone."""
        tuner = factory(task)
        tuner.tell(Proposal(task.baseline), self._report("000-baseline", task.baseline, "ok"))
        asked = []
        for number in range(self.rounds):
            proposal = tuner.ask()
            if proposal is None:
                break
            asked.append(proposal)
            status = self.statuses[number % len(self.statuses)] if failing else "ok"
            tuner.tell(proposal, self._report(f"{number + 1:03d}-search", proposal.recipe, status))
        return asked

    def _report(self, label: str, recipe: Recipe, status: Status) -> RunReport:
        luck = int(hashlib.sha256(recipe.digest.encode()).hexdigest()[:8], 16) / 2**32
        cluster = FakeCluster(lambda *_: Outcome(status, 1.0 + 0.1 * luck, message=f"scripted {status}"))
        return cluster.run(recipe, 8, label=label)

    @pytest.mark.parametrize("failing", [False, True])
    def test_proposes_other_recipes_of_the_same_stack(
        self, factory: Callable[[TuningTask], Tuner], task: TuningTask, failing: bool
    ) -> None:
        for proposal in self._drive(factory, task, failing=failing):
            assert isinstance(proposal, Proposal)
            assert proposal.recipe.stack == task.baseline.stack

    @pytest.mark.parametrize("failing", [False, True])
    def test_is_deterministic_so_that_a_campaign_can_be_replayed(
        self, factory: Callable[[TuningTask], Tuner], task: TuningTask, failing: bool
    ) -> None:
        first, second = (self._drive(factory, task, failing=failing) for _ in range(2))
        assert [p.recipe.digest for p in first] == [p.recipe.digest for p in second]

    def test_says_what_it_changed(self, factory: Callable[[TuningTask], Tuner], task: TuningTask) -> None:
        for proposal in self._drive(factory, task, failing=False):
            for key, (_, now) in proposal.changed.items():
                assert self._value(task, proposal.recipe, key) == now

    def _value(self, task: TuningTask, recipe: Recipe, key: str) -> Any:
        """The value of a parameter of the space, of a variable or of a setting."""
        if key in task.space.parameters:
            return task.space.value(recipe, key)
        return recipe.environment.get(key[4:]) if key.startswith("env.") else recipe.settings.get(key)


class ClusterContract:
    """What every cluster promises. Provide the fixtures ``cluster`` and ``recipe`` (one that runs there)."""

    steps = 8

    def test_reports_the_run_it_was_asked_for(self, cluster: Cluster, recipe: Recipe) -> None:
        report = cluster.run(recipe, self.steps, label="kit-run")
        assert (report.label, report.status, report.steps) == ("kit-run", "ok", self.steps)
        assert len(report.step_times_s) == self.steps
        assert all(seconds > 0 for seconds in report.step_times_s)

    def test_throughput_is_tokens_over_the_timed_steps(self, cluster: Cluster, recipe: Recipe) -> None:
        report = cluster.run(recipe, self.steps, label="kit-throughput")
        assert report.mean_step_time_s is not None
        expected = report.tokens_per_step / report.mean_step_time_s / cluster.spec.n_gpus
        assert report.tokens_per_s_per_gpu == pytest.approx(expected, rel=1e-6)

    def test_mfu_names_its_peak_and_is_at_most_one(self, cluster: Cluster, recipe: Recipe) -> None:
        report = cluster.run(recipe, self.steps, label="kit-mfu")
        if report.mfu is not None:
            assert report.peak_flops
            assert 0 < report.mfu <= 1

    def test_charges_every_second_from_start_up_on(self, cluster: Cluster, recipe: Recipe) -> None:
        report = cluster.run(recipe, self.steps, label="kit-charge")
        used_s = report.startup_s + sum(report.step_times_s)
        assert report.startup_s <= cluster.startup_bound_s(recipe)
        assert report.gpu_hours * 3600 >= cluster.spec.n_gpus * used_s * (1 - 1e-9)

    def test_the_same_label_is_the_same_run(self, cluster: Cluster, recipe: Recipe) -> None:
        first, again = (cluster.run(recipe, self.steps, label="kit-same") for _ in range(2))
        assert first == again

    @pytest.mark.parametrize("share", [0.5, 1e-3])
    def test_a_run_over_its_limit_times_out_within_its_bound(
        self, cluster: Cluster, recipe: Recipe, share: float
    ) -> None:
        whole = cluster.run(recipe, self.steps, label="kit-whole")
        assert whole.mean_step_time_s is not None
        limit_s = share * whole.mean_step_time_s
        report = cluster.run(recipe, self.steps, label=f"kit-limit-{share}", step_limit_s=limit_s)
        bound_s = cluster.startup_bound_s(recipe) + self.steps * limit_s
        assert report.gpu_hours * 3600 <= cluster.spec.n_gpus * bound_s * (1 + 1e-9)
        needed_s = report.startup_s + self.steps * whole.mean_step_time_s
        assert report.status == "timeout" or needed_s <= bound_s * 1.5

    def test_reports_survive_json(self, cluster: Cluster, recipe: Recipe) -> None:
        report = cluster.run(recipe, self.steps, label="kit-json")
        assert RunReport.model_validate_json(report.model_dump_json()) == report


class StoreContract:
    """What every store promises. Provide the fixtures ``open_store`` (folder, spec -> store) and ``spec``."""

    def _row(self, spec: CampaignSpec, label: str) -> RunRow:
        from attune_lab.campaign.runner import describe
        from attune_lab.campaign.store import RunRow

        return RunRow(label, "search", spec.baseline, describe(Proposal(spec.baseline)), reserved_us=2**40)

    def _report(self, label: str, charged_us: int = 0) -> RunReport:
        return RunReport(
            label=label,
            status="diverged",
            provenance="simulated",
            steps=8,
            gpu_hours=charged_us / US_PER_HOUR,
            loss=(0.1, math.inf, math.nan),
        )

    def test_keeps_a_run_from_start_to_finish(
        self, open_store: Callable[[Path, CampaignSpec], Store], spec: CampaignSpec, tmp_path: Path
    ) -> None:
        row = self._row(spec, "000-search")
        with open_store(tmp_path, spec) as store:
            assert store.run("000-search") is None
            store.start(row)
        with open_store(tmp_path, spec) as store:
            assert store.run("000-search") == row
            store.finish("000-search", self._report("000-search", 2**39), 2**39)
        with open_store(tmp_path, spec) as store:
            (stored,) = store.runs()
            assert stored.charged_us == 2**39
            assert repr(stored.report) == repr(self._report("000-search", 2**39))

    def test_refuses_a_label_twice_and_a_finish_without_start(
        self, open_store: Callable[[Path, CampaignSpec], Store], spec: CampaignSpec, tmp_path: Path
    ) -> None:
        with open_store(tmp_path, spec) as store:
            with pytest.raises(ValueError, match="not started"):
                store.finish("000-search", self._report("000-search"), 0)
            store.start(self._row(spec, "000-search"))
            with pytest.raises(ValueError, match="already"):
                store.start(self._row(spec, "000-search"))
            store.finish("000-search", self._report("000-search"), 0)
            with pytest.raises(ValueError, match="already"):
                store.finish("000-search", self._report("000-search"), 0)

    def test_one_driver_at_a_time(
        self, open_store: Callable[[Path, CampaignSpec], Store], spec: CampaignSpec, tmp_path: Path
    ) -> None:
        with open_store(tmp_path, spec), pytest.raises(EnvironmentFault, match="another attune process"):
            open_store(tmp_path, spec)
        open_store(tmp_path, spec).close()

    def test_refuses_another_campaigns_folder(
        self, open_store: Callable[[Path, CampaignSpec], Store], spec: CampaignSpec, tmp_path: Path
    ) -> None:
        from dataclasses import replace

        other = replace(spec, seed=spec.seed + 1)
        open_store(tmp_path, spec).close()
        with open_store(tmp_path, other) as store:  # nothing ran, nothing is lost
            store.start(self._row(spec, "000-search"))
        with pytest.raises(UserError, match="seed"):
            open_store(tmp_path, spec)

    def test_keeps_events_and_the_result(
        self, open_store: Callable[[Path, CampaignSpec], Store], spec: CampaignSpec, tmp_path: Path
    ) -> None:
        with open_store(tmp_path, spec) as store:
            store.add_event("note", {"a": 1})
            store.finish_campaign('{"b": 2}')
        with open_store(tmp_path, spec) as store:
            record = store.read()
            assert store.event("note") == {"a": 1}
            assert (record.state, record.result) == ("finished", '{"b": 2}')
