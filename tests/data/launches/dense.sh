#!/bin/bash
# Llama-3-8B by Megatron-LM: arrays, defaults, a choice of the precision, arguments of the script for paths.

DATA_PATH=${1:?"where the data is"}
CHECKPOINTS=$2
shift 2
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NNODES=${SLURM_NNODES:-"2"}
DTYPE="${DTYPE:-bf16}"
TP=2
GLOBAL_BATCH=$((GPUS_PER_NODE * NNODES * 8))

if [ ! -d "$DATA_PATH" ]; then
    echo "no data at $DATA_PATH"
    exit 1
fi
mkdir -p "$CHECKPOINTS" || { echo "cannot write"; exit 1; }

LAUNCHER=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES   # nodes
    --rdzv_endpoint $(hostname):29500
)
MODEL=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm
    --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights
    --max-position-embeddings 8192 --seq-length ${SEQ_LENGTH:-8192}
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size $GLOBAL_BATCH
    --train-iters 1000
    --lr 3e-4
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size 2
    --use-distributed-optimizer
    --sequence-parallel
    "--data-path $DATA_PATH"
    --save "$CHECKPOINTS"
    --temperature 1.0
    --my-own-switch
)
case "$DTYPE" in
    fp8) TRAINING+=(--bf16 --fp8-format hybrid) ;;
    bf16 | half) TRAINING+=(--bf16) ;;
    *)
        echo "no such precision: $DTYPE"
        exit 1
        ;;
esac
if [[ -n "${RECOMPUTE:-}" ]]; then
    TRAINING=("${TRAINING[@]}" --recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
fi

torchrun "${LAUNCHER[@]}" pretrain_gpt.py ${MODEL[@]} ${TRAINING[@]} "$@"
