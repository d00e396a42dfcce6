#!/bin/bash
# Pre-training of glm-4.5-air on 32 H100 GPUs.
#
# Source: NVIDIA-NeMo/Megatron-Bridge@067f987df03b src/megatron/bridge/recipes/glm/h100/glm45.py
# glm45_air_106b_pretrain_32gpu_h100_bf16_config
# Ours: First and last stage of 11 layers, as published.
# Model shape: the release's config.json. Learning rate: arXiv 2508.06471 section 2.4 (2.5e-4 to 2.5e-5, cosine);
# Adam as in the source, where the paper trained with Muon; horizon and warm-up are stand-ins.
#
# stack: mcore=0.16 te=2.12 torch=2.9

set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_GRAPH_REGISTER=0
export NCCL_NVLS_ENABLE=0
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export TORCH_NCCL_HIGH_PRIORITY=1

NNODES=${NNODES:-4}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
TOKENIZER=${TOKENIZER:-zai-org/GLM-4.5-Air}
DATA_PATH=${DATA_PATH:-data/corpus_text_document}
CHECKPOINTS=${CHECKPOINTS:-checkpoints/glm-4.5-air}

MODEL_ARGS=(
    --num-layers 46
    --hidden-size 4096
    --ffn-hidden-size 10944
    --num-attention-heads 96
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --max-position-embeddings 4096
    --vocab-size 151552
    --make-vocab-size-divisible-by 128
    --untie-embeddings-and-output-weights
    --normalization RMSNorm
    --norm-epsilon 1e-05
    --swiglu
    --disable-bias-linear
    --add-qkv-bias
    --position-embedding-type rope
    --rotary-base 1000000
    --rotary-percent 0.5
    --mtp-num-layers 1
    --mtp-loss-scaling-factor 0.3
    --hidden-dropout 0.0
    --attention-dropout 0.0
)

MOE_ARGS=(
    --num-experts 128
    --moe-layer-freq "([0]*1+[1]*45)"
    --moe-ffn-hidden-size 1408
    --moe-router-topk 8
    --moe-shared-expert-intermediate-size 1408
    --moe-router-score-function sigmoid
    --moe-router-topk-scaling-factor 1.0
    --moe-router-dtype fp32
    --moe-router-load-balancing-type seq_aux_loss
    --moe-aux-loss-coeff 0.0001
    --moe-router-enable-expert-bias
    --moe-router-bias-update-rate 0.001
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --moe-permute-fusion
    --moe-shared-expert-overlap
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 2048
    --seq-length 4096
    --train-iters 1800000
    --optimizer adam
    --lr 0.00025
    --min-lr 2.5e-05
    --lr-decay-style cosine
    --lr-decay-iters 1800000
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
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 4
    --decoder-first-pipeline-num-layers 11
    --decoder-last-pipeline-num-layers 11
    --context-parallel-size 1
    --expert-model-parallel-size 8
    --expert-tensor-parallel-size 1
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

MEMORY_ARGS=(
    --recompute-granularity selective
)

KERNEL_ARGS=(
    --transformer-impl transformer_engine
    --attention-backend auto
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
    "${MEMORY_ARGS[@]}" \
    "${KERNEL_ARGS[@]}" \
    "${DATA_ARGS[@]}" \
    "${LOGGING_ARGS[@]}"
