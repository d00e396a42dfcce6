SIZE=7
if [ "$SIZE" != 8 ]; then
  echo "SIZE must be 8"
  exit 1
fi
torchrun pretrain_gpt.py --num-layers 2
