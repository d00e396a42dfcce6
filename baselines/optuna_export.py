"""Finished or running campaigns of any tuner as studies in an Optuna storage, for optuna-dashboard.

    python -m baselines.optuna_export campaigns/one campaigns/two --out study.db
    optuna-dashboard sqlite:///study.db

One study a campaign, called after its folder; one trial a proposal, repeats left out. The value is the mean step time
in seconds, to be minimised. What did not end well, or could not start, is a failed trial whose attributes say why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.campaign.store import CampaignRecord, RunRow, read_campaign
from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.recipe import Recipe
from attune_lab.recipe.recipe import Value
from attune_lab.space import SearchSpace
from baselines.common.optuna_library import JOURNAL, distributions, open_study, optuna
from simulator.hardware import parse_cluster

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial


def export_campaign(folder: Path, storage: str, name: str | None = None) -> Study:
    """The study made of the campaign in ``folder``.

    Args:
        folder: where `attune tune` put the campaign.
        storage: an Optuna storage URL, or ``journal:PATH``.
        name: of the study; the folder's name if None.

    Raises:
        UserError: no campaign there, or the storage has a study of that name with trials in it.
        EnvironmentFault: the campaign or the storage cannot be used.
    """
    record = read_campaign(folder)
    name = name or folder.resolve().name
    study = open_study(storage, name)
    if study.get_trials(deepcopy=False):
        raise UserError(f"{storage} has a study {name} already; give another --out, or remove that study")
    for key in ("recipe", "cluster", "budget", "tuner", "seed"):
        study.set_user_attr(key, record.spec[key])
    study.add_trials(_trials(record))
    return study


def _trials(record: CampaignRecord) -> list[FrozenTrial]:
    baseline = Recipe.from_canonical(record.spec["baseline"])
    space = SearchSpace(baseline, parse_cluster(record.spec["cluster"]), record.spec["approvals"])
    choices = {key: p.choices for key, p in space.parameters.items() if len(p.choices) > 1}
    return [_trial(row, space, choices) for row in record.runs if row.report is not None and row.repeats is None]


def _trial(row: RunRow, space: SearchSpace, choices: Mapping[str, Sequence[Value]]) -> FrozenTrial:
    assert row.report is not None
    params = _params(row.recipe, space, choices)
    library, step_time_s = optuna(), row.report.mean_step_time_s
    done = row.report.status == "ok" and step_time_s is not None
    trial: FrozenTrial = library.trial.create_trial(
        state=library.trial.TrialState.COMPLETE if done else library.trial.TrialState.FAIL,
        value=step_time_s if done else None,
        params=params,
        distributions=distributions({key: choices[key] for key in params}),
        user_attrs=_attributes(row),
    )
    return trial


def _params(recipe: Recipe, space: SearchSpace, choices: Mapping[str, Sequence[Value]]) -> dict[str, Value]:
    """The values of ``recipe`` that are in the space; none where it is no recipe the stack understands."""
    try:
        values = space.values(recipe)
    except UserError:
        return {}
    return {key: values[key] for key in choices if values[key] in choices[key]}


def _attributes(row: RunRow) -> dict[str, Any]:
    assert row.report is not None
    found = {
        "label": row.label,
        "purpose": row.purpose,
        "status": row.report.status,
        "provenance": row.report.provenance,
        "gpu_hours": row.report.gpu_hours,
        "tokens_per_s_per_gpu": row.report.tokens_per_s_per_gpu,
        "message": row.report.message,
        "reason": row.proposal["reason"],
        "lesson": row.proposal["lesson"],
    }
    return {key: value for key, value in found.items() if value not in (None, "")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the campaigns named on the command line; returns the exit code of `attune`."""
    parser = argparse.ArgumentParser(prog="python -m baselines.optuna_export", description=__doc__.splitlines()[0])
    parser.add_argument("campaigns", nargs="+", type=Path, metavar="CAMPAIGN_DIR")
    parser.add_argument("--out", required=True, help="a SQLite file, an Optuna storage URL, or journal:PATH")
    options = parser.parse_args(arguments)
    plain = "://" not in options.out and not options.out.startswith(JOURNAL)
    storage = f"sqlite:///{options.out}" if plain else options.out
    try:
        for folder in options.campaigns:
            study = export_campaign(folder, storage)
            print(f"{study.study_name}: {len(study.get_trials(deepcopy=False))} trials")
    except (UserError, EnvironmentFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
