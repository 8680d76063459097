torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py --num-layers 32 --hidden-size 4096 \
    --num-attention-heads 32 --seq-length 4096 --micro-batch-size $MBS --bf16 \
    --global-batch-size $(cat batch.txt) --data-path $DATA --tensor-model-parallel-size ${TP}
