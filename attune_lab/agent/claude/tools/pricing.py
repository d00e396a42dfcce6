"""Tools that price: the cost model's view of a recipe or of one lever, and what is left of the budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attune_lab.agent.claude.toolbox import Refused, entry, figure, shortened, text

if TYPE_CHECKING:
    from attune_lab.agent.claude.session import Session
    from attune_lab.contracts import Estimate
    from attune_lab.recipe import Recipe

CHOICES = 64
"""Choices of one lever that are priced at most."""


def estimate(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What the cost model expects of the draft or of a run's recipe, beside what was measured of it."""
    recipe = session.recipe(arguments.get("of", "draft"))
    expected = session.estimate(recipe)
    measured = session.journal.history.get(recipe)
    return {
        "of": arguments.get("of", "draft"),
        **_figures(expected),
        "tokens_per_s_per_gpu": figure(expected.tokens_per_s_per_gpu),
        "mfu": figure(expected.mfu),
        "memory_gb_by_stage": [figure(peak / 1e9, 4) for peak in expected.stage_memory_bytes[:64]],
        "fullest_stage_gb": {part: figure(size / 1e9, 4) for part, size in expected.memory_parts_bytes.items()},
        "memory_capacity_gb": figure(expected.memory_capacity_bytes / 1e9, 4),
        "breakdown_s": {part: figure(seconds) for part, seconds in sorted(expected.breakdown_s.items())[:40]},
        "measured_step_time_s": figure(measured.step_time_s) if measured else None,
    }


def what_if(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One parameter at each of its choices on the draft, priced by the cost model."""
    key, space = arguments["parameter"], session.task.space
    if key not in space.parameters:
        raise Refused(f"{shortened(key, 60)} is not in the search space; it has {', '.join(space.parameters)}")
    choices = space.parameters[key].choices
    recipes = [space.apply(session.draft, {key: choice}) for choice in choices[:CHOICES]]
    own = space.value(session.draft, key)
    now = session.estimate(session.draft).step_time_s
    rows = []
    for choice, recipe, expected in zip(choices, recipes, session.task.cost_model.estimate(recipes), strict=False):
        row = {"value": choice, "is_draft": choice == own, **_figures(expected), **_ran(session, recipe)}
        if expected.step_time_s > 0 and now > 0:
            row["expected_gain"] = figure(now / expected.step_time_s - 1, 3)
        problems = session.task.space.problems(recipe)
        rows.append({**row, "problems": [shortened(str(problem), 160) for problem in problems[:2]]})
    return {"parameter": key, "meaning": space.parameters[key].label, "choices": rows}


def budget(session: Session, _: Mapping[str, Any]) -> dict[str, Any]:
    """What is left: GPU-hours of the campaign, tokens and dollars of the conversation."""
    view = session.task.budget
    return {
        "gpu_hours_total": figure(view.total),
        "gpu_hours_left_for_search": figure(view.left_for_search),
        "gpu_hours_of_one_baseline_run": figure(view.run_cost),
        "noise_band": figure(session.journal.band(), 3),
        "conversation_so_far": {name: figure(value) for name, value in session.spent.items()},
    }


def _figures(expected: Estimate) -> dict[str, Any]:
    peak = expected.peak_memory_bytes / 1e9
    return {
        "can_start": not expected.problems,
        "step_time_s": figure(expected.step_time_s),
        "peak_memory_gb": figure(peak, 4),
        "fits": expected.fits,
    }


def _ran(session: Session, recipe: Recipe) -> dict[str, Any]:
    trial = session.journal.history.get(recipe)
    return {"ran": [report.label for report in trial.reports[:3]]} if trial else {}


OF = text("'draft' (when not given), 'baseline', or the label of a run.", 80)

TOOLS = (
    entry(
        estimate,
        "What the cost model expects of a recipe: step time, memory by pipeline stage, where the time goes. Free.",
        None,
        {"of": OF},
    ),
    entry(
        what_if,
        "Price one parameter of the draft at each of its choices with the cost model. Free.",
        {"parameter": text("Key of the parameter.", 80)},
    ),
    entry(budget, "GPU-hours, tokens and dollars spent and left, and the noise band of a run."),
)
