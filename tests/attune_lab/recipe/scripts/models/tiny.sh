MOE_LAYERS="([0]*1+[1]*3)"
MODEL_ARGS=(
   --num-layers 4
   --hidden-size 256
   --num-attention-heads 8
   --moe-layer-freq $MOE_LAYERS
   --num-experts 8
)
