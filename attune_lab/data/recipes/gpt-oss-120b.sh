#!/bin/bash
# Pre-training of gpt-oss-120b on 64 H100 GPUs.
#
# Source: NVIDIA-NeMo/Megatron-Bridge@067f987df03b src/megatron/bridge/recipes/gpt_oss/h100/gpt_oss.py
# gpt_oss_120b_pretrain_64gpu_h100_bf16_config
# Ours: No recomputation, no interleaving, as published.
# Model shape: the release's config.json. Learning rate, horizon and warm-up are stand-ins: the source trains for
# throughput only.
#
# stack: mcore=0.16 te=2.12 torch=2.9

set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_GRAPH_REGISTER=0
export NCCL_NVLS_ENABLE=0
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export TORCH_NCCL_HIGH_PRIORITY=1

NNODES=${NNODES:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
TOKENIZER=${TOKENIZER:-openai/gpt-oss-120b}
DATA_PATH=${DATA_PATH:-data/corpus_text_document}
CHECKPOINTS=${CHECKPOINTS:-checkpoints/gpt-oss-120b}

MODEL_ARGS=(
    --num-layers 36
    --hidden-size 2880
    --ffn-hidden-size 2880
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --kv-channels 64
    --max-position-embeddings 4096
    --vocab-size 201088
    --make-vocab-size-divisible-by 128
    --untie-embeddings-and-output-weights
    --normalization RMSNorm
    --norm-epsilon 1e-05
    --quick-geglu
    --activation-func-clamp-value 7.0
    --glu-linear-offset 1.0
    --position-embedding-type yarn
    --rotary-base 150000
    --rotary-scaling-factor 32.0
    --window-size 128,0
    --window-attn-skip-freq 2
    --softmax-type learnable
    --hidden-dropout 0.0
    --attention-dropout 0.0
)

MOE_ARGS=(
    --num-experts 128
    --moe-ffn-hidden-size 2880
    --moe-router-topk 4
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 0.001
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --moe-permute-fusion
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 512
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
    --accumulate-allreduce-grads-in-fp32
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 4
    --context-parallel-size 1
    --expert-model-parallel-size 16
    --expert-tensor-parallel-size 1
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

KERNEL_ARGS=(
    --transformer-impl transformer_engine
    --attention-backend fused
    --manual-gc
    --manual-gc-interval 100
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
    --ckpt-format torch_dist
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
