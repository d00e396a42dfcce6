#!/bin/bash
TP=4
sbatch <<JOB
#!/bin/bash
#SBATCH --nodes=2
export NCCL_NVLS_ENABLE=0
srun --container-image=\${IMAGE} bash -c "cd /code && torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py \
    --tensor-model-parallel-size $TP --num-layers 2 --manual-gc" 2>&1 | tee log
JOB
