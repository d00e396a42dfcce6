"""What the benchmark of the space prints, on one space."""

import json
import sys

from benchmarks import bench_space


def test_figures_of_one_space(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_space", "--json", "--draws", "20", "--recipe", "mixtral-8x22b"])
    bench_space.main()
    rows = json.loads(capsys.readouterr().out)
    assert [row["cluster"] for row in rows] == list(bench_space.CLUSTERS)
    for row in rows:
        assert row["points"] > 1e10
        assert 1000 < row["layouts"] < row["points"]
        assert 0 < row["legal_share"] < 1
        assert min(row["prepare_s"], row["sample_ms"]) > 0
