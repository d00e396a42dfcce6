#!/bin/bash

# Arrays, defaults, commented-out flags and a block that only logs.

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"2"}
NODE_RANK=${RANK:-"0"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
CHECKPOINT_PATH=$1
DATA_PATH=$2

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --node_rank $NODE_RANK
)

MODEL_ARGS=(
    --num-layers 16
    --hidden-size 1024
    --num-attention-heads 16
    --disable-bias-linear
    --no-masked-softmax-fusion
)

TRAINING_ARGS=(
    --micro-batch-size 2
    --global-batch-size 64
    --seq-length 2048
    # --lr-decay-iters 320000
    --lr 1e-4
    #--fp16
    --bf16
)

LOGGING_ARGS=(
  #  --log-interval 5 \
    --log-interval 1 \
    #--save $CHECKPOINT_PATH \
    --load $CHECKPOINT_PATH \
    --no-load-optim
)

if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING_ARGS+=(
        --wandb-project ${WANDB_PROJECT:-"demo"}
    )
fi

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    --data-path $DATA_PATH \
    ${LOGGING_ARGS[@]}
