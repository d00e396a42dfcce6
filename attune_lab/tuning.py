"""One `attune tune`, from request to result. Reading this file names every part in the order it is used."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.campaign import CampaignSpec, Observer, parse_budget, run_campaign
from attune_lab.campaign.budget import Budget, TunerBudget
from attune_lab.campaign.claims import LOGS, discrepancies
from attune_lab.campaign.result import in_the_finals
from attune_lab.campaign.rules import USUAL, AnswerRules
from attune_lab.contracts import Cluster, Desk, EnvironmentFault, Gate, Tuner, TuningTask, UserError
from attune_lab.foreign import told_with_place
from attune_lab.workbench import TunerFactory, Workbench, open_workbench, tuner_factory
from attune_lab.writing import write_file

if TYPE_CHECKING:
    from attune_lab.cluster.simulated import SimulatedCluster
    from attune_lab.recipe import Recipe
    from attune_lab.space import SearchSpace


DECISIONS = "decisions.txt"
"""File of a campaign's folder: what its tuner kept, reverted or left out and why, and what came of it in the finals."""


@dataclass(frozen=True)
class TuneRequest:
    """What a user asks of `attune tune`.

    Attributes:
        recipe: a file, or a name from `attune recipes`.
        cluster: e.g. ``64xH200-SXM5-141GB``.
        budget: ``40x`` or GPU-hours.
        tuner: a name from `attune tuners`.
        options: options of the tuner (``policy``, ``without``).
        seed: of the simulated world and of the tuner.
        out: campaign folder; None derives one from the rest, so that the same command finds it again.
        carry_over: see `attune_lab.workbench.open_workbench`.
        approvals: numerics changes the user accepts.
        rules: how repeated, invalid and broken runs are answered.
        conditions: what is unusual about the simulated world, by name (`simulator.world.Conditions`).
        gate: False ships the fastest recipe unjudged, for studies of what the gate is worth.
        logs: whether runs leave a log file.
    """

    recipe: str
    cluster: str
    budget: str
    tuner: str = "attune"
    options: tuple[tuple[str, Any], ...] = ()
    seed: int = 0
    out: Path | None = None
    carry_over: bool | None = None
    approvals: tuple[str, ...] = ()
    rules: AnswerRules = USUAL
    conditions: tuple[tuple[str, float], ...] = ()
    gate: bool = True
    logs: bool = True


def tune_recipe(
    request: TuneRequest, observer: Observer | None = None, factory: TunerFactory | None = None
) -> dict[str, Any]:
    """The result of the campaign as the JSON object of `attune tune`; begun, resumed or read back.

    Args:
        request: what is asked for.
        observer: told what happens, for display.
        factory: of the tuner; None for the one registered under the request's name.

    Raises:
        UserError: anything in the request that cannot be used.
        EnvironmentFault: disk, database or another process in the way.
    """
    from attune_lab.origin import evidence_of, origin_of, outgrown

    budget = parse_budget(request.budget)
    factory = factory or tuner_factory(request.tuner)
    bench = open_workbench(request.recipe, request.cluster, carry_over=request.carry_over)
    out = request.out or default_folder(request)
    evidence = evidence_of(out, request.tuner, dict(request.options))
    spec = _spec(request, budget, bench, evidence)
    if evidence is not None:
        factory = with_options(factory, {**spec.options, "lessons": evidence})
    cluster = _cluster(request, bench, out / LOGS if request.logs else None)
    origin = origin_of(bench.file, spec.tuner, evidence)
    data = conduct(spec, bench, out, cluster=cluster, factory=factory, origin=origin, observer=observer)
    return {**data, "warnings": [*data["warnings"], *outgrown(evidence)]}


def with_options(factory: TunerFactory, options: Mapping[str, Any]) -> TunerFactory:
    """A factory whose tuners are given other options than a campaign's spec names."""
    return lambda task: factory(replace(task, options=options))


def conduct(
    spec: CampaignSpec,
    bench: Workbench,
    out: Path,
    *,
    cluster: Cluster,
    factory: TunerFactory,
    origin: Mapping[str, Any],
    observer: Observer | None = None,
) -> dict[str, Any]:
    """The result of a campaign whose parts are at hand, with the files it leaves in ``out``.

    Args:
        spec, bench, cluster, factory: what is tuned, where, and by whom.
        out: the campaign's folder.
        origin: see `attune_lab.origin.origin_of`.
        observer: told what happens, for display.

    Raises:
        UserError, EnvironmentFault: see `tune_recipe`.
    """
    from attune_lab.llm.opening import trying

    space, gate = _space_and_gate(spec, bench)
    desk = _desk(bench, gate, out)
    _render(bench, bench.baseline)  # a file that cannot say even this is refused before anything is spent
    with trying():  # a key or an address that is wrong too
        _try_tuner(factory, _trial_task(spec, bench, space, desk))
    result = run_campaign(
        spec,
        out,
        cluster=cluster,
        tuner_factory=factory,
        space=space,
        cost_model=bench.cost_model,
        gate=gate,
        observer=observer,
        ship=lambda recipe: _ship(bench, recipe, out),
        render=None if bench.file.folder is None else desk.render,  # files of ours can say everything
        desk=desk,
        origin=origin,
    )
    shipped = _render(bench, result.shipped_recipe)
    path = _shipped_path(bench, out)  # where the folder is now; it may have been moved since
    if not path.exists():  # removed since
        _ship(bench, result.shipped_recipe, out)
    warnings = [*bench.warnings, *discrepancies(out)]
    here = {"out": str(out), "shipped_path": str(path)}
    data = {**result.to_json(), **here, "warnings": warnings, "diff": _diff(bench, shipped)}
    write_file(out / "result.json", json.dumps(data, indent=1).encode())
    if result.decisions:
        lines = (*result.decisions, *in_the_finals(result))
        write_file(out / DECISIONS, "".join(f"{line}\n" for line in lines).encode())
    return data


def refuse_hopeless(request: TuneRequest) -> None:
    """Raise what `tune_recipe` would raise of the recipe, the cluster or the budget, before it runs anything.

    Raises:
        UserError: the recipe cannot start there, or the budget does not cover what every campaign needs.
    """
    from attune_lab.campaign.baseline import opening_budget

    bench = open_workbench(request.recipe, request.cluster, carry_over=request.carry_over)
    opening_budget(parse_budget(request.budget), bench.baseline, bench.cost_model, _cluster(request, bench, None))


def refuse_unusable_tuner(request: TuneRequest) -> None:
    """Raise what `tune_recipe` would raise of the tuner and its options, before it runs anything or asks a service.

    Raises:
        UserError: the tuner cannot be set up so.
        EnvironmentFault: what it needs cannot be read.
    """
    bench = open_workbench(request.recipe, request.cluster, carry_over=request.carry_over)
    spec, out = _spec(request, parse_budget(request.budget), bench), request.out or default_folder(request)
    space, gate = _space_and_gate(spec, bench)
    _try_tuner(tuner_factory(request.tuner), _trial_task(spec, bench, space, _desk(bench, gate, out)))


def end_search_of(request: TuneRequest, reason: str) -> None:
    """End the search of a campaign whose tuner is no more; the next `tune_recipe` goes on with its finals.

    Raises:
        UserError, EnvironmentFault: see `tune_recipe`.
    """
    from attune_lab.campaign.search import end_search
    from attune_lab.campaign.store import open_store
    from attune_lab.origin import evidence_of

    bench = open_workbench(request.recipe, request.cluster, carry_over=request.carry_over)
    out = request.out or default_folder(request)
    spec = _spec(request, parse_budget(request.budget), bench, evidence_of(out, request.tuner, dict(request.options)))
    with open_store(out, spec) as store:
        end_search(store, reason)


def default_folder(request: TuneRequest) -> Path:
    """``campaigns/RECIPE-CLUSTER-BUDGET-TUNER-seedN``, with anything unusual in a name replaced.

    The cluster goes by its full name, however it was written. A policy other than the usual one follows the tuner's
    name: campaigns of two policies lie side by side.
    """
    from simulator.hardware import parse_cluster

    policy = dict(request.options).get("policy", "catalog")
    words = (
        re.sub(r"\.(sh|ya?ml)$", "", Path(request.recipe).name),
        parse_cluster(request.cluster).name,
        request.budget,
        request.tuner if policy == "catalog" else f"{request.tuner}-{policy}",
        f"seed{request.seed}",
    )
    return Path("campaigns") / "-".join(re.sub(r"[^A-Za-z0-9._@-]+", "_", word) for word in words)


def _cluster(request: TuneRequest, bench: Workbench, log_dir: Path | None) -> SimulatedCluster:
    """The world the request's seed stands for."""
    from attune_lab.cluster.simulated import SimulatedCluster, world_seed
    from simulator.world import Conditions

    conditions = Conditions(**dict(request.conditions))
    return SimulatedCluster(bench.cluster, world_seed(request.seed), conditions=conditions, log_dir=log_dir)


def _spec(
    request: TuneRequest, budget: Any, bench: Workbench, evidence: Mapping[str, Any] | None = None
) -> CampaignSpec:
    from attune_lab.lessons.evidence import KEPT

    pin = {} if evidence is None else {"lessons": {key: evidence[key] for key in evidence if key != KEPT}}
    return CampaignSpec(
        recipe=request.recipe,
        baseline=bench.baseline,
        cluster=bench.cluster.name,
        budget=budget,
        tuner=request.tuner,
        seed=request.seed,
        options={**dict(request.options), **pin},
        approvals=request.approvals,
        carried_over=[asdict(change) for change in bench.carried_over],
        rules=request.rules,
        world=dict(request.conditions),
        gate=request.gate,
    )


def _space_and_gate(spec: CampaignSpec, bench: Workbench) -> tuple[SearchSpace, Gate]:
    from attune_lab.gate import CampaignGate, OpenGate
    from attune_lab.space import search_space

    space = search_space(bench.baseline, bench.cluster, tuple(spec.approvals))
    return space, (CampaignGate if spec.gate else OpenGate)(bench.cluster, approvals=tuple(spec.approvals))


def _try_tuner(factory: Callable[[TuningTask], Tuner], task: TuningTask) -> None:
    """Set the tuner up once for nothing: options that it cannot use are refused before anything is spent."""
    try:
        tuner = factory(task)
        if not (callable(tuner.ask) and callable(tuner.tell)):
            raise TypeError("ask and tell must be methods")
    except (UserError, EnvironmentFault):
        raise
    except Exception as error:
        raise UserError(
            f"the tuner cannot be set up ({told_with_place(error)}); check its options or take another --tuner"
        ) from error


def _trial_task(spec: CampaignSpec, bench: Workbench, space: SearchSpace, desk: Desk) -> TuningTask:
    """What the tuner will be given, with an empty budget."""
    empty = TunerBudget(Budget(0), 0.0)
    return TuningTask(bench.baseline, bench.cluster, space, bench.cost_model, empty, spec.seed, spec.options, desk)


def _desk(bench: Workbench, gate: Gate, out: Path) -> Desk:
    """What a tuner that works on the user's file may use."""
    return Desk(
        name=_file_name(bench),
        folder=out,
        gate=gate,
        render=lambda recipe: _render(bench, recipe).decode(),
        read=lambda text: bench.file.reread(text).recipe,
    )


def _ship(bench: Workbench, recipe: Recipe, out: Path) -> Path:
    path = _shipped_path(bench, out)
    write_file(path, _render(bench, recipe))
    return path


def _shipped_path(bench: Workbench, out: Path) -> Path:
    return out / "shipped" / _file_name(bench)


def _render(bench: Workbench, recipe: Recipe) -> bytes:
    """The file for this recipe on this cluster: its launch line asks for the cluster's nodes."""
    spec = bench.cluster
    return bench.file.render(recipe, launcher={"nnodes": spec.nodes, "nproc_per_node": spec.gpus_per_node})


def _file_name(bench: Workbench) -> str:
    """The name of the user's file; of a shipped recipe its name with the suffix of its form."""
    return f"{bench.file.name}{bench.file.suffix}" if bench.file.folder is None else Path(bench.file.name).name


def _diff(bench: Workbench, shipped: bytes) -> str:
    """Unified diff of the shipped file against the one that came in; empty when they are equal."""
    name = _file_name(bench)
    before, after = (text.decode().splitlines() for text in (bench.file.data, shipped))
    return "\n".join(difflib.unified_diff(before, after, f"as it came in/{name}", f"shipped/{name}", n=1, lineterm=""))
