torchrun pretrain_gpt.py --num-layers 2 \
  --checkpoint-activations
