#!/bin/bash
# One launcher for several sizes: a case, functions, counted tests, a log pipe inside the evaluated string.
set -euo pipefail
HERE="$(cd "$(dirname "$0")" && pwd)"
export FAST_PATH=${FAST_PATH:-1}
for OPTION in "$@"; do
    NAME=$(echo $OPTION | cut -f1 -d=)
    export "$NAME"="${OPTION#*=}"
done
while [[ $# -gt 0 ]]; do
    case $1 in
        --tensor-model-parallel-size) TP="$2"; shift 2 ;;
        -h|--help) exit 0 ;;
    esac
done
SIZE=${SIZE:-small}
TP=${TP:-2}
case $SIZE in
huge | large)
    LAYERS=96
    WIDTH=8192
    ;;
s*)
    LAYERS=${LAYERS:-12}
    WIDTH=1_024
    EXTRA="--untie-embeddings-and-output-weights"
    ;;
*)
    echo "no such size: $SIZE"
    exit 1
    ;;
esac
: "${HEADS:=16}"
: ${PRECISION:=fp8}
if ! [ "$PRECISION" = bf16 ]; then
    precision_options=" --bf16 --fp8-recipe ${RECIPE:-delayed} --fp8-format=hybrid"
else
    precision_options=" --bf16"
fi
if (( TP > 1 )); then
    parallel_options="--sequence-parallel"
fi
OVERLAP=$(( (TP > 1) ? 1 : 0 ))
if [ $OVERLAP -eq 1 -a "$FAST_PATH" = "1" ]; then
    parallel_options="${parallel_options} --tp-comm-overlap"
fi
mkdir -p logs || { echo "cannot write"; exit 1; }
options=" \
    --num-layers ${LAYERS} --hidden-size ${WIDTH} --num-attention-heads ${HEADS} \
    --tensor-model-parallel-size ${TP} \
    --eval-iters 10 \
    ${EXTRA:+$EXTRA} \
    --moe-layer-freq '([0]*1+[1]*11)' \
    --eval-iters -1 \
"
LOG=logs/run.log
run_cmd="torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py ${options} ${precision_options} ${parallel_options:-} --manual-gc"
if [ "${TEE:-1}" -eq 0 ]; then
    run_cmd="$run_cmd >& $LOG"
else
    run_cmd="$run_cmd |& tee $LOG"
fi
echo "${run_cmd}"
eval "${run_cmd}"
cat <<'PY' > mean.py
print("it's done")
PY
