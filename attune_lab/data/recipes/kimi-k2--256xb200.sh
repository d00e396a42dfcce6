#!/bin/bash
# Pre-training of kimi-k2 on 256 B200 GPUs.
#
# Source: NVIDIA-NeMo/Megatron-Bridge@067f987df03b src/megatron/bridge/perf_recipes/kimi/b200/kimi_k2.py
# kimi_k2_pretrain_256gpu_b200_bf16_config
# Ours: Natural routing in place of the forced balance of the source.
# Model shape: the release's config.json. Learning rate: arXiv 2507.20534 section 2.5 (2e-4 constant, then cosine
# to 2e-5, 500 warm-up steps, weight decay 0.1); the horizon is 15.5T tokens.
#
# stack: mcore=0.16 te=2.12 torch=2.9

set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=32
export NCCL_GRAPH_REGISTER=0
export NCCL_NVLS_ENABLE=0
export NVTE_BWD_LAYERNORM_SM_MARGIN=20
export NVTE_FWD_LAYERNORM_SM_MARGIN=20
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export TORCH_NCCL_HIGH_PRIORITY=1

NNODES=${NNODES:-32}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
TOKENIZER=${TOKENIZER:-moonshotai/Kimi-K2-Base}
DATA_PATH=${DATA_PATH:-data/corpus_text_document}
CHECKPOINTS=${CHECKPOINTS:-checkpoints/kimi-k2}

MODEL_ARGS=(
    --num-layers 61
    --hidden-size 7168
    --ffn-hidden-size 18432
    --num-attention-heads 64
    --max-position-embeddings 4096
    --vocab-size 163840
    --make-vocab-size-divisible-by 128
    --untie-embeddings-and-output-weights
    --normalization RMSNorm
    --norm-epsilon 1e-06
    --qk-layernorm
    --swiglu
    --disable-bias-linear
    --position-embedding-type rope
    --rotary-base 50000
    --rope-type yarn
    --rotary-scaling-factor 32.0
    --mscale 1.0
    --mscale-all-dim 1.0
    --multi-latent-attention
    --q-lora-rank 1536
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
    --hidden-dropout 0.0
    --attention-dropout 0.0
)

MOE_ARGS=(
    --num-experts 384
    --moe-layer-freq "([0]*1+[1]*60)"
    --moe-ffn-hidden-size 2048
    --moe-router-topk 8
    --moe-shared-expert-intermediate-size 2048
    --moe-router-score-function sigmoid
    --moe-router-topk-scaling-factor 2.827
    --moe-router-dtype fp32
    --moe-router-load-balancing-type seq_aux_loss
    --moe-aux-loss-coeff 0.001
    --moe-router-enable-expert-bias
    --moe-router-bias-update-rate 0.001
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --moe-permute-fusion
    --moe-router-fusion
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 2048
    --seq-length 4096
    --train-iters 923871
    --optimizer dist_muon
    --lr 0.0002
    --min-lr 2e-05
    --lr-decay-style WSD
    --lr-decay-iters 923871
    --lr-warmup-iters 500
    --lr-wsd-decay-style cosine
    --lr-wsd-decay-iters 327826
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
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 16
    --pipeline-model-parallel-layout "Etttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tL"
    --context-parallel-size 1
    --expert-model-parallel-size 16
    --expert-tensor-parallel-size 1
    --overlap-grad-reduce
)

MEMORY_ARGS=(
    --recompute-granularity selective
    --recompute-modules mla_up_proj
)

KERNEL_ARGS=(
    --transformer-impl transformer_engine
    --attention-backend fused
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
