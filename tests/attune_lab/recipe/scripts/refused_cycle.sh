A=$B
B=$A
A=$B
torchrun pretrain_gpt.py --num-layers $A
