#!/usr/bin/env bash
NCCL_NVLS_ENABLE=0 \
PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True" COMMENT='best so far' \
bash ./launch.sh \
    --num-layers 94 \
    --moe-token-dispatcher-type flex --moe-enable-deepep \
    --recompute-granularity selective \
    --recompute-modules moe_act layernorm \
    --overlap-moe-expert-parallel-comm \
    --moe-router-force-load-balancing
