"""Every registered tuner has the same GPU-hours in the same world, to the GPU-second, and never spends more."""

from __future__ import annotations

from pathlib import Path

from attune_lab.tuning import TuneRequest, tune_recipe
from attune_lab.workbench import tuner_entry_points

BUDGET_X = 16


def test_every_registered_tuner_has_the_same_budget_and_stays_within_it(tmp_path: Path) -> None:
    names = sorted(tuner_entry_points())
    assert "attune" in names
    ledgers = {}
    for name in names:
        request = TuneRequest(
            "minimax-m2", "64xH200-SXM5-141GB", f"{BUDGET_X}x", name, seed=100, out=tmp_path / name, logs=False
        )
        result = tune_recipe(request)
        assert not result["tuner_failed"], (name, result["stop_reason"])
        ledgers[name] = [_us(result[f"gpu_hours_{what}"]) for what in ("budget", "spent")]
        assert _us(result["run_cost_gpu_hours"]) * BUDGET_X == ledgers[name][0], name
        assert sum(_us(run["gpu_hours"]) for run in result["runs"]) == ledgers[name][1], name
    assert len({budget for budget, _ in ledgers.values()}) == 1
    assert [name for name, (budget, spent) in ledgers.items() if spent > budget] == []


def _us(gpu_hours: float) -> int:
    """GPU-hours as whole GPU-microseconds."""
    return round(gpu_hours * 3_600_000_000)
