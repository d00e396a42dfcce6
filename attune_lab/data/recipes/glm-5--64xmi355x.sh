#!/bin/bash
# Pre-training of glm-5 on 64 MI355X GPUs.
#
# Source: AMD-AGI/Primus@fd1eeabbad15 examples/megatron/configs/MI355X/glm5-BF16-pretrain.yaml
# Ours: All-to-all dispatch in place of the DeepEP of Primus-Turbo and natural in place of forced routing; first
# and last stage of 9 layers, since 78 layers do not split evenly over 8 stages.
# Model shape: the release's config.json. Learning rate, horizon and warm-up are stand-ins: the source trains for
# throughput only.
#
# stack: mcore=0.16 te=2.12 torch=2.9

set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1

NNODES=${NNODES:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
TOKENIZER=${TOKENIZER:-zai-org/GLM-5}
DATA_PATH=${DATA_PATH:-data/corpus_text_document}
CHECKPOINTS=${CHECKPOINTS:-checkpoints/glm-5}

MODEL_ARGS=(
    --num-layers 78
    --hidden-size 6144
    --ffn-hidden-size 12288
    --num-attention-heads 64
    --kv-channels 64
    --max-position-embeddings 4096
    --vocab-size 154880
    --make-vocab-size-divisible-by 128
    --untie-embeddings-and-output-weights
    --normalization RMSNorm
    --norm-epsilon 1e-05
    --qk-layernorm
    --swiglu
    --disable-bias-linear
    --position-embedding-type rope
    --rotary-base 1000000
    --rope-type rope
    --multi-latent-attention
    --q-lora-rank 2048
    --kv-lora-rank 512
    --qk-head-dim 192
    --qk-pos-emb-head-dim 64
    --v-head-dim 256
    --experimental-attention-variant dsa
    --dsa-indexer-n-heads 32
    --dsa-indexer-head-dim 128
    --dsa-indexer-topk 2048
    --mtp-num-layers 1
    --mtp-loss-scaling-factor 0.3
    --hidden-dropout 0.0
    --attention-dropout 0.0
)

MOE_ARGS=(
    --num-experts 256
    --moe-layer-freq "([0]*3+[1]*75)"
    --moe-ffn-hidden-size 2048
    --moe-router-topk 8
    --moe-shared-expert-intermediate-size 2048
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
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 256
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
    --main-grads-dtype bf16
    --exp-avg-dtype bf16
    --exp-avg-sq-dtype bf16
    --use-precision-aware-optimizer
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 8
    --decoder-first-pipeline-num-layers 9
    --decoder-last-pipeline-num-layers 9
    --context-parallel-size 1
    --expert-model-parallel-size 8
    --expert-tensor-parallel-size 1
    --use-distributed-optimizer
)

MEMORY_ARGS=(
    --recompute-granularity full
    --recompute-method block
    --recompute-num-layers 8
)

KERNEL_ARGS=(
    --transformer-impl transformer_engine
    --attention-backend fused
    --no-rope-fusion
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
