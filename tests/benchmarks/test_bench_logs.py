"""The benchmark of logs writes what it says and counts what it read."""

from benchmarks.bench_logs import LOGS, measure, write


def test_logs_have_their_size_and_their_steps(tmp_path):
    for lines in LOGS.values():
        path = tmp_path / "train.log"
        write(path, lines(), 0.05)
        assert 0.05e6 <= path.stat().st_size < 0.06e6
        steps = sum("elapsed time" in line for line in path.read_text().splitlines())
        assert measure(path)["steps_kept"] == steps
