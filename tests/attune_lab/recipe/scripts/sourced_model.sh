#!/bin/bash

# stop what runs before a new try
pkill -9 ray
sleep 3
set -ex

export PYTHONBUFFERED=16

LINKS=$(nvidia-smi topo -m 2>/dev/null | grep -o 'NV[0-9]*' | wc -l)
if [ "$LINKS" -gt 0 ]; then
    HAS_NVLINK=1
else
    HAS_NVLINK=0
fi

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/tiny.sh"

PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel

   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1

   --use-dynamic-batch-size
   --max-tokens-per-gpu 16384
)

for WORKER in $(awk '{print $1}' hosts); do
  ssh root@"${WORKER}" "ray start" &
done
wait

RUNTIME="{\"env_vars\": {\"NCCL_NVLS_ENABLE\": \"${HAS_NVLINK}\"}}"

ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="${RUNTIME}" \
   -- python3 train.py \
   --actor-num-nodes 8 \
   ${MODEL_ARGS[@]} \
   ${PERF_ARGS[@]} \
   --attention-backend flash
