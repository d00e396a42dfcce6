"""The two tables of a study: one row a campaign, one row a run, as frames while it runs and as Parquet at its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.study.jobs import CampaignJob, OracleJob, campaign_jobs, oracle_jobs, read_record
from attune_lab.study.spec import StudySpec, stored_study
from attune_lab.writing import write_file

_KEY = {"study": "string", "scenario": "string", "tuner": "string", "world": "int64"}

CAMPAIGN_COLUMNS: Mapping[str, str] = {
    **_KEY,
    "recipe": "string", "cluster": "string", "budget": "string", "tuner_name": "string", "options": "string",
    "seed": "int64", "status": "string", "stop_reason": "string", "kept_baseline": "bool", "gain_pct": "double",
    "true_gain_pct": "double", "oracle_gain_pct": "double", "regret_pct": "double", "shipped_faulty": "bool",
    "faults": "string", "best_searched_gain_pct": "double", "best_searched_faulty": "bool", "gate_stops": "int64",
    "gate_stops_right": "int64", "gpu_hours_budget": "double", "gpu_hours_spent": "double",
    "run_cost_gpu_hours": "double", "gpu_hours_to_95": "double", "gpu_hours_failed": "double",
    "share_failed": "double", "runs": "int64", "failed_runs": "int64", "invalid_proposals": "int64",
    "repeats": "int64", "noise_band_pct": "double", "payback_hours": "double", "input_tokens": "double",
    "output_tokens": "double", "usd_llm": "double", "usd_gpu": "double", "wall_s": "double", "tuner_s": "double",
}  # fmt: skip
"""Columns of `Tables.campaigns` and their Arrow types; docs/studies.md says what each holds."""

RUN_COLUMNS: Mapping[str, str] = {
    **_KEY,
    "label": "string", "purpose": "string", "status": "string", "repeated": "bool", "gpu_hours": "double",
    "gpu_hours_before": "double", "tokens_per_s_per_gpu": "double", "gain_pct": "double", "best_gain_pct": "double",
    "changed": "string", "reason": "string", "message": "string",
}  # fmt: skip
"""Columns of `Tables.runs` and their Arrow types."""

CAMPAIGNS_FILE, RUNS_FILE, PROVENANCE_FILE, STUDY_FILE = (
    "campaigns.parquet", "runs.parquet", "provenance.json", "study.json",
)  # fmt: skip
_METADATA_KEY = b"attune.provenance"


@dataclass(frozen=True)
class Tables:
    """What a study has so far.

    Attributes:
        campaigns: one row a campaign that is over, in the order of the study file.
        runs: one row a run of those campaigns, in the order made.
    """

    campaigns: pd.DataFrame
    runs: pd.DataFrame


def read_tables(out: Path) -> Tables:
    """The tables of the study in folder ``out``, finished or not; nothing is changed.

    Raises:
        UserError: no study there.
        EnvironmentFault: a file in it cannot be read.
    """
    path = out / STUDY_FILE
    try:
        spec = stored_study(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{out} holds no study; give the --out folder of attune compare") from error
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"{path} cannot be read ({error}); run attune compare again") from error
    return collect(spec, out.resolve())


def collect(spec: StudySpec, out: Path) -> Tables:
    """The tables of a study from the records in its folder."""
    campaigns, runs = _rows(spec, out)
    return Tables(_frame(_arrow(campaigns, CAMPAIGN_COLUMNS)), _frame(_arrow(runs, RUN_COLUMNS)))


def write_tables(spec: StudySpec, out: Path, provenance: Mapping[str, Any]) -> Tables:
    """Write both tables as Parquet, with their provenance in the schema and beside them, and return them."""
    campaigns, runs = (_arrow(rows, columns) for rows, columns in zip(_rows(spec, out), _COLUMNS, strict=True))
    said = json.dumps(provenance, indent=1).encode()
    for name, table in ((CAMPAIGNS_FILE, campaigns), (RUNS_FILE, runs)):
        buffer = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata({_METADATA_KEY: said}), buffer)
        write_file(out / name, buffer.getvalue().to_pybytes())
    write_file(out / PROVENANCE_FILE, said)
    return Tables(_frame(campaigns), _frame(runs))


def read_parquet(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table of a study from its Parquet file, and its provenance.

    Raises:
        EnvironmentFault: no such file, or none of a study.
    """
    try:
        table = pq.read_table(path)
        provenance = json.loads(table.schema.metadata[_METADATA_KEY])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise EnvironmentFault(f"{path} is no table of a study ({error}); run attune compare again") from error
    return _frame(table), provenance


_COLUMNS = (CAMPAIGN_COLUMNS, RUN_COLUMNS)


def _rows(spec: StudySpec, out: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of campaigns and of runs; truths that are known of a world stand in each of its campaigns."""
    optima = {}
    for optimum in oracle_jobs(spec, out):
        if (record := read_record(optimum)) is not None:
            _refuse_odd(optimum, record["row"], CAMPAIGN_COLUMNS)
            optima[optimum.recipe.name, optimum.cluster, optimum.world] = record["row"]
    campaigns, runs = [], []
    for job in campaign_jobs(spec, out):
        record = read_record(job)
        if record is None:
            continue
        _refuse_odd(job, record["row"], CAMPAIGN_COLUMNS)
        for run in record["runs"]:
            _refuse_odd(job, run, RUN_COLUMNS)
        key = {"study": spec.name, "scenario": job.scenario, "tuner": job.tuner.label, "world": job.world}
        row = {
            **key,
            "recipe": job.recipe.name,
            "cluster": job.cluster,
            "budget": spec.budget,
            "tuner_name": job.tuner.name,
            "options": json.dumps(job.tuner.options),
            "seed": job.world,
            "status": record["status"],
            "stop_reason": record["message"],
            **record["row"],
            **optima.get((job.recipe.name, job.cluster, job.world), {}),
        }
        if "oracle_gain_pct" in row and "true_gain_pct" in row:
            row["regret_pct"] = row["oracle_gain_pct"] - row["true_gain_pct"]
        campaigns.append(row)
        runs += [{**key, **run} for run in record["runs"]]
    return campaigns, runs


def _refuse_odd(job: CampaignJob | OracleJob, figures: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    """Raise `EnvironmentFault` where a figure is not of its column's kind: the record was edited."""
    for name in figures.keys() & columns.keys():
        if figures[name] is not None and not _is_of(columns[name], figures[name]):
            raise EnvironmentFault(
                f"{job.record} was edited ({name} is no {columns[name]}); remove it, and its campaign is read again"
            )


def _is_of(kind: str, value: object) -> bool:
    if kind == "string":
        return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if kind == "bool":
        return isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return whole or (kind == "double" and isinstance(value, float))


def _arrow(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> pa.Table:
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    return pa.Table.from_pylist(list(rows), schema=schema)


def _frame(table: pa.Table) -> pd.DataFrame:
    """As pandas, where what is not known is nan, of truths too: their means are then shares."""
    frame: pd.DataFrame = table.to_pandas()
    for field in table.schema:
        if pa.types.is_boolean(field.type) and table[field.name].null_count:
            frame[field.name] = frame[field.name].astype(float)
    return frame
