"""How arrangements of agents go wrong: labels of their traces, tokens and gains, side by side.

    python -m experiments.arrangements [--recipe glm-4.5-air] [--cluster 32xH100-SXM5-80GB] [--budget 40x] [--worlds 6]

Every arrangement tunes the same worlds with its scripted players, OptiCo also in each of its ablations. The labels are
the modes of MAST that a log alone can show (`baselines.agents.traces`). Gains are simulated, tokens estimated.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from attune_lab.contracts import TuningTask
from attune_lab.report.tables import Table, markdown
from attune_lab.tuning import TuneRequest, tune_recipe
from attune_lab.workbench import tuner_entry_points
from baselines.agents.desk import Desk
from baselines.agents.traces import labels

FIRST_SEED = 100
"""Worlds are drawn from here on; the studies of the paper's tables use others."""

VARIED = ("ablation", "protocol")
"""Options of which every choice is a row of its own."""


def arrangements() -> dict[str, tuple[type[Desk], dict[str, str]]]:
    """The installed tuners that are arrangements of agents, with their options: as they are, and varied."""
    found: dict[str, tuple[type[Desk], dict[str, str]]] = {}
    for name, entry in sorted(tuner_entry_points().items()):
        kind = entry.load()
        if not (isinstance(kind, type) and issubclass(kind, Desk)):
            continue
        found[name] = (kind, {})
        for key in VARIED:
            option = kind.options.get(key)
            others = [choice for choice in option.choices if choice != option.default] if option else []
            found |= {f"{name}, {choice}": (kind, {key: choice}) for choice in others}
    return found


@dataclass(frozen=True)
class Outcome:
    """One campaign: gain of what was shipped (percent), runs of the search, tokens, and how often each label."""

    gain_pct: float
    runs: int
    tokens: float
    labels: Mapping[str, int]


def outcome(
    kind: type[Desk], options: Mapping[str, str], *, recipe: str, cluster: str, budget: str, seed: int
) -> Outcome:
    """What one campaign of an arrangement came to."""
    made: list[Desk] = []

    def factory(task: TuningTask) -> Desk:
        made.append(kind(task))
        return made[-1]

    with tempfile.TemporaryDirectory() as folder:
        request = TuneRequest(
            recipe, cluster, budget, kind.name, tuple(options.items()), seed, Path(folder), logs=False
        )
        result = tune_recipe(request, factory=factory)
    tuner = made[-1]  # the one before was set up to try the options
    return Outcome(
        gain_pct=float(result["gain_pct"]),
        runs=sum(step.ran for step in tuner.trace),
        tokens=tuner.usage["input_tokens"] + tuner.usage["output_tokens"],
        labels=labels(tuner.trace),
    )


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> Table:
    """Means per campaign, one row an arrangement."""
    names = sorted({name for each in outcomes.values() for one in each for name in one.labels})
    rows = []
    for arrangement, each in outcomes.items():
        counts = sum((Counter(one.labels) for one in each), Counter[str]())
        figures = [
            f"{fmean(one.gain_pct for one in each):+.1f}",
            f"{fmean(one.runs for one in each):.0f}",
            f"{fmean(one.tokens for one in each) / 1000:.0f}",
            *(f"{counts[name] / len(each):.1f}" for name in names),
        ]
        rows.append([arrangement, *figures])
    header = ["arrangement", "gain, %", "runs", "tokens, thousands", *(name.replace("_", " ") for name in names)]
    note = "Means per campaign. Scripted players: gains are simulated, tokens estimated from the length of the texts."
    return Table("Traces of agents", header, rows, note, frozenset(header[1:]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="glm-4.5-air")
    parser.add_argument("--cluster", default="32xH100-SXM5-80GB")
    parser.add_argument("--budget", default="40x")
    parser.add_argument("--worlds", type=int, default=6)
    asked = parser.parse_args(arguments)
    outcomes = {
        name: [
            outcome(kind, options, recipe=asked.recipe, cluster=asked.cluster, budget=asked.budget, seed=seed)
            for seed in range(FIRST_SEED, FIRST_SEED + asked.worlds)
        ]
        for name, (kind, options) in arrangements().items()
    }
    intro = f"{asked.recipe} on {asked.cluster}, {asked.budget}, {asked.worlds} worlds from seed {FIRST_SEED} on."
    print(markdown("Arrangements of agents", intro, [table(outcomes)]))


if __name__ == "__main__":
    main()
