accelerate launch --config_file ~/configs/fsdp.yaml train.py --model_name_or_path Qwen/Qwen3-8B \
    --per_device_train_batch_size 2 --gradient_accumulation_steps=4 --max_seq_length 4096 --gradient_checkpointing
