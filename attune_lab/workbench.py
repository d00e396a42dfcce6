"""From two names to everything a campaign needs: the recipe on this cluster, its cost model, the tuners installed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from attune_lab.contracts import Tuner, TuningTask, UserError
from attune_lab.foreign import told

if TYPE_CHECKING:
    from attune_lab.cost_model import SimulatedCostModel
    from attune_lab.recipe import Recipe
    from attune_lab.recipe.carry import Change
    from attune_lab.recipe.files import RecipeFile
    from simulator.hardware import ClusterSpec
    from simulator.posterior import Posterior

TUNER_GROUP, WRAPPER_GROUP = "attune.tuners", "attune.wrappers"
"""Entry-point groups; a third party adds a tuner, or a wrapper of tuners, by publishing a package that names one here.
A wrapper takes a tuner's factory and returns one; ``random+repair`` is the tuner ``random`` in the wrapper ``repair``.
"""

TunerFactory = Callable[[TuningTask], Tuner]


@dataclass(frozen=True)
class Workbench:
    """A recipe made ready for a cluster.

    Attributes:
        file: the file as it came in.
        baseline: the recipe that runs: the file's own, or that recipe carried over.
        carried_over: what was changed to make it start on this cluster, with reasons.
    """

    file: RecipeFile
    baseline: Recipe
    cluster: ClusterSpec
    cost_model: SimulatedCostModel
    carried_over: tuple[Change, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the file: flags that were passed through without being understood."""
        return tuple(_unread(flag) for flag in self.file.recipe.carried if flag.startswith("--"))


def open_workbench(
    recipe: str, cluster: str, *, carry_over: bool | None = None, posterior: Posterior | None = None
) -> Workbench:
    """Load a recipe and make it ready for a cluster.

    Args:
        recipe: a file, or a name from `attune recipes`.
        cluster: e.g. ``64xH200-SXM5-141GB``.
        carry_over: adapt a recipe that cannot start or fit on this many GPUs by minimal rules. None: only
            shipped recipes, which are published for other clusters; a user's own file is taken at its word.
        posterior: constants of the cost model; the project's calibration if None.

    Raises:
        UserError: unknown recipe or cluster; a recipe that cannot start here.
    """
    from attune_lab.cost_model import SimulatedCostModel
    from attune_lab.recipe.carry import carry_over as carried
    from attune_lab.recipe.constraints import errors
    from attune_lab.recipe.files import load
    from simulator.hardware import parse_cluster

    try:
        spec = parse_cluster(cluster)
    except ValueError as error:
        raise UserError(f"--cluster {cluster}: {error}") from error
    file = load(recipe)
    cost_model = _usual_cost_model(spec) if posterior is None else SimulatedCostModel(spec, posterior)
    if carry_over or (carry_over is None and file.folder is None):
        result = carried(file.recipe, spec, cost_model)
        return Workbench(file, result.recipe, spec, cost_model, tuple(result.changes))
    problems = errors(file.recipe, spec)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(
            f"{recipe} cannot start on {spec.name}: {problems[0].message}{more}; "
            "change the recipe, or pass --carry-over to have it adapted by minimal rules"
        )
    return Workbench(file, file.recipe, spec, cost_model, ())


@lru_cache(maxsize=32)
def _usual_cost_model(cluster: ClusterSpec) -> SimulatedCostModel:
    """One for each cluster, which makes a recipe carried over to it one that is known the next time."""
    from attune_lab.cost_model import SimulatedCostModel

    return SimulatedCostModel(cluster)


def _unread(flag: str) -> str:
    from attune_lab.recipe.registry import registry

    known = [spelling.flag for setting in registry().values() for spelling in setting.spellings]
    near = difflib.get_close_matches(flag, known, n=1, cutoff=0.85)
    hint = f"; did you mean {near[0]}?" if near else ", and has no effect on any figure here"
    return f"{flag} is no flag that attune knows; it is carried through unread{hint}"


def tuner_entry_points() -> dict[str, EntryPoint]:
    """Tuners registered by installed packages, by name."""
    return {entry.name: entry for entry in entry_points(group=TUNER_GROUP)}


def wrapper_entry_points() -> dict[str, EntryPoint]:
    """Wrappers of tuners registered by installed packages, by name."""
    return {entry.name: entry for entry in entry_points(group=WRAPPER_GROUP)}


def tuner_factory(name: str) -> TunerFactory:
    """The factory of the tuner called ``name``, in the wrappers named after it: ``random+repair``.

    Raises:
        UserError: no such tuner or wrapper, or its package does not import.
    """
    tuner, *wrappers = name.split("+")
    factory: TunerFactory = _loaded(tuner, tuner_entry_points(), "tuner", name)
    for wrapper in wrappers:
        factory = _loaded(wrapper, wrapper_entry_points(), "wrapper", name)(factory)
    return factory


def _loaded(name: str, known: Mapping[str, EntryPoint], kind: str, asked: str) -> Any:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"--tuner {asked}: no such {kind}; {hint}installed: {', '.join(sorted(known)) or 'none'}")
    try:
        return known[name].load()
    except Exception as error:  # a stranger's package may raise anything
        raise UserError(f"--tuner {asked}: its package does not import ({told(error)}); reinstall it") from error
