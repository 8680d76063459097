CONFIG_FILE=${CONFIG_FILE:-"./train_configs/llama3_8b.toml"}
torchrun --nproc_per_node=${NGPU:-8} --nnodes=4 -m torchtitan.train --job.config_file ${CONFIG_FILE} \
    --training.local_batch_size=2 --parallelism.tensor-parallel-degree 8 --activation_checkpoint.mode full "$@"
