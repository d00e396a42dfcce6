"""How the studies behind the tables are run: whole, or quickly for a look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from attune_lab import workbench
from attune_lab.report.tables import Table
from attune_lab.study.engines import Engine
from attune_lab.study.run import StudyObserver, run_study
from attune_lab.study.spec import StudySpec
from attune_lab.study.tables import Tables
from experiments.reproduce.claims import Claim

QUICK_WORLDS, QUICK_BUDGET = 1, "16x"


@dataclass(frozen=True)
class Section:
    """One of the paper's tables as it came out here: sentences, claims, tables, and pictures by caption (SVG)."""

    title: str
    intro: str
    claims: Sequence[Claim]
    tables: Sequence[Table]
    pictures: Mapping[str, str] = field(default_factory=dict)
    provenance: str = "simulated"


@dataclass(frozen=True)
class Bench:
    """Where and how studies are run.

    Attributes:
        out: folder of everything; studies in it are resumed.
        quick: one world and a small budget: to see that it works, not to quote.
        workers, engine, observer: see `attune_lab.study.run.run_study`.
    """

    out: Path
    quick: bool = False
    workers: int = 1
    engine: Engine = "local"
    observer: StudyObserver | None = None

    def study(self, name: str, **changes: Any) -> Tables:
        """The frames of the study file ``name``, run or read back; ``changes`` replace its keys."""
        label = changes.pop("label", name)
        spec = self.spec(name, **changes)
        return run_study(spec, self.folder(label), workers=self.workers, engine=self.engine, observer=self.observer)

    def folder(self, label: str) -> Path:
        """Where the study under this label is kept."""
        return self.out / ("quick" if self.quick else "studies") / label

    def spec(self, name: str, **changes: Any) -> StudySpec:
        """The study file ``name`` as it is run here."""
        if self.quick:
            changes |= {"worlds": QUICK_WORLDS, "budget": QUICK_BUDGET}
        return shipped_study(name, **changes)


def shipped_study(name: str, **changes: Any) -> StudySpec:
    """The study file ``name`` of this package; ``changes`` replace its keys. Tuners not installed are left out."""
    written = _written(name)
    tuners = [tuner for tuner in written["tuners"] if _installed(tuner)]
    return StudySpec.model_validate({**written, "tuners": tuners, **changes})


def has_tuners(name: str) -> bool:
    """Whether any tuner of the study file ``name`` is installed."""
    return any(_installed(tuner) for tuner in _written(name)["tuners"])


def _written(name: str) -> dict[str, Any]:
    from ruamel.yaml import YAML

    path = files("experiments.reproduce").joinpath(f"studies/{name}.yaml")
    written: dict[str, Any] = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    return written


def _installed(tuner: str | dict[str, Any]) -> bool:
    """Whether a tuner as a study file names it, and every wrapper around it, is installed."""
    name, *wrappers = (tuner if isinstance(tuner, str) else tuner["name"]).split("+")
    known = workbench.wrapper_entry_points()
    return name in workbench.tuner_entry_points() and all(wrapper in known for wrapper in wrappers)
