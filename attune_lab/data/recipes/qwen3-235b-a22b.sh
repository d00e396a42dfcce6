#!/bin/bash
# Pre-training of qwen3-235b-a22b on 256 H100 GPUs.
#
# Source: NVIDIA-NeMo/Megatron-Bridge@067f987df03b src/megatron/bridge/perf_recipes/qwen/h100/qwen3_moe.py
# qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config
# Ours: Natural routing in place of the forced balance of the source; classic checkpoints, which the overlapped
# optimizer step needs.
# Model shape: the release's config.json. Learning rate, horizon and warm-up are stand-ins: the source trains for
# throughput only.
#
# stack: mcore=0.16 te=2.12 torch=2.9

set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=8
export NCCL_GRAPH_REGISTER=0
export NCCL_NVLS_ENABLE=0
export NVTE_BWD_LAYERNORM_SM_MARGIN=16
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export TORCH_NCCL_HIGH_PRIORITY=1

NNODES=${NNODES:-32}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
TOKENIZER=${TOKENIZER:-Qwen/Qwen3-235B-A22B}
DATA_PATH=${DATA_PATH:-data/corpus_text_document}
CHECKPOINTS=${CHECKPOINTS:-checkpoints/qwen3-235b-a22b}

MODEL_ARGS=(
    --num-layers 94
    --hidden-size 4096
    --ffn-hidden-size 12288
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 4
    --kv-channels 128
    --max-position-embeddings 4096
    --vocab-size 151936
    --make-vocab-size-divisible-by 128
    --untie-embeddings-and-output-weights
    --normalization RMSNorm
    --norm-epsilon 1e-06
    --qk-layernorm
    --swiglu
    --disable-bias-linear
    --position-embedding-type rope
    --rotary-base 1000000
    --hidden-dropout 0.0
    --attention-dropout 0.0
)

MOE_ARGS=(
    --num-experts 128
    --moe-ffn-hidden-size 1536
    --moe-router-topk 8
    --moe-router-dtype fp32
    --moe-router-load-balancing-type global_aux_loss
    --moe-aux-loss-coeff 0.001
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --moe-permute-fusion
    --moe-router-fusion
    --overlap-moe-expert-parallel-comm
    --delay-wgrad-compute
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 8192
    --seq-length 4096
    --train-iters 500000
    --optimizer adam
    --lr 0.0003
    --min-lr 3e-05
    --lr-decay-style cosine
    --lr-decay-iters 500000
    --lr-warmup-iters 2000
    --adam-beta1 0.9
    --adam-beta2 0.95
    --weight-decay 0.1
    --clip-grad 1.0
)

PRECISION_ARGS=(
    --bf16
    --grad-reduce-in-bf16
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 8
    --num-virtual-stages-per-pipeline-rank 4
    --account-for-embedding-in-pipeline-split
    --account-for-loss-in-pipeline-split
    --context-parallel-size 1
    --expert-model-parallel-size 32
    --expert-tensor-parallel-size 1
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
    --overlap-param-gather-with-optimizer-step
)

KERNEL_ARGS=(
    --transformer-impl transformer_engine
    --attention-backend auto
)

DATA_ARGS=(
    --split 99,1,0
    --num-workers 6
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model $TOKENIZER
    --data-path $DATA_PATH
)

LOGGING_ARGS=(
    --save-interval 1000
    --ckpt-format torch
    --eval-interval 1000
    --eval-iters 32
    --log-interval 1
    --log-throughput
    --save $CHECKPOINTS
    --load $CHECKPOINTS
)

torchrun \
    --nnodes $NNODES \
    --nproc_per_node $GPUS_PER_NODE \
    --rdzv_backend c10d \
    --rdzv_endpoint "${MASTER_ADDR:-localhost}:${MASTER_PORT:-29500}" \
    pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${MOE_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    "${PRECISION_ARGS[@]}" \
    "${PARALLEL_ARGS[@]}" \
    "${KERNEL_ARGS[@]}" \
    "${DATA_ARGS[@]}" \
    "${LOGGING_ARGS[@]}"
