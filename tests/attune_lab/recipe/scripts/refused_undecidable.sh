AC=$7
ARGS="--num-layers 2"
if [ $AC = full ]; then
   ARGS="$ARGS --recompute-granularity full"
fi
torchrun pretrain_gpt.py $ARGS
