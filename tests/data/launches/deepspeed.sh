MODEL=meta-llama/Llama-3.1-8B
ARGS="--model_name_or_path $MODEL --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 True"
deepspeed --num_gpus ${NGPU:-8} --num_nodes 2 train.py --deepspeed configs/zero3.json $ARGS \
    --max_seq_length 4096 --gradient_checkpointing True --max_steps 500
