for TP in 1 2 4; do
  torchrun pretrain_gpt.py --num-layers 2 --tensor-model-parallel-size $TP
done
