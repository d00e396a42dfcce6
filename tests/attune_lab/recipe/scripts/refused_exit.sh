if [ -z "$DATA" ]; then
  echo "set DATA"
  exit 1
fi
torchrun pretrain_gpt.py --num-layers 2
