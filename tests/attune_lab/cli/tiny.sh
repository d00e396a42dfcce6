#!/bin/bash
# A small dense model on one node; an input of the tests.
export CUDA_DEVICE_MAX_CONNECTIONS=1

LAYOUT_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 2
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 4096
    --max-position-embeddings 4096
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --vocab-size 128256
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 64
    --lr 3e-4
    --train-iters 1000
    --bf16
)

torchrun --nproc_per_node 8 pretrain_gpt.py "${LAYOUT_ARGS[@]}" "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}"
