#!/usr/bin/env bash
# All checks: lint, types, one-way imports, tests. Extra words go to pytest, e.g. ./test.sh tests/simulator -k memory
set -euo pipefail
cd "$(dirname "$0")"
source scripts/environment.sh
prepare_environment "[dev]"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 # one thread per process: tests run in parallel
.venv/bin/ruff check .
.venv/bin/ruff format --check --quiet .
.venv/bin/mypy
.venv/bin/lint-imports --no-logo
exec .venv/bin/python -m pytest -n 2 "$@"
