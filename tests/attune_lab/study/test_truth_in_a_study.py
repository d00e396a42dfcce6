"""What the oracle knows stands in the tables: one optimum a world, and the truth about each campaign."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_study import study_text

from attune_lab.study.jobs import oracle_jobs, read_record
from attune_lab.study.run import run_study
from attune_lab.study.spec import parse_study


def test_optimum_and_regret(tmp_path: Path) -> None:
    spec = parse_study(study_text().replace("oracle: off", "oracle: on"))
    rows = run_study(spec, tmp_path / "out", workers=2).campaigns
    assert (rows.groupby("world")["oracle_gain_pct"].nunique() == 1).all()
    assert rows["regret_pct"].to_numpy() == pytest.approx((rows["oracle_gain_pct"] - rows["true_gain_pct"]).to_numpy())
    assert (rows.loc[rows["shipped_faulty"] == 0, "regret_pct"] >= 0).all()
    assert rows["true_gain_pct"].to_numpy() == pytest.approx(rows["gain_pct"].to_numpy(), abs=3)
    assert rows.loc[rows["kept_baseline"], "true_gain_pct"].eq(0).all()
    assert (rows["gate_stops_right"] <= rows["gate_stops"]).all()
    records = [read_record(job) for job in oracle_jobs(spec, (tmp_path / "out").resolve())]
    assert len(records) == 2
    assert all(record is not None and record["row"]["proven"] for record in records)
