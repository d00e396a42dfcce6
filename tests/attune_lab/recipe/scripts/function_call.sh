#!/bin/bash
# The run stands in a function; its command line reaches the nodes as text in single quotes.
SIZES=(2 4)
launch() {
    local tp=$1
    shift_by=${2:-0}
    export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 8 --nnodes 4"
    export CMD=" `pwd`/pretrain_gpt.py --tensor-model-parallel-size $tp --num-layers 8 --bf16 \
        --partition 'type:layer|embedding' "
    srun --label bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee log.txt
}
if [ $# -gt 3 ]; then
    echo "too many arguments"; exit 1
fi
launch ${SIZES[1]}
