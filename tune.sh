#!/usr/bin/env bash
# The main job: tune GLM-4.5 from its public H100 recipe for 64 H200, on the simulated cluster. No GPU, no key.
# Extra words go to `attune tune`, e.g. ./tune.sh --seed 3 --out my-campaign
set -euo pipefail
cd "$(dirname "$0")"
source scripts/environment.sh
prepare_environment ""
exec .venv/bin/attune tune glm-4.5 --cluster 64xH200-SXM5-141GB --budget 40x "$@"
