#!/bin/bash
# Pre-training of glm-4.5 on 128 H100 GPUs.
#
# Source: NVIDIA-NeMo/Megatron-Bridge@067f987df03b src/megatron/bridge/recipes/glm/h100/glm45.py
# glm45_355b_pretrain_128gpu_h100_bf16_config
# Ours: Selective recomputation with the default module, no interleaving, all-to-all dispatch, as published.
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

NNODES=${NNODES:-16}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
TOKENIZER=${TOKENIZER:-zai-org/GLM-4.5}
DATA_PATH=${DATA_PATH:-data/corpus_text_document}
CHECKPOINTS=${CHECKPOINTS:-checkpoints/glm-4.5}

MODEL_ARGS=(
    --num-layers 92
    --hidden-size 5120
    --ffn-hidden-size 12288
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
    --qk-layernorm
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
    --num-experts 160
    --moe-layer-freq "([0]*3+[1]*89)"
    --moe-ffn-hidden-size 1536
    --moe-router-topk 8
    --moe-shared-expert-intermediate-size 1536
    --moe-router-score-function sigmoid
    --moe-router-topk-scaling-factor 2.5
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
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 8
    --decoder-first-pipeline-num-layers 10
    --decoder-last-pipeline-num-layers 10
    --context-parallel-size 1
    --expert-model-parallel-size 16
    --expert-tensor-parallel-size 1
    --sequence-parallel
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
