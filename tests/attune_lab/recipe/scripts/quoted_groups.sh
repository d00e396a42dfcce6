#!/bin/bash
# Array elements that hold a flag with its value, an array of arrays and a check for a file.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
TOKENIZER=${1:-"MOCK"} # a path, or "MOCK"
TP_SIZE=1
DTYPE="fp8"
SCRIPT="pretrain_gpt.py"

ARGS=(
    --num-layers 8
    --hidden-size 1024
    --tensor-model-parallel-size $TP_SIZE
    --bf16
    --manual-gc 
)
PRECISION=()
if [[ "$DTYPE" == "fp8" ]]; then
    PRECISION+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
    )
fi
OVERLAP=(
    --overlap-grad-reduce
    --use-distributed-optimizer
)
ARGS+=("${OVERLAP[@]}")

DATA=()
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DATA+=(
        "--mock-data"
        "--vocab-size 32000"
    )
else
    DATA+=("--tokenizer-model $TOKENIZER")
fi

if [ ! -f "$SCRIPT" ]; then
    echo "$SCRIPT is missing"
    exit 1
fi

torchrun --nproc_per_node 8 --nnodes 1 \
    "$SCRIPT" \
    ${ARGS[@]} \
    ${PRECISION[@]} \
    ${DATA[@]}

set +x
