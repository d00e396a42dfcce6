torchrun pretrain_gpt.py --num-layers 2 --moe-token-dispatcher-type alltoall
torchrun pretrain_gpt.py --num-layers 2 --moe-expert-capacity-factor 1.0
