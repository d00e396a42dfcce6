"""What campaigns of other models say of a model's levers, beside what was then measured on that model.

    python -m experiments.lessons_held_out campaigns/lessons.json [--json]

For every timed try the surprise (measured minus expected log gain) is predicted from campaigns of other models in other
simulated worlds alone: what is particular to a world is so for every model. `error` is the root mean square with and
without evidence (without: 0, what the cost model expects); `inside` is the share within the 95 % interval of the
prediction.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attune_lab.contracts import UserError
from attune_lab.lessons.context import Context
from attune_lab.lessons.evidence import Evidence
from attune_lab.report.tables import Table, markdown

_Z = 1.96


@dataclass(frozen=True)
class HeldOut:
    """One model predicted from the others. Errors in log throughput; ``inside`` as a share."""

    model: str
    tries: int
    error_without: float
    error_with: float
    inside: float


def held_out(evidence: Evidence) -> list[HeldOut]:
    """The prediction of every model from the others, those left out that share no lever with them.

    Raises:
        UserError: fewer than two models.
    """
    if len(evidence.models) < 2:
        raise UserError("the file has campaigns of fewer than two models; learn those of another one")
    return [row for model in evidence.models for row in _of_model(evidence, model)]


def _of_model(evidence: Evidence, model: str) -> Iterator[HeldOut]:
    found = []
    for campaign in evidence.campaigns:
        if campaign.model == model:
            others = evidence.without_models([model]).without_worlds([campaign.seed])
            context = Context(model, campaign.traits.model_dump())
            for seen in campaign.observations:
                edits = {key: after for key, (_, after) in seen.edits.items()}
                effect = others.effect(seen.lesson, edits, context)
                if effect is not None and seen.surprise is not None and seen.se is not None:
                    found.append((seen.surprise, effect.surprise, math.hypot(effect.surprise_sd, seen.se)))
    if found:
        measured, predicted, sd = np.array(found).T
        error = measured - predicted
        inside = float((np.abs(error) <= _Z * sd).mean())
        yield HeldOut(model, len(found), _rms(measured), _rms(error), inside)


def _rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(values**2)))


def table(rows: Sequence[HeldOut]) -> Table:
    """One row a model, and all of them."""
    tries = [row.tries for row in rows]
    without, with_ = (
        math.sqrt(np.average(np.square(errors), weights=tries))
        for errors in ([row.error_without for row in rows], [row.error_with for row in rows])
    )
    inside = float(np.average([row.inside for row in rows], weights=tries))
    everything = HeldOut("all", sum(tries), without, with_, inside)
    cells = [
        (r.model, str(r.tries), f"{r.error_without:.4f}", f"{r.error_with:.4f}", f"{r.inside:.1%}")
        for r in (*rows, everything)
    ]
    header = ("model", "tries", "error without", "error with", "inside 95 %")
    return Table("Levers of a model, predicted from other models", header, cells, figures=frozenset(header[1:]))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="experiments.lessons_held_out", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="what attune lessons learn wrote")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    asked = parser.parse_args()
    try:
        rows = held_out(Evidence.load(asked.file))
    except UserError as error:
        parser.error(str(error))
    if asked.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print(markdown("Lessons", "Figures of the file's own provenance.", [table(rows)]), end="")


if __name__ == "__main__":
    main()
