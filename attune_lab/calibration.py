"""Fitting the physics to measurements and reporting what is left: what `attune calibrate` and `validate` do."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attune_lab.contracts import UserError
from attune_lab.predict import read_points
from attune_lab.recipe.text_files import read_bytes
from attune_lab.writing import refuse_unwritable, write_file
from simulator.calibration.fit import fit
from simulator.calibration.measurements import data_hash, load_measurements
from simulator.calibration.observations import Observations, observe, predict_speed
from simulator.physics import PRIORS
from simulator.posterior import POSTERIOR, Posterior

if TYPE_CHECKING:
    from simulator.calibration.validate import Figure

_MAX_BYTES = 50_000_000  # of a report


def workers() -> int:
    """Processes to use: one for each core."""
    return os.cpu_count() or 1


def observations_of(tables: Sequence[Path]) -> Observations:
    """The project's measurements and those in ``tables`` (same schema, docs/measurements.md).

    Raises:
        UserError: a table that cannot be read or has no column of measured speeds.
    """
    rows: list[Mapping[str, str]] = list(load_measurements())
    for path in tables:
        header, cells = read_points(path)
        missing = {"id", "source_id", "tokens_per_s_per_gpu_std"} - set(header)
        if missing:
            raise UserError(f"{path} line 1: missing column {', '.join(sorted(missing))}; see docs/measurements.md")
        rows += [dict(zip(header, row, strict=True)) for row in cells]
    try:
        return observe(rows)
    except ValueError as error:
        raise UserError(str(error)) from error


def calibrate_to(tables: Sequence[Path], out: Path) -> dict[str, Any]:
    """Fit every constant to the measurements and write the calibration to ``out``; returns what was found.

    Raises:
        UserError: see `observations_of`.
        EnvironmentFault: ``out`` cannot be written.
    """
    refuse_unwritable(out)
    observations = observations_of(tables)
    found = fit(observations, start=POSTERIOR, workers=workers())
    fitted = provenance(observations) | {"rows_fitted": int(found.rows.size)}
    posterior = replace(found.posterior, fitted=fitted)
    write_file(out, posterior.to_json().encode())
    deviations = np.sqrt(np.diag(posterior.covariance)).tolist()
    constants = {
        name: {
            "prior": PRIORS[name].value,
            "value": PRIORS[name].moved(shift),
            "sd": PRIORS[name].sd * deviation,
            "what": PRIORS[name].what,
        }
        for name, shift, deviation in zip(posterior.constants, posterior.shifts.tolist(), deviations, strict=True)
    }
    return {"out": str(out), **fitted, "constants": constants, "own": own_runs(observations, posterior)}


def own_runs(observations: Observations, posterior: Posterior) -> dict[str, Any] | None:
    """How the user's runs fit; None without any.

    ``rows``; how many of them have a rate to compare with (``compared``); the median absolute relative error of their
    speed with the project's constants (``before``) and with ``posterior`` (``after``); and why others cannot be
    priced (``refused``, by id).
    """
    mine = np.arange(len(observations.rows)) >= len(load_measurements())
    if not mine.any():
        return None
    batches = [batch for batch in observations.batches if mine[list(batch.rows)].any()]

    def errors(constants: Posterior) -> NDArray[np.float64]:
        off = np.abs(predict_speed(batches, mine.size, constants.physics)[mine] / observations.speed[mine] - 1)
        return off[np.isfinite(off)]

    before, after = errors(POSTERIOR), errors(posterior)
    return {
        "rows": int(mine.sum()),
        "compared": int(before.size),
        "before": float(np.median(before)) if before.size else None,
        "after": float(np.median(after)) if after.size else None,
        "refused": {observations.rows[i]["id"]: why for i, why in sorted(observations.refused.items()) if mine[i]},
    }


def calibrate_kernels(directory: Path, out: Path) -> dict[str, Any]:
    """Fit the constants of single kernels to the tables in ``directory`` and write them to ``out``.

    Raises:
        UserError: a table is missing or has other columns.
        EnvironmentFault: ``out`` cannot be written.
    """
    from simulator.calibration.kernel_tables import fit_kernel_tables
    from simulator.kernel_tables import to_json

    refuse_unwritable(out)
    try:
        tables = fit_kernel_tables(directory)
    except ValueError as error:
        raise UserError(str(error)) from error
    write_file(out, to_json(tables).encode())
    kinds = (tables.gemm, tables.grouped_gemm, tables.attention, tables.collective, tables.dispatch)
    return {"out": str(out), "kernels": sum(len(variants) for kind in kinds for variants in kind.values())}


def validate_to(tables: Sequence[Path], out: Path | None, against: Path | None) -> dict[str, Any]:
    """The accuracy report; written to the folder ``out``, and compared with an earlier one in ``against``.

    ``left_out`` says what of it could not be written; without matplotlib that is the plots.

    Raises:
        UserError: see `observations_of`; or ``against`` is no report.
        EnvironmentFault: ``out`` cannot be written.
    """
    from simulator.calibration.report import as_json, as_markdown, plots, worse
    from simulator.calibration.validate import validate

    earlier = _earlier(against) if against is not None else {}
    if out is not None:
        refuse_unwritable(out / "accuracy.json")
    observations = observations_of(tables)
    validation = validate(observations, fit(observations, start=POSTERIOR, workers=workers()), workers=workers())
    where = provenance(observations)
    data = as_json(validation, where)
    written: list[Path] = []
    left_out = ""
    if out is not None:
        files = {
            "accuracy.json": (json.dumps(data, indent=1) + "\n").encode(),
            "accuracy.md": as_markdown(validation, where).encode(),
        }
        try:
            files |= plots(observations, validation)
        except ImportError:  # minutes of fitting are not lost for want of a picture
            left_out = "the plots; they need matplotlib: pip install 'attune-lab[plots]'"
        for name, content in files.items():
            write_file(out / name, content)
            written.append(out / name)
    return data | {
        "worse": worse(validation.figures, earlier),
        "written": [str(path) for path in written],
        "left_out": left_out,
    }


def _earlier(path: Path) -> dict[str, Figure]:
    from simulator.calibration.report import read_figures

    content = read_bytes(path, "report", _MAX_BYTES)
    try:
        return read_figures(content)
    except ValueError as error:
        message = f"{path} is no accuracy report ({error}); write one with attune validate --out"
        raise UserError(message) from error


def provenance(observations: Observations) -> dict[str, Any]:
    """Which data, where and when."""
    own = len(load_measurements())
    return {
        "data": data_hash(),
        "measurements": own,
        "further_rows": len(observations.rows) - own,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{workers()} cores, {platform.machine()}, Python {platform.python_version()}",
    }
