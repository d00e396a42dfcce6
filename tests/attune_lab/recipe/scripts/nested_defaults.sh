TP=${TP:-${DEFAULT_TP:-2}}
EXTRA=()
EXTRA+=(--use-distributed-optimizer)
EXTRA+=(--tensor-model-parallel-size=$TP --lr="1e-4")
[[ $TP -ge 2 && -z "$NO_SP" ]] && EXTRA+=(--sequence-parallel)
cd megatron || exit 1
python -m torch.distributed.run --nproc_per_node 8 pretrain_gpt.py --num-layers 2 "${EXTRA[@]}" \
  --moe-layer-freq '([0]*1+[1]*1)' > train.log 2>&1 &
