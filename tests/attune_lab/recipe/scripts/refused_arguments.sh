#!/bin/bash
SIZE=$2
if [ $SIZE = A ]; then
  options="--num-layers 4 \
    --moe-router-topk 2"
fi
torchrun pretrain_gpt.py $options
