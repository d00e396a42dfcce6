DEPTH=6
DENSE=2
pattern=()
for ((i=0; i<DEPTH; i++)); do
  if (( i < DENSE )); then
    pattern+=(0)
  else
    pattern+=(1)
  fi
done
printf -v FREQ "[%s]" "$(IFS=', '; echo "${pattern[*]}")"
MODEL_ARGS=(--num-layers $DEPTH --hidden-size 512 --num-attention-heads 8 --moe-layer-freq "$FREQ" --num-experts 8)
