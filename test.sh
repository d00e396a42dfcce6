#!/usr/bin/env bash
# All checks: lint, types, one-way imports, tests, and a sample of the fault suite on real training. Extra words go to
# pytest and leave the suite out, e.g. ./test.sh tests/simulator -k memory
set -euo pipefail
cd "$(dirname "$0")"
source scripts/environment.sh
prepare_environment "[dev]"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 # one thread per process: tests run in parallel
.venv/bin/ruff check .
.venv/bin/ruff format --check --quiet .
.venv/bin/mypy
.venv/bin/lint-imports --no-logo
.venv/bin/python -m pytest -n 2 "$@"
if [ $# -eq 0 ]; then
    .venv/bin/python -m experiments.faults --suite ci --cache results/faults-cache --out results/faults-ci
fi
