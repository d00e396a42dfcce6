TP=$1
torchrun pretrain_gpt.py --num-layers 2 \
   --tensor-model-parallel-size $TP
