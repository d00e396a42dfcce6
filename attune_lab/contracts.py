"""The contracts between the rooms: what a cluster is, what a tuner is, and what they tell each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from attune_lab.recipe import Recipe
    from attune_lab.space import SearchSpace
    from simulator.hardware import ClusterSpec

Status = Literal["ok", "oom", "invalid", "crash", "hang", "timeout", "diverged", "node_failure", "preempted"]
INFRASTRUCTURE_FAULTS: frozenset[str] = frozenset({"node_failure", "preempted"})
"""Charged to the budget, retried, never held against the recipe."""


class RunReport(BaseModel):
    """What one run of a recipe on a cluster told us. Immutable; JSON in the store.

    Units: seconds, bytes, GPU-hours; ``model_tflops_per_gpu`` counts causal half attention and no recomputation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    label: str
    status: Status
    provenance: Literal["simulated", "measured"]
    steps: int = Field(description="steps asked for")
    warmup_steps: int = 3
    step_times_s: tuple[float, ...] = ()
    tokens_per_step: int = 0
    tokens_per_s_per_gpu: float | None = None
    model_tflops_per_gpu: float | None = None
    mfu: float | None = None
    peak_flops: float | None = Field(default=None, description="the peak MFU refers to, FLOP/s per GPU")
    peak_memory_bytes: tuple[float, ...] = Field(default=(), description="reserved, per pipeline stage")
    memory_capacity_bytes: float | None = None
    breakdown_s: dict[str, float] = {}
    diagnostics: dict[str, float] = {}
    loss: tuple[float, ...] = ()
    grad_norm: tuple[float, ...] = ()
    startup_s: float = 0.0
    gpu_hours: float = 0.0
    versions: dict[str, str] = {}
    message: str = Field(default="", description="the line that explains a failure, as a log would print it")
    log_path: str | None = None

    @property
    def timed_step_times_s(self) -> tuple[float, ...]:
        """Step times after the warm-up."""
        return self.step_times_s[self.warmup_steps :]

    @property
    def mean_step_time_s(self) -> float | None:
        """Mean of the timed steps, None when there are none."""
        timed = self.timed_step_times_s
        return sum(timed) / len(timed) if timed else None


@dataclass(frozen=True)
class Proposal:
    """A recipe a tuner wants to run, with its reasons.

    Attributes:
        recipe: what to run.
        changed: setting -> (value before, value now), against the recipe it was derived from.
        reason: one sentence for a person.
        lesson: id of the catalog's lesson behind it, if any.
        predicted: what the tuner expects (``step_time_s``, ``peak_memory_bytes``), for the record.
        remeasure: run it again, at full price, if it ran before; without it a repeat is answered from the store.
    """

    recipe: Recipe
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    reason: str = ""
    lesson: str | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    remeasure: bool = False


@runtime_checkable
class Cluster(Protocol):
    """Somewhere a recipe can run. ``label`` identifies the run: the same label is the same run, never a second one."""

    @property
    def spec(self) -> ClusterSpec:
        """Accelerator, number of GPUs, links, price."""
        ...

    def startup_bound_s(self, recipe: Recipe) -> float:
        """Seconds that start-up may take at most before the run is ended as ``timeout``."""
        ...

    def run(self, recipe: Recipe, steps: int, *, label: str, step_limit_s: float | None = None) -> RunReport:
        """Run ``steps`` steps and report; never raises for what a recipe did.

        Args:
            recipe: what to run.
            steps: optimizer steps, warm-up included.
            label: identity of the run.
            step_limit_s: the run is ended as ``timeout`` once it has used
                ``startup_bound_s + steps * step_limit_s`` seconds; None for no limit.
        """
        ...


@dataclass(frozen=True)
class Estimate:
    """What the cost model expects of one recipe. ``problems`` is not empty when the recipe cannot start.

    ``stage_memory_bytes`` is the reserved peak per pipeline stage, ``memory_parts_bytes`` what the fullest one holds.
    """

    step_time_s: float
    tokens_per_s_per_gpu: float
    peak_memory_bytes: float
    memory_capacity_bytes: float
    breakdown_s: Mapping[str, float]
    diagnostics: Mapping[str, float]
    problems: tuple[str, ...] = ()
    model_tflops_per_gpu: float = float("nan")
    mfu: float = float("nan")
    peak_flops: float = float("nan")
    stage_memory_bytes: tuple[float, ...] = ()
    memory_parts_bytes: Mapping[str, float] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """The predicted peak is below the accelerator's memory."""
        return not self.problems and self.peak_memory_bytes <= self.memory_capacity_bytes


class CostModel(Protocol):
    """The engineer's estimate, open to every tuner: posterior-mean physics, no noise, no defects."""

    def estimate(self, recipes: Sequence[Recipe]) -> list[Estimate]:
        """Estimates in the order asked; an unlaunchable recipe has ``problems`` and nan figures."""
        ...


class Verdict(Protocol):
    """What the gate says of a candidate."""

    @property
    def verdict(self) -> str:
        """``pass``, ``reject`` or ``inconclusive``; only ``pass`` ships."""
        ...

    @property
    def reasons(self) -> Sequence[str]:
        """One sentence each; never empty unless the verdict is ``pass``."""
        ...


class Gate(Protocol):
    """The correctness check on what a tuner wants to ship."""

    def configuration(self, baseline: Recipe, candidate: Recipe) -> Verdict:
        """The verdict on the effective settings alone; costs no run."""
        ...

    def judge(
        self,
        baseline: Recipe,
        candidate: Recipe,
        *,
        baseline_runs: Sequence[RunReport],
        candidate_run: RunReport,
        twin_runs: Sequence[RunReport],
    ) -> Verdict:
        """The verdict on settings and on paired 20-step runs; the baseline ran at least twice (an A/A pair).

        A candidate's run of fewer steps can be rejected, never passed.
        """
        ...


class BudgetView(Protocol):
    """The budget as a tuner may see it. GPU-hours."""

    @property
    def total(self) -> float:
        """The campaign's budget."""
        ...

    @property
    def left_for_search(self) -> float:
        """What is neither spent nor reserved for the gate."""
        ...

    @property
    def run_cost(self) -> float:
        """What one timing run of the baseline cost."""
        ...


@dataclass(frozen=True)
class Desk:
    """What a tuner that works on the user's own file may use besides; the campaign makes one where there is a file.

    Attributes:
        name: of the file, without folders.
        folder: of the campaign; a tuner keeps its transcript there and its notes (`attune_lab.lessons.notes`).
        gate: the gate itself. It judges what it is shown, and what it says to a tuner binds nobody: the campaign
            asks it again.
        render: the file as it would be shipped for a recipe; raises UserError where the file cannot say it.
        read: the recipe that an edited text of the file stands for; raises UserError with the line. It reads no file
            that the user's own text does not include.
    """

    name: str
    folder: Path
    gate: Gate
    render: Callable[[Recipe], str]
    read: Callable[[str], Recipe]


@dataclass(frozen=True)
class TuningTask:
    """Everything a tuner is given. It holds no cluster, no store and no world.

    Attributes:
        baseline: the recipe to improve.
        cluster: the hardware it runs on.
        space: the declared search space, the same for every tuner.
        cost_model: predictions a tuner may consult for free.
        budget: read-only view of the budget.
        seed: the tuner's own random seed.
        options: tuner-specific options (``policy``, switched-off rules …).
        desk: for tuners that work on the user's file; None where there is none, as in most tests.
    """

    baseline: Recipe
    cluster: ClusterSpec
    space: SearchSpace
    cost_model: CostModel
    budget: BudgetView
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    desk: Desk | None = None


@runtime_checkable
class Tuner(Protocol):
    """Proposes recipes and learns from their reports. Built from a `TuningTask`; deterministic given its seed.

    The campaign first tells the baseline's own runs, then alternates ``ask`` and ``tell``. After a kill the
    same calls are replayed with the stored reports, so a tuner keeps all of its state in memory.

    A tuner may have an attribute ``stop_reason: str``: one sentence, read once ``ask`` has returned None, that says
    why there is nothing to propose. The campaign's result then says ``the tuner stopped: <stop_reason>``.

    One that asks language models has ``usage: Mapping[str, float]`` with ``input_tokens``, ``output_tokens`` and
    ``usd``, read when the search has ended and reported beside the GPU-hours. One that explains itself has
    ``decisions: Sequence[str]``: what was kept, reverted or left out and by which rule, one line each. One that chooses
    what to ship has ``choice: Recipe``: a recipe that ran, which goes into the finals before faster ones, or the
    baseline to keep it. The finals judge a choice like any other trial.
    """

    def ask(self) -> Proposal | None:
        """The next proposal, or None to stop."""
        ...

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """The outcome of a proposal; ``invalid`` ones cost nothing."""
        ...


class UserError(Exception):
    """Bad input. The message is one sentence: where it is wrong and what to do. Exit code 2."""


class EnvironmentFault(Exception):
    """The environment failed (disk, database, cluster). The message says the way out. Exit code 3."""
