NNODES=$WORLD_SIZE \
megatron sft \
    --load model \
    --micro_batch_size 1 \
    --finetune true
