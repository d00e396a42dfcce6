"""How long `import attune_lab` and `attune --help` take, beside a bare Python start in the same run.

python benchmarks/bench_startup.py [--json] [--repeat 7]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time

COMMANDS = {
    "bare python": [sys.executable, "-c", "pass"],
    "import attune_lab": [sys.executable, "-c", "import attune_lab"],
    "import attune_lab.contracts": [sys.executable, "-c", "import attune_lab.contracts"],
    "attune --help": [shutil.which("attune") or "attune", "--help"],
}


def best_of(command: list[str], repeat: int) -> float:
    """Seconds of the fastest of ``repeat`` starts."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    seconds = {name: best_of(command, options.repeat) for name, command in COMMANDS.items()}
    bare = seconds["bare python"]
    if options.json:
        print(json.dumps({name: {"seconds": value, "ratio_to_bare": value / bare} for name, value in seconds.items()}))
        return
    for name, value in seconds.items():
        print(f"{name:30s} {value:6.3f} s   {value / bare:5.1f} x bare python")


if __name__ == "__main__":
    main()
