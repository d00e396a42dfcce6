"""A small scripted campaign that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attune_lab.campaign import CampaignSpec, parse_budget, run_campaign
from attune_lab.contracts import Proposal
from attune_lab.recipe import Recipe
from attune_lab.testing import FakeCluster, FakeCostModel, FakeGate, FakeSpace, Outcome, ScriptedTuner

BASELINE = Recipe("megatron-lm", {"tp": 4, "mbs": 2, "gbs": 64}, {"NCCL_NVLS_ENABLE": "1"})


def spec_for(budget: str = "40x", **changes: Any) -> CampaignSpec:
    """The spec of a campaign on the fake cluster."""
    return CampaignSpec("small", BASELINE, "8xFAKE-80GB", parse_budget(budget), "scripted", **changes)


def quick_by_tp(recipe: Recipe, steps: int, label: str) -> Outcome:
    """tp=2 is 20 % faster, tp=1 does not fit, tp=8 is slower, everything else is the baseline."""
    tp = recipe.settings["tp"]
    if tp == 1:
        return Outcome("oom", message="CUDA out of memory")
    return Outcome(step_time_s={2: 0.8, 8: 1.3}.get(tp, 1.0))


def campaign(
    out: Path, *, edits: Any = ({"tp": 2}, {"tp": 1}, {"tp": 8}), script: Any = quick_by_tp, **changes: Any
) -> Any:
    """Run a campaign of a `ScriptedTuner`; ``changes`` replace parts by name, ``spec`` among them."""
    parts: dict[str, Any] = {
        "spec": spec_for(),
        "cluster": FakeCluster(script),
        "tuner_factory": lambda task: ScriptedTuner(task.baseline, edits),
        "space": FakeSpace(),
        "cost_model": FakeCostModel(),
        "gate": FakeGate(),
    } | changes
    return run_campaign(parts.pop("spec"), out, **parts)


class Stubborn:
    """A tuner that asks for ``recipe`` for ever."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def ask(self) -> Proposal:
        return Proposal(self.recipe)

    def tell(self, proposal: Proposal, report: Any) -> None:
        pass
