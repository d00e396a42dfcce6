#!/bin/bash
if [ "$MODE" = "fp8" ]; then
  PREC="--fp8-format hybrid"
elif [ -z "$MODE" ] || [ "$MODE" == "bf16" ]; then
  PREC="--bf16"
else
  PREC="--fp16"
fi
mkdir -p out && cd out && \
torchrun --nproc_per_node=8 --nnodes=1 pretrain_gpt.py --num-layers 2 $PREC $EXTRA_ARGS
