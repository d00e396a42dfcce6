"""The state that the tools work on: the draft, the runs so far, the notes. All of it follows from what was told."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attune_lab.agent.claude.journal import Journal, Run
from attune_lab.agent.claude.toolbox import Refused, figure, shortened
from attune_lab.agent.claude.workspace import Document, Text, log_of
from attune_lab.agent.decisions import BASELINE
from attune_lab.agent.rules import Rulebook
from attune_lab.contracts import Desk, Estimate, TuningTask
from attune_lab.lessons.catalog import Catalog
from attune_lab.lessons.notes import Note
from attune_lab.recipe import Recipe

if TYPE_CHECKING:
    from attune_lab.lessons.evidence import Experience

NOTES = "notes.md"
MARK = "Written by a model during this campaign: proposals to check, not findings. Nothing here is acted on."


class Session:
    """One campaign as the tools see it.

    Attributes:
        journal: what ran and what was kept.
        draft: the recipe being edited; ``baseline/NAME`` and ``recipe/NAME`` are two texts of one file.
        notes: what the model wrote down; ``author`` is the model.
        launched: whether the answer at hand has launched a run already.
        spent: tokens and dollars so far, for the tool that tells them.
    """

    def __init__(
        self, task: TuningTask, desk: Desk, rules: Rulebook, catalog: Catalog, experience: Experience | None = None
    ) -> None:
        self.task, self.desk, self.rules, self.catalog, self.experience = task, desk, rules, catalog, experience
        self.journal = Journal(task, rules, catalog)
        self.draft = task.baseline
        self.notes: list[Note] = []
        self.author = ""
        self.launched = False
        self.spent: Mapping[str, float] = {}

    @property
    def decisions(self) -> list[str]:
        """One line for each thing decided; the journal's, in which refusals and notes stand too."""
        return self.journal.decisions

    def text(self, recipe: Recipe) -> str:
        """The user's file saying ``recipe``.

        Raises:
            UserError: the file cannot say it.
        """
        return self.desk.render(recipe)

    def documents(self) -> dict[str, Document]:
        """Every document by name, in the order listed."""
        name = self.desk.name
        found: dict[str, Document] = {
            f"recipe/{name}": Text(self.text(self.draft)),
            f"baseline/{name}": Text(self.text(self.task.baseline)),
        }
        for label, run in self.journal.runs.items():
            if log := log_of(run.report.log_path, self.desk.folder):
                found[f"runs/{label}.log"] = log
            found[f"runs/{label}.json"] = Text(facts_text(run))
        lines = (f"- {note.title}: {note.text} (runs {', '.join(note.runs)})" for note in self.notes)
        found[NOTES] = Text("\n".join([MARK, *lines]) + "\n")
        return found

    def document(self, name: str) -> Document:
        """The document called ``name``.

        Raises:
            Refused: there is none of that name.
        """
        found = self.documents().get(name)
        if found is None:
            raise Refused("there is no document of that name; list_files has the names")
        return found

    def run(self, name: str) -> Run:
        """A run by its label, or the baseline's.

        Raises:
            Refused: there is none.
        """
        found = self.journal.run(name)
        if found is None:
            raise Refused(f"there is no such run; the runs are {', '.join((BASELINE, *self.journal.runs))}")
        return found

    def recipe(self, name: str) -> Recipe:
        """The recipe of a run, of ``baseline``, or the ``draft``.

        Raises:
            Refused: there is none.
        """
        return self.draft if name == "draft" else self.run(name).recipe if name != BASELINE else self.task.baseline

    def estimate(self, recipe: Recipe) -> Estimate:
        """What the cost model expects."""
        return self.task.cost_model.estimate([recipe])[0]

    def problems(self, recipe: Recipe) -> list[str]:
        """Why the campaign would not run a recipe: the stack, the search space, the gate's check of settings."""
        found = [str(problem) for problem in self.task.space.problems(recipe)]
        if found:
            return found
        verdict = self.desk.gate.configuration(self.task.baseline, recipe)
        return [f"the gate would reject it: {why}" for why in verdict.reasons if verdict.verdict == "reject"]

    def without_folders(self, sentence: str) -> str:
        """``sentence`` with the file called by its name alone: where it lies is nobody's business."""
        return re.sub(rf"(?:/[^:'\"]*|[^\s:'\"]*)/{re.escape(self.desk.name)}", self.desk.name, sentence)


def facts(run: Run) -> dict[str, Any]:
    """What our own timing and meters say of a run. Seconds, GB, GPU-hours; what a log printed is ``quoted_text``."""
    report = run.report
    timed = report.timed_step_times_s
    found = {
        "run": run.label,
        "status": report.status,
        "provenance": report.provenance,
        "changed": {key: list(pair) for key, pair in run.changed.items()},
        "steps": report.steps,
        "timed_steps": len(timed),
        "mean_step_time_s": figure(report.mean_step_time_s),
        "slowest_timed_step_s": figure(max(timed, default=None)),
        "tokens_per_s_per_gpu": figure(report.tokens_per_s_per_gpu),
        "model_tflops_per_gpu": figure(report.model_tflops_per_gpu),
        "mfu": figure(report.mfu),
        "peak_memory_gb_by_stage": [figure(peak / 1e9, 4) for peak in report.peak_memory_bytes[:64]],
        "memory_capacity_gb": figure((report.memory_capacity_bytes or 0.0) / 1e9, 4),
        "breakdown_s": {part: figure(seconds) for part, seconds in sorted(report.breakdown_s.items())[:40]},
        "loss_last": figure(report.loss[-1] if report.loss else None),
        "grad_norm_first": figure(report.grad_norm[0] if report.grad_norm else None),
        "gpu_hours": figure(report.gpu_hours),
    }
    if report.message:
        found["quoted_text"] = shortened(report.message, 400)
    return found


def facts_text(run: Run) -> str:
    """`facts` as an indented JSON document."""
    return json.dumps(facts(run), indent=1, ensure_ascii=False) + "\n"
