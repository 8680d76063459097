"""Trainings that are no pretraining of a decoder: refused with what they are, whatever file says it."""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from planner import import_job

HERE = ["cluster.device=h100-80gb-sxm", "cluster.num_devices=8"]
SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16 --seq-length 4096 --micro-batch-size 1 "
    "--global-batch-size 64 --max-position-embeddings 4096 --vocab-size 32000 --train-iters 10"
)
TORCHRUN = "torchrun --nproc-per-node 8"

RL, REWARD = "reinforcement learning", "training by rewards"
PREFERENCE, SFT, PEFT, DISTILLATION = (
    "preference optimization",
    "fine-tuning, whose samples",
    "adapters",
    "distillation",
)

TRAININGS = {
    "grpo.yaml": ("grpo: {num_prompts_per_step: 32}\npolicy: {model_name: Qwen/Qwen3-8B}\n", RL),
    "dpo.yaml": ("dpo: {max_num_epochs: 1}\npolicy: {model_name: x}\n", PREFERENCE),
    "sft.yaml": ("sft: {max_num_epochs: 1}\npolicy: {model_name: x}\n", SFT),
    "rm.yaml": ("policy: {model_name: x, reward_model_cfg: {enabled: true}}\n", REWARD),
    "distillation.yaml": ("distillation: {num_prompts_per_step: 8}\nteacher: {model_name: x}\n", DISTILLATION),
    "verl.yaml": ("actor_rollout_ref: {actor: {strategy: megatron}}\nalgorithm: {adv_estimator: gae}\n", RL),
    "verl_sft.yaml": ("data: {train_batch_size: 256, prompt_key: question}\nmodel: {partial_pretrain: x}\n", SFT),
    "trl.yaml": ("model_name_or_path: Qwen/Qwen3-8B\nreward_funcs: [accuracy]\n", REWARD),
    "factory.yaml": ("stage: sft\nmodel_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: lora\n", SFT),
    "axolotl.yaml": ("base_model: Qwen/Qwen3-8B\nadapter: lora\n", PEFT),
    "torchtune.yaml": ("model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b}\n", PEFT),
    "nemo.yaml": (
        "trainer: {devices: 8, num_nodes: 1}\nmodel: {micro_batch_size: 1, encoder_seq_length: 2048, "
        "peft: {peft_scheme: lora}}\n",
        PEFT,
    ),
    "test.yaml": ("MODE: rl\nMODEL_ARGS: {--num-layers: 32}\n", RL),
    "engine.json": ('{"train_batch_size": 8, "bf16": {"enabled": true}, "hybrid_engine": {"enabled": true}}', RL),
    "titan.toml": ("[model]\nname = 'llama3'\nflavor = '8B'\n[rl]\nsteps = 3\n", RL),
    "verl.sh": ("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.nnodes=1\n", RL),
    "openrlhf.sh": ("deepspeed --module openrlhf.cli.train_dpo --beta 0.1 --pretrain x\n", RL),
    "trl.sh": ("accelerate launch --num_processes 8 trl/scripts/dpo.py --model_name_or_path x\n", PREFERENCE),
    "peft.sh": ("accelerate launch --num_processes 8 --use_fsdp train.py --use_peft --lora_r 16 --bf16\n", PEFT),
    "tool.sh": ("megatron sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 4\n", SFT),
    "factory.sh": ("llamafactory-cli train x.yaml --stage dpo\n", PREFERENCE),
    "train_rl.sh": (f"{TORCHRUN} train_rl.py --perform-rl-step {SIZES}\n", RL),
    "step.txt": (f"--perform-rl-step --grpo-group-size 16 {SIZES}\n", RL),
    "sft.sh": (f"{TORCHRUN} pretrain_gpt.py --sft {SIZES}\n", SFT),
    "modelopt.sh": (f"{TORCHRUN} examples/post_training/modelopt/finetune.py {SIZES}\n", SFT),
    "teacher.sh": (f"{TORCHRUN} pretrain_gpt.py --export-kd-teacher-load /t {SIZES}\n", DISTILLATION),
    "slime.sh": (f"ray job submit -- python3 train.py --advantage-estimator grpo {SIZES}\n", RL),
    "recipe.sh": (f"{TORCHRUN} run_recipe.py --recipe llama3_8b_finetune_config\n", SFT),
    "override.sh": (f"{TORCHRUN} run_recipe.py --recipe llama3_8b_pretrain_config peft.dim=16\n", PEFT),
    "nemo.sh": ("nemo llm finetune --factory llama3_8b trainer.devices=8 trainer.num_nodes=1\n", SFT),
    "mindspeed.sh": (f"torchrun --nproc_per_node 8 pretrain_gpt.py --finetune --lora-r 16 {SIZES}\n", PEFT),
}
"""NeMo-RL, verl, trl, LLaMA-Factory, axolotl, torchtune, NeMo, Megatron-LM, DeepSpeed-Chat, OpenRLHF and others."""

BERT = "BERT, an encoder"
SEES = "a vision-language model"

MODELS = {
    "bert.yaml": (
        "name: megatron_bert\ntrainer: {devices: 8, num_nodes: 1, precision: bf16}\nmodel: {micro_batch_size: 4, "
        "global_batch_size: 32, encoder_seq_length: 512, num_layers: 12, hidden_size: 768, num_attention_heads: 12, "
        "context_parallel_size: 2, tokenizer: {library: huggingface, type: bert-large-uncased}}\n",
        BERT,
    ),
    "binary_head.yaml": (
        "trainer: {devices: 8, num_nodes: 1}\nmodel: {micro_batch_size: 4, encoder_seq_length: 512, "
        "bert_binary_head: true}\n",
        BERT,
    ),
    "t5.yaml": (
        "trainer: {devices: 8, num_nodes: 1}\nmodel: {micro_batch_size: 4, encoder: {num_layers: 12}, "
        "decoder: {num_layers: 12}}\n",
        "T5, an encoder with a decoder",
    ),
    "neva.yaml": (
        "trainer: {devices: 8, num_nodes: 1}\nmodel: {micro_batch_size: 4, encoder_seq_length: 4096, "
        "mm_cfg: {vision_encoder: {from_hf: true}}}\n",
        SEES,
    ),
    "llava.sh": (f"{TORCHRUN} pretrain_llava.py --context-parallel-size 2 $vp_options {SIZES}\n", SEES),
    "patches.sh": (f"{TORCHRUN} train_mine.py --context-parallel-size 2 --img-h 336 $more {SIZES}\n", SEES),
    "recipe.sh": (f"{TORCHRUN} run_recipe.py --recipe bert_110m\n", BERT),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings_after_pretraining_say_what_they_are(name, tmp_path):
    """And what would be accepted, before anything of theirs is asked for."""
    text, kind = TRAININGS[name]
    (tmp_path / name).write_text(text)

    with pytest.raises(SpecError) as refused:
        import_job(tmp_path / name, HERE)

    assert kind in str(refused.value)
    assert "the planner plans pretraining of decoders of text. Import what starts" in str(refused.value)


@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_no_decoders_say_what_they_are(name, tmp_path):
    """Not which of their options has no cost, nor which variable is open."""
    text, kind = MODELS[name]
    (tmp_path / name).write_text(text)

    with pytest.raises(SpecError) as refused:
        import_job(tmp_path / name, HERE)

    assert kind in str(refused.value)


BRIDGE = (
    "peft: null\nmodel: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, seq_length: 4096}\n"
    "train: {global_batch_size: 128, micro_batch_size: 1}\n"
)


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        ("loads.txt", f"--finetune {SIZES}", []),
        ("latent.txt", f"--multi-latent-attention --q-lora-rank 1536 --disable-bias-linear {SIZES}", []),
        ("paths.sh", f"{TORCHRUN} /data/sft/pretrain_gpt.py --data-path /data/dpo --wandb-exp-name grpo {SIZES}", []),
        ("off.yaml", BRIDGE, ["model=llama3-8b"]),
    ],
)
def test_words_that_mean_nothing_of_it_are_left_alone(name, text, entries, tmp_path):
    """What of a checkpoint is loaded, ranks of latent attention, names of files and runs, entries that are off."""
    (tmp_path / name).write_text(text)

    assert import_job(tmp_path / name, [*HERE, *entries]).document["cluster"]["num_devices"] == 8
