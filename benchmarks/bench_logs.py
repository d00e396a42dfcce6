"""How fast training logs are read, and in how much memory: a log of steps alone, and one that is mostly other lines.

Memory is measured in a process of its own, above what Python and the reader take before they have read a line.

Example: ``python benchmarks/bench_logs.py --megabytes 100 1000``
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from attune_lab.logs import LogReading, read_log

STEP = (
    " [2026-01-01 00:00:01.123456] iteration {step:8d}/99999999 | consumed samples: {step:12d} | elapsed time per "
    "iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 401.2 | learning rate: 1.500000E-04 | global batch "
    "size:  1024 | lm loss: 2.512345E+00 | loss scale: 1.0 | grad norm: 0.812 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |\n"
)
OTHER = (
    "12: [2026-01-01 00:00:01] INFO some.module: a line of iteration {step} that says nothing of its speed ({line})\n"
)


def steps_alone() -> Iterator[str]:
    """Iteration lines of Megatron-LM."""
    return (STEP.format(step=step) for step in count(1))


def mostly_others() -> Iterator[str]:
    """Thirty lines of other modules to one of a step."""
    for step in count(1):
        yield STEP.format(step=step)
        yield from (OTHER.format(step=step, line=line) for line in range(30))


LOGS: dict[str, Callable[[], Iterator[str]]] = {"steps alone": steps_alone, "mostly other lines": mostly_others}


def write(path: Path, lines: Iterator[str], megabytes: float) -> None:
    """Write so many MB of lines."""
    size = 0
    with path.open("w") as file:
        while size < megabytes * 1e6:
            size += file.write(next(lines))


def measure(path: Path) -> dict[str, float]:
    """Processor seconds, and MiB of memory above what an empty reading takes."""
    LogReading().result()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    log = read_log(path)
    seconds = time.process_time() - start
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "memory_mib": memory, "steps_kept": len(log.steps)}


def apart(path: Path) -> dict[str, float]:
    """`measure` in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--read", str(path)], check=True, capture_output=True, text=True)
    said: dict[str, float] = json.loads(done.stdout)
    return said


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[100])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(measure(options.read)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in LOGS.items():
            for megabytes in options.megabytes:
                path = Path(folder) / "train.log"
                write(path, lines(), megabytes)
                rows.append({"log": name, "megabytes": megabytes, **apart(path)})
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        per_100 = row["seconds"] / row["megabytes"] * 100
        print(f"{row['log']:20} {row['megabytes']:6.0f} MB {per_100:5.1f} s per 100 MB {row['memory_mib']:5.0f} MiB")


if __name__ == "__main__":
    main()
