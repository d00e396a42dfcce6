#!/bin/bash
# Pre-training of deepseek-v3 on 256 H100 GPUs.
#
# Source: NVIDIA-NeMo/Megatron-Bridge@067f987df03b src/megatron/bridge/recipes/deepseek/h100/deepseek_v3.py
# deepseek_v3_pretrain_256gpu_h100_bf16_32nodes_config
# Ours: Recomputes every layer.
# Model shape: the release's config.json. Optimizer values: arXiv 2412.19437 section 4.2 (peak 2.2e-4, 2,000 warm-
# up steps, end 2.2e-5); its constant phase is left out, the horizon is 14.8T tokens.
#
# stack: mcore=0.16 te=2.12 torch=2.9

set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_GRAPH_REGISTER=0
export NCCL_NVLS_ENABLE=0
export NVTE_BWD_LAYERNORM_SM_MARGIN=20
export NVTE_FWD_LAYERNORM_SM_MARGIN=20
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export TORCH_NCCL_HIGH_PRIORITY=1

NNODES=${NNODES:-32}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
TOKENIZER=${TOKENIZER:-deepseek-ai/DeepSeek-V3-Base}
DATA_PATH=${DATA_PATH:-data/corpus_text_document}
CHECKPOINTS=${CHECKPOINTS:-checkpoints/deepseek-v3}

MODEL_ARGS=(
    --num-layers 61
    --hidden-size 7168
    --ffn-hidden-size 18432
    --num-attention-heads 128
    --max-position-embeddings 4096
    --vocab-size 129280
    --make-vocab-size-divisible-by 128
    --untie-embeddings-and-output-weights
    --normalization RMSNorm
    --norm-epsilon 1e-06
    --qk-layernorm
    --swiglu
    --disable-bias-linear
    --position-embedding-type rope
    --rotary-base 10000
    --rope-type yarn
    --rotary-scaling-factor 40.0
    --mscale 1.0
    --mscale-all-dim 1.0
    --multi-latent-attention
    --q-lora-rank 1536
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
    --mtp-num-layers 1
    --mtp-loss-scaling-factor 0.1
    --init-method-std 0.006
    --hidden-dropout 0.0
    --attention-dropout 0.0
)

MOE_ARGS=(
    --num-experts 256
    --moe-layer-freq "([0]*3+[1]*58)"
    --moe-ffn-hidden-size 2048
    --moe-router-topk 8
    --moe-shared-expert-intermediate-size 2048
    --moe-router-score-function sigmoid
    --moe-router-topk-scaling-factor 2.5
    --moe-router-num-groups 8
    --moe-router-group-topk 4
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
    --global-batch-size 4096
    --seq-length 4096
    --train-iters 882149
    --optimizer adam
    --lr 0.00022
    --min-lr 2.2e-05
    --lr-decay-style cosine
    --lr-decay-iters 882149
    --lr-warmup-iters 2000
    --adam-beta1 0.9
    --adam-beta2 0.95
    --adam-eps 1e-08
    --weight-decay 0.1
    --clip-grad 1.0
)

PRECISION_ARGS=(
    --bf16
    --grad-reduce-in-bf16
    --main-grads-dtype bf16
    --exp-avg-dtype bf16
    --exp-avg-sq-dtype bf16
    --use-precision-aware-optimizer
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 8
    --pipeline-model-parallel-layout "Etttttttt|tttttttt|tttttttt|tttttttt|tttttttt|tttttttt|tttttttt|tttttmL"
    --context-parallel-size 1
    --expert-model-parallel-size 32
    --expert-tensor-parallel-size 1
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

MEMORY_ARGS=(
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
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
    "${MEMORY_ARGS[@]}" \
    "${KERNEL_ARGS[@]}" \
    "${DATA_ARGS[@]}" \
    "${LOGGING_ARGS[@]}"
