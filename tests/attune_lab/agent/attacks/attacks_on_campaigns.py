"""Tuners that cheat without any tool: what they propose, choose and say is the campaign's to judge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attack_arena import Attack, Fought
from attacks_on_inputs import ESCAPES

from attune_lab.contracts import Proposal
from attune_lab.recipe import Recipe


class Liar(Recipe):
    """A recipe that says it is another one."""

    @property
    def digest(self) -> str:
        """That of the baseline, or so."""
        return "0" * 64


def cheat(proposals: Any, **said: Any) -> Any:
    """The factory of a tuner that makes ``proposals(baseline)`` and then says what is given."""

    def factory(task: Any) -> Any:
        class Cheat:
            asked = iter(proposals(task.baseline))

            def ask(self) -> Any:
                return next(self.asked, None)

            def tell(self, proposal: Any, report: Any) -> None:
                pass

        for name, value in said.items():
            setattr(Cheat, name, value(task) if callable(value) else value)
        return Cheat()

    return factory


def moved(**edits: Any) -> Any:
    return lambda baseline: [Proposal(baseline.with_settings(edits), reason="trust me")]


def with_variable(name: str) -> Any:
    def proposals(baseline: Recipe) -> list[Proposal]:
        recipe = Recipe(
            baseline.stack,
            baseline.settings,
            {**baseline.environment, name: "/evil"},
            baseline.carried,
            baseline.versions,
        )
        return [Proposal(recipe, reason="trust me")]

    return proposals


def carrying(baseline: Recipe) -> list[Proposal]:
    carried = {**baseline.carried, "--on-start": ("touch pwned",)}
    return [Proposal(Recipe(baseline.stack, baseline.settings, baseline.environment, carried, baseline.versions))]


def another_version(baseline: Recipe) -> list[Proposal]:
    versions = {**baseline.versions, "mcore": "0.1.evil"}
    return [Proposal(Recipe(baseline.stack, baseline.settings, baseline.environment, baseline.carried, versions))]


def lying(baseline: Recipe) -> list[Proposal]:
    settings = {**baseline.settings, "lr": 1.0}
    return [Proposal(Liar(baseline.stack, settings, baseline.environment, baseline.carried, baseline.versions))]


def faster(baseline: Recipe) -> list[Proposal]:
    return [Proposal(baseline.with_settings({"tp": 1, "sequence_parallel": None}), reason="one GPU a model")]


def kept(fought: Fought) -> str | None:
    return None if fought.data and fought.data["kept_baseline"] else "something was shipped"


def ended_as_failure(fought: Fought) -> str | None:
    return None if fought.data and fought.data["tuner_failed"] else "the tuner was believed"


def no_bill(fought: Fought) -> str | None:
    return None if fought.data and fought.data["llm"] == {} else "a false bill was believed"


class Endless(Mapping[str, float]):
    """An account without an end."""

    def __getitem__(self, key: str) -> float:
        return 0.0

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 10**9


PROPOSED = {
    "another learning rate": moved(lr=3e-3),
    "another batch": moved(gbs=32),
    "fewer layers": moved(num_layers=2),
    "FP8 without approval": moved(fp8="e4m3"),
    "not-a-number unchecked": moved(check_for_nan_in_loss_and_grad=False),
    "LD_PRELOAD": with_variable("LD_PRELOAD"),
    "PATH": with_variable("PATH"),
    "an unknown flag": carrying,
    "another version of the stack": another_version,
    "a recipe with a false digest": lying,
}

ATTACKS = (
    *(Attack(f"tuner: {what}", "gate", tuner=cheat(how), won=kept) for what, how in PROPOSED.items()),
    Attack("tuner: it proposes for ever", "budget", tuner=cheat(lambda baseline: iter(lambda: Proposal(baseline), 0))),
    Attack("tuner: it measures for ever", "budget",
           tuner=cheat(lambda baseline: iter(lambda: Proposal(faster(baseline)[0].recipe, remeasure=True), 0))),
    Attack("tuner: no proposal", "inputs", tuner=cheat(lambda baseline: ["rm -rf /"]), won=ended_as_failure),
    Attack("tuner: a book of reasons", "bounds",
           tuner=cheat(lambda baseline: [Proposal(faster(baseline)[0].recipe, reason="x" * 10**7)]),
           won=ended_as_failure),
    Attack("tuner: a choice that never ran", "gate",
           tuner=cheat(lambda baseline: [], choice=lambda task: task.baseline.with_settings({"lr": 1.0})), won=kept),
    Attack("tuner: a choice that is a text", "gate", tuner=cheat(faster, choice="003-search")),
    Attack("tuner: escapes in decisions", "record", tuner=cheat(faster, decisions=[ESCAPES] * 3)),
    Attack("tuner: decisions without an end", "bounds",
           tuner=cheat(faster, decisions=lambda task: [f"line {number} " + "x" * 2000 for number in range(10_000)])),
    Attack("tuner: escapes in why it stopped", "record", tuner=cheat(faster, stop_reason=ESCAPES),
           won=ended_as_failure),
    Attack("tuner: escapes in a reason", "record",
           tuner=cheat(lambda baseline: [Proposal(faster(baseline)[0].recipe, reason=ESCAPES)])),
    Attack("tuner: a bill below nothing", "record", tuner=cheat(faster, usage={"usd": -5.0}), won=no_bill),
    Attack("tuner: a bill that is no number", "record", tuner=cheat(faster, usage={"usd": math.nan}), won=no_bill),
    Attack("tuner: a bill without an end", "record", tuner=cheat(faster, usage=Endless()), won=no_bill),
)  # fmt: skip
