#!/bin/bash
# Pre-training of minimax-m2 on 128 MI355X GPUs.
#
# Source: AMD-AGI/Primus@fd1eeabbad15 examples/megatron/configs/MI355X/minimax_m2.5-BF16-pretrain.yaml
# Ours: Published for MiniMax-M2.5, which shares the shape; all-to-all dispatch in place of the DeepEP of Primus-
# Turbo, natural in place of forced routing, and per-head query and key norms in place of full-width ones, for
# which Megatron-LM has no flag.
# Model shape: the release's config.json. Learning rate, horizon and warm-up are stand-ins: the source trains for
# throughput only.
#
# stack: mcore=0.16 te=2.12 torch=2.9

set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1

NNODES=${NNODES:-16}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
TOKENIZER=${TOKENIZER:-MiniMaxAI/MiniMax-M2}
DATA_PATH=${DATA_PATH:-data/corpus_text_document}
CHECKPOINTS=${CHECKPOINTS:-checkpoints/minimax-m2}

MODEL_ARGS=(
    --num-layers 62
    --hidden-size 3072
    --ffn-hidden-size 1536
    --num-attention-heads 48
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --max-position-embeddings 4096
    --vocab-size 200064
    --make-vocab-size-divisible-by 128
    --untie-embeddings-and-output-weights
    --normalization RMSNorm
    --norm-epsilon 1e-06
    --qk-layernorm
    --swiglu
    --disable-bias-linear
    --position-embedding-type rope
    --rotary-base 5000000
    --rotary-percent 0.5
    --hidden-dropout 0.0
    --attention-dropout 0.0
)

MOE_ARGS=(
    --num-experts 256
    --moe-ffn-hidden-size 1536
    --moe-router-topk 8
    --moe-router-score-function sigmoid
    --moe-router-dtype fp32
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 0.001
    --moe-router-enable-expert-bias
    --moe-router-bias-update-rate 0.001
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --moe-permute-fusion
)

TRAINING_ARGS=(
    --micro-batch-size 3
    --global-batch-size 768
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
    --pipeline-model-parallel-size 4
    --pipeline-model-parallel-layout "Et*7|t*8|t*8|t*8|t*8|t*8|t*8|t*7,L"
    --context-parallel-size 1
    --expert-model-parallel-size 8
    --expert-tensor-parallel-size 1
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
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
