export PARAMS=" --num-layers 4 \
  --hidden-size 64 "
sbatch `pwd`/job.slurm
