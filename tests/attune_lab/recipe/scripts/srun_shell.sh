#!/bin/bash
#SBATCH --nodes=4
IMAGE=nvcr.io/nvidia/pytorch:25.09-py3
ARGS="--num-layers 8 --hidden-size 512 --num-attention-heads 8 \
 --micro-batch-size 1 --global-batch-size 32 --num-layers-per-virtual-pipeline-stage 1"
CMD="torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py ${ARGS}"
cat > job.txt <<'EOF'
--tensor-model-parallel-size 64 is only text here
EOF
srun --container-image $IMAGE bash -c "${CMD}"
