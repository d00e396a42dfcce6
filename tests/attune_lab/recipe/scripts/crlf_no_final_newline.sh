export A=1
ARGS=(
    --num-layers 2
    --micro-batch-size 1
)
torchrun pretrain_gpt.py "${ARGS[@]}" \
    --global-batch-size 8 \
    --bf16