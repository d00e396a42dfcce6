"""What was learnt, written for other programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from attune_lab.contracts import UserError
from attune_lab.lessons.evidence import in_models
from attune_lab.lessons.records import Records
from attune_lab.lessons.summary import observation_row
from attune_lab.writing import write_file

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would calculate. **Source:** OWASP, CSV Injection."""


def write_export(file: Path, records: Records, without: Collection[str]) -> Records:
    """The records written to ``file``, in the form its suffix names: ``.csv``, ``.json`` or ``.yaml``.

    Args:
        file: replaced when it exists.
        records: what was learnt, retracted campaigns too.
        without: names or builds of models to leave out.

    Raises:
        UserError: another suffix, or a model that is not there.
        EnvironmentFault: the file cannot be written.
    """
    names = {name for c in records.campaigns for name in (c.model, c.traits.build)}
    for missing in sorted(set(without) - names):
        known = ", ".join(sorted({campaign.model for campaign in records.campaigns})) or "none"
        raise UserError(f"--without {missing}: no campaign of that model is there; there are {known}")
    left_out = in_models(records.campaigns, without)
    kept = Records(campaigns=tuple(c for c in records.campaigns if c.digest not in left_out))
    writers = {".csv": _csv, ".json": _json, ".yaml": _yaml, ".yml": _yaml}
    if file.suffix.lower() not in writers:
        raise UserError(f"{file} ends in none of {', '.join(writers)}; the suffix says what to write")
    write_file(file, writers[file.suffix.lower()](kept).encode())
    return kept


def _json(records: Records) -> str:
    return records.model_dump_json(indent=1)


def _yaml(records: Records) -> str:
    from ruamel.yaml import YAML

    text = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(records.model_dump(mode="json"), text)
    return text.getvalue()


def _csv(records: Records) -> str:
    rows = [observation_row(campaign, seen) for campaign in records.campaigns for seen in campaign.observations]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["campaign"])
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
