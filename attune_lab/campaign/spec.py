"""What fixes a campaign: two campaigns with equal specs are the same campaign."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attune_lab.campaign.rules import USUAL, AnswerRules
from attune_lab.foreign import one_line

if TYPE_CHECKING:
    from attune_lab.campaign.budget import BudgetRequest
    from attune_lab.recipe import Recipe


@dataclass(frozen=True)
class CampaignSpec:
    """One tuner, one recipe, one cluster, one budget, one seed.

    Attributes:
        recipe: the recipe's name or file name, for print.
        baseline: the recipe that runs, carried over to the cluster where that was needed.
        cluster: e.g. ``64xH200-SXM5-141GB``.
        budget: as asked for.
        tuner: its registered name.
        seed: of the tuner (and, on a simulated cluster, of the world).
        options: options of the tuner, JSON-ready (``policy``, switched-off rules …).
        approvals: numerics changes the user accepts.
        carried_over: what was changed to make the recipe start here: mappings with ``key``, ``before``,
            ``after``, ``why``.
        rules: how repeated, invalid and broken runs are answered.
        world: what is unusual about the simulated world, by name; empty for the usual one and for a real cluster.
        gate: whether the gate decides on what is shipped.
    """

    recipe: str
    baseline: Recipe
    cluster: str
    budget: BudgetRequest
    tuner: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    approvals: Sequence[str] = ()
    carried_over: Sequence[Mapping[str, Any]] = ()
    rules: AnswerRules = USUAL
    world: Mapping[str, Any] = field(default_factory=dict)
    gate: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain JSON-ready form, equal for equal specs (tuples become lists); what is as usual is not named."""
        unusual = {"rules": self.rules.to_json(), "world": dict(self.world), "gate": {} if self.gate else "off"}
        plain: dict[str, Any] = json.loads(
            json.dumps(
                {
                    "recipe": self.recipe,
                    "baseline": self.baseline.canonical(),
                    "cluster": self.cluster,
                    "budget": self.budget.text,
                    "tuner": self.tuner,
                    "seed": self.seed,
                    "options": dict(self.options),
                    "approvals": sorted(self.approvals),
                    "carried_over": [dict(change) for change in self.carried_over],
                    **{key: value for key, value in unusual.items() if value},
                }
            )
        )
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> CampaignSpec:
        """The spec of which `to_json` is this form.

        Raises:
            UserError, ValueError, KeyError, TypeError: no such form.
        """
        from attune_lab.campaign.budget import parse_budget
        from attune_lab.recipe import Recipe

        whole = {"world": {}, **plain, "gate": "gate" not in plain}
        whole["baseline"] = Recipe.from_canonical(plain["baseline"])
        whole["budget"] = parse_budget(plain["budget"])
        whole["rules"] = AnswerRules(**plain.get("rules", {}))
        return cls(**whole)


def differences(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Where two specs differ, in words a person can act on; empty when they are equal."""
    found = []
    for key in sorted({*stored, *asked}):
        before, now = stored.get(key), asked.get(key)
        if before == now:
            continue
        if key == "options" and isinstance(before, Mapping) and isinstance(now, Mapping):
            changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
            found += [
                f"option {name} {_shown(before.get(name))} there, {_shown(now.get(name))} asked for" for name in changed
            ]
        elif isinstance(before, Mapping | list) or isinstance(now, Mapping | list):
            found.append(f"different {key.replace('_', ' ')}")
        else:
            found.append(f"{key} {before} there, {now} asked for")
    return found


def _shown(option: Any) -> str:
    """The value of an option; of a file of evidence its name, what it held, and its digest."""
    if isinstance(option, Mapping) and "sha256" in option:
        return f"{option.get('file')} (campaigns: {option.get('campaigns')}, {str(option['sha256'])[:8]})"
    return "none" if option is None else one_line(json.dumps(option), 80)
