#!/bin/bash
# A job given to a cluster manager, with the model in a folder beside this one's.
set -ex
FOLDER="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${FOLDER}/../shared_models/tiny.sh"
PERF_ARGS=(
   --tensor-model-parallel-size 1
   --pipeline-model-parallel-size 2
   --use-dynamic-batch-size
)
ENGINE_ARGS=(--engine-sizes 1 2 4 $(seq 8 8 64))
for HOST in $(cat hosts); do
  ssh "$HOST" "start --address=$HOST" &
done
ENVIRONMENT_JSON="{
  \"env_vars\": {
    \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"
  }
}"
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="${ENVIRONMENT_JSON}" \
   -- python3 train.py \
   --colocate \
   ${MODEL_ARGS[@]} ${PERF_ARGS[@]} \
   ${ENGINE_ARGS[@]}
