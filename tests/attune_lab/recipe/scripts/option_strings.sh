#!/bin/bash
# Flags in strings, as older scripts keep them, joined and evaluated at the end.
set -e
TP=4
PP=2
SEQ=4096
if [ $TP -gt 1 ]; then
    sp_options=" --sequence-parallel"
else
    sp_options=""
fi

gpt_options="  \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --seq-length ${SEQ} \
    --num-layers 24 --hidden-size 2048 \
    --micro-batch-size 1 \
    --global-batch-size $(( 8 * TP * PP )) \
    --lr 3.0e-4 \
    --bf16
"
run_cmd="torchrun --nproc_per_node 8 --nnodes=1 pretrain.py ${gpt_options} ${sp_options} --tensorboard-dir logs/tp${TP}"
echo ${run_cmd}
eval ${run_cmd}
set +x
