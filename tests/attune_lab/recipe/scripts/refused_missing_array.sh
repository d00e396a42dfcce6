source "models/absent.sh"
torchrun pretrain_gpt.py ${MODEL_ARGS[@]} --micro-batch-size 1
