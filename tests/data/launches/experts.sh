#!/bin/bash
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
# Mixtral-8x7B by Megatron-LM: one text of options, a function, a script inside a script.

export OMP_NUM_THREADS=4
MBS=${MBS:-1}
EP=8

options=" \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear \
    --position-embedding-type rope --untie-embeddings-and-output-weights --max-position-embeddings 4096 \
    --num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall --expert-tensor-parallel-size 1 \
    --seq-length 4096 --micro-batch-size ${MBS} --global-batch-size ${GBS} --train-samples 1024000 --bf16"

parallel() {
    local tp=$1
    options+=" --tensor-model-parallel-size $tp --pipeline-model-parallel-size $2 --expert-model-parallel-size ${EP}"
    return 0
}
parallel 2 4
options="${options} --use-distributed-optimizer --sequence-parallel --moe-layer-recompute"

run_cmd="cd ${CODE_DIR}; python -u ${CODE_DIR}/pretrain_gpt.py ${options}"
sbatch <<EOF
#!/bin/bash
srun -l --output=%x_\${SLURM_JOB_ID}.log \
    sh -c "${run_cmd}"
EOF
