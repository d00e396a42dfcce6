"""The table of arrangements: campaigns with their traces, counted per campaign."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attune_lab.testing import UniformDraws
from baselines.agents.desk import Desk, Draft
from baselines.agents.playing import alone, proposal_of
from baselines.agents.replies import proposal_schema
from baselines.agents.traces import labels
from baselines.common.options import Option
from experiments import arrangements
from experiments.arrangements import Outcome, outcome, table


class Solo(Desk):
    """One engineer, asked once."""

    name = "solo"
    options = {"ablation": Option("none", choices=("none", "no-hat")), "k": Option(3)}  # noqa: RUF012

    def scripts(self):
        return {"engineer": lambda facts: proposal_of(next(alone(facts), None))}

    def inception(self, role):
        return "You are alone."

    def deliberate(self, attempt):
        reply = self.say("engineer", self.situation(attempt), "What next?", proposal_schema(self.card))
        return [Draft(reply["changes"], reply["lever"], reply["reasoning"])]


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    entries = {kind.name: SimpleNamespace(load=lambda kind=kind: kind) for kind in (Solo, UniformDraws)}
    monkeypatch.setattr(arrangements, "tuner_entry_points", lambda: entries)


def test_arrangements_are_the_installed_ones_and_their_variants():
    assert arrangements.arrangements() == {"solo": (Solo, {}), "solo, no-hat": (Solo, {"ablation": "no-hat"})}


def test_a_campaign_with_its_trace():
    found = outcome(Solo, {}, recipe="glm-4.5-air", cluster="32xH100-SXM5-80GB", budget="16x", seed=100)
    assert 3 <= found.runs <= 16
    assert found.tokens > 1000
    assert found.labels.keys() == labels([]).keys()
    assert found.gain_pct >= 0


def test_rows_are_means_per_campaign():
    counted = {**labels([]), "illegal": 3}
    made = table({"one": [Outcome(10.0, 20, 3000, counted), Outcome(20.0, 30, 5000, labels([]))]})
    row = dict(zip(made.header, made.rows[0], strict=True))
    assert (row["gain, %"], row["runs"], row["tokens, thousands"], row["illegal"]) == ("+15.0", "25", "4", "1.5")


def test_the_command_prints_every_arrangement(monkeypatch, capsys):
    monkeypatch.setattr(arrangements, "outcome", lambda *_, **__: Outcome(1.0, 2, 3000, labels([])))
    arrangements.main(["--worlds", "1"])
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in arrangements.arrangements())
