"""
Configurations of DeepSpeed and Accelerate, ten of each and more, of the kinds that their packages and documents show.

What is expected is worked out by hand: the degrees, the sequences of a step and of a micro-batch, precision, sharding
and recomputation.
"""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from planner import import_job, load
from planner.frameworks.imports.documents import read_json, read_yaml

DEVICE = "cluster.device=h100-80gb-sxm"
RUN = "--model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096"

DEEPSPEED = {
    "stage 1, numbers": (
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},'
        ' "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}, "gradient_clipping": 1.0}',
        f"deepspeed --num_gpus 8 train.py --deepspeed_config ds.json {RUN}",
        {"dp": 8, "mbs": 2, "batch": 64, "sharding": "optimizer", "precision": "bf16", "recompute": "none"},
    ),
    "stage 2 of the Trainer, all auto": (
        '{"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,'
        ' "hysteresis": 2, "min_loss_scale": 1}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},'
        ' "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}, "zero_optimization": {"stage": 2,'
        ' "allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true, "reduce_scatter": true,'
        ' "reduce_bucket_size": "auto", "contiguous_gradients": true}, "gradient_accumulation_steps": "auto",'
        ' "gradient_clipping": "auto", "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}',
        f"deepspeed --num_gpus=4 run_clm.py --deepspeed ds.json --fp16 --per_device_train_batch_size 4 {RUN} "
        "--gradient_accumulation_steps 8",
        {"dp": 4, "mbs": 4, "batch": 128, "sharding": "gradients", "precision": "fp16", "recompute": "none"},
    ),
    "stage 3 of the Trainer, recomputing": (
        '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "overlap_comm": true, "sub_group_size": 1e9,'
        ' "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",'
        ' "stage3_max_live_parameters": 1e9, "stage3_gather_16bit_weights_on_model_save": true},'
        ' "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false}',
        f"torchrun --nproc_per_node 8 --nnodes 4 train.py --deepspeed ds.json --bf16 True {RUN} "
        "--per_device_train_batch_size 2 --gradient_checkpointing True",
        {"dp": 32, "mbs": 2, "batch": 64, "sharding": "weights", "precision": "bf16", "recompute": "full"},
    ),
    "optimizer on the host": (
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}},'
        ' "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16,'
        ' "zero_force_ds_cpu_optimizer": false}',
        f"deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed_config ds.json {RUN}",
        {"dp": 16, "mbs": 1, "batch": 256, "sharding": "gradients", "precision": "bf16", "optimizer_offload": True},
    ),
    "comments, a comma at the end": (
        '{\n  // sequences of a step\n  "train_batch_size": 32, # all replicas\n  "zero_optimization": {"stage": 0},\n'
        '  /* half */ "fp16": {"enabled": true,},\n}',
        f"deepspeed --num_gpus 8 train.py --deepspeed_config ds.json {RUN}",
        {"dp": 8, "mbs": 4, "batch": 32, "sharding": "none", "precision": "fp16"},
    ),
    "tensors split": (
        '{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "tensor_parallel": {"autotp_size": 4},'
        ' "zero_optimization": {"stage": 1}}',
        f"deepspeed --num_gpus 8 train.py --deepspeed_config ds.json {RUN}",
        {"tp": 4, "dp": 2, "mbs": 4, "batch": 8, "sharding": "optimizer", "precision": "bf16"},
    ),
    "activation checkpointing of DeepSpeed's own": (
        '{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 1024, "bfloat16": {"enabled": true},'
        ' "zero_optimization": {"stage": 1}, "activation_checkpointing": {"partition_activations": false,'
        ' "number_checkpoints": 32, "cpu_checkpointing": true}}',
        f"srun --nodes 8 --ntasks-per-node 8 python train.py --deepspeed --deepspeed_config ds.json {RUN}",
        {"dp": 64, "mbs": 1, "batch": 1024, "recompute": "full", "activation_offload": True, "precision": "bf16"},
    ),
    "gradients in FP32": (
        '{"train_batch_size": 256, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},'
        ' "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32",'
        ' "zero_optimization": {"stage": 2}}',
        f"deepspeed --num_gpus 8 train.py --deepspeed_config ds.json {RUN}",
        {"dp": 8, "mbs": 8, "batch": 256, "sharding": "gradients", "precision": "bf16"},
    ),
    "monitors and flops": (
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "bf16": {"enabled": true},'
        ' "zero_optimization": {"stage": 3}, "flops_profiler": {"enabled": true}, "tensorboard": {"enabled": true},'
        ' "comms_logger": {"enabled": true}, "steps_per_print": "inf", "prescale_gradients": false}',
        f"deepspeed --num_gpus 8 train.py --deepspeed_config=ds.json {RUN}",
        {"dp": 8, "mbs": 2, "batch": 16, "sharding": "weights", "precision": "bf16"},
    ),
    "the same from Slurm": (
        '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"},'
        ' "zero_optimization": {"stage": 3, "contiguous_gradients": true}}',
        "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nexport BATCH=${BATCH:-1}\nARGS=(--bf16 --deepspeed ds.json)\n"
        f'ARGS+=(--per_device_train_batch_size "$BATCH")\nsrun torchrun --nproc_per_node=8 --nnodes=$SLURM_NNODES '
        f'train.py "${{ARGS[@]}}" {RUN} --gradient_accumulation_steps 2',
        {"dp": 32, "mbs": 1, "batch": 64, "sharding": "weights", "precision": "bf16"},
    ),
    "written by the script": (
        "no JSON",
        "B=2\ncat > conf/ds.json <<EOF\n"
        '{"train_micro_batch_size_per_gpu": $B, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}\nEOF\n'
        f"deepspeed --num_gpus 8 train.py --deepspeed_config conf/ds.json {RUN}",
        {"dp": 8, "mbs": 2, "batch": 16, "sharding": "gradients", "precision": "bf16"},
    ),
}
"""A configuration, the launch beside it, and what is expected."""

BATCHES = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4"

ACCELERATE = {
    "FSDP 1": (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\ndowncast_bf16: 'no'\nfsdp_config:\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
        "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_offload_params: false\n  fsdp_sharding_strategy: FULL_SHARD\n"
        "  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_sync_module_states: true\n  fsdp_use_orig_params: true\n"
        "machine_rank: 0\nmain_training_function: main\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
        "rdzv_backend: static\nsame_network: true\ntpu_env: []\nuse_cpu: false\n",
        f"accelerate launch --config_file c.yaml train.py {RUN} {BATCHES}",
        {"dp": 8, "mbs": 2, "batch": 64, "sharding": "weights", "precision": "bf16", "recompute": "none"},
    ),
    "FSDP 1 by number": (
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 2, fsdp_activation_checkpointing: true}\n"
        "mixed_precision: fp16\nnum_processes: 16\nnum_machines: 2\n",
        f"accelerate launch --config_file c.yaml train.py {RUN} {BATCHES}",
        {"dp": 16, "batch": 128, "sharding": "gradients", "precision": "fp16", "recompute": "full"},
    ),
    "FSDP 2": (
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
        "  fsdp_activation_checkpointing: true\n  fsdp_activation_checkpointing_offload: true\n"
        "mixed_precision: bf16\nnum_processes: 32\nnum_machines: 4\n",
        f"accelerate launch --config_file c.yaml train.py {RUN} {BATCHES}",
        {"dp": 32, "batch": 256, "sharding": "weights", "recompute": "full", "activation_offload": True},
    ),
    "FSDP 2 with tensors and context": (
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nmixed_precision: bf16\nnum_processes: 16\n"
        "parallelism_config:\n  parallelism_config_dp_replicate_size: 1\n  parallelism_config_dp_shard_size: 4\n"
        "  parallelism_config_tp_size: 2\n  parallelism_config_cp_size: 2\n",
        f"accelerate launch --config_file c.yaml train.py {RUN} {BATCHES}",
        {"tp": 2, "cp": 2, "dp": 4, "batch": 32, "sharding": "weights"},
    ),
    "replicas alone": (
        "distributed_type: MULTI_GPU\ngpu_ids: all\nmixed_precision: bf16\nnum_processes: 8\n",
        f"accelerate launch --config_file c.yaml train.py {RUN} {BATCHES} --gradient_checkpointing",
        {"dp": 8, "batch": 64, "sharding": "none", "recompute": "full"},
    ),
    "DeepSpeed's plugin": (
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_multinode_launcher: standard\n"
        "  gradient_accumulation_steps: 8\n  gradient_clipping: 1.0\n  offload_optimizer_device: cpu\n"
        "  offload_param_device: none\n  zero3_init_flag: true\n  zero_stage: 3\nmixed_precision: bf16\n"
        "num_machines: 2\nnum_processes: 16\n",
        f"accelerate launch --config_file c.yaml train.py {RUN} --per_device_train_batch_size 1",
        {"dp": 16, "mbs": 1, "batch": 128, "sharding": "weights", "optimizer_offload": True},
    ),
    "DeepSpeed's file": (
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ../ds.json\n"
        "mixed_precision: bf16\nnum_processes: 8\n",
        f"accelerate launch --config_file c.yaml train.py {RUN} {BATCHES}",
        {"dp": 8, "batch": 64, "sharding": "gradients", "precision": "bf16"},
    ),
    "Megatron-LM's plugin": (
        "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_gradient_clipping: 1.0\n"
        "  megatron_lm_num_micro_batches: 4\n  megatron_lm_pp_degree: 2\n  megatron_lm_recompute_activations: true\n"
        "  megatron_lm_sequence_parallelism: true\n  megatron_lm_tp_degree: 2\n"
        "  megatron_lm_use_distributed_optimizer: true\nmixed_precision: bf16\nnum_processes: 16\n",
        f"accelerate launch --config_file c.yaml train.py {RUN} --per_device_train_batch_size 2",
        {"tp": 2, "pp": 2, "dp": 4, "mbs": 2, "batch": 32, "sharding": "optimizer", "recompute": "core_attention"},
    ),
    "options alone": (
        "",
        "accelerate launch --use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP --fsdp_activation_checkpointing true "
        f"--mixed_precision bf16 --num_processes 8 --num_machines 1 train.py {RUN} {BATCHES}",
        {"dp": 8, "batch": 64, "sharding": "gradients", "precision": "bf16", "recompute": "full"},
    ),
    "the Trainer's own": (
        "",
        f"torchrun --nproc_per_node=8 train.py {RUN} {BATCHES} --bf16 True --fsdp 'full_shard auto_wrap' "
        "--fsdp_config fsdp.json --gradient_checkpointing True",
        {"dp": 8, "batch": 64, "sharding": "weights", "precision": "bf16", "recompute": "full"},
    ),
    "anchors, and options that count more": (
        "half: &half bf16\nsizes: &sizes {fsdp_sharding_strategy: FULL_SHARD}\ndistributed_type: FSDP\n"
        "fsdp_config:\n  <<: *sizes\n  fsdp_version: 1\nmixed_precision: *half\nnum_processes: 64\n",
        f"accelerate launch --config_file c.yaml --num_processes 32 --num_machines 4 train.py {RUN} {BATCHES}",
        {"dp": 32, "batch": 256, "sharding": "weights", "precision": "bf16"},
    ),
}

DS_JSON = '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}'


@pytest.mark.parametrize("name", [*DEEPSPEED, *ACCELERATE])
def test_a_configuration_is_read_as_it_says(name, tmp_path):
    """Every figure that is expected, and a whole job that can be estimated."""
    text, launch, expected = {**DEEPSPEED, **ACCELERATE}[name]
    (tmp_path / ("ds.json" if name in DEEPSPEED else "c.yaml")).write_text(text)
    if name == "DeepSpeed's file":
        (tmp_path / "ds.json").write_text(DS_JSON)
    script = tmp_path / "run.sh"
    script.write_text(launch)

    job = import_job(script, [DEVICE]).document

    strategy, training = job["strategy"], job["training"]
    found = {**strategy, "batch": training["global_batch_size"], "precision": training["precision"]}
    assert {entry: found[entry] for entry in expected} == expected
    degrees = {entry: strategy[entry] for entry in ("tp", "cp", "pp", "ep") if entry not in expected}
    assert set(degrees.values()) == {1}
    assert (training["sequence_length"], load(job).facts.model.name) == (4096, "llama3-8b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}, "bf16": {}}', "a second copy"),
        ('{"zero_optimization": {"stage": 3, "mics_shard_size": 8}, "bf16": {"enabled": true}}', "MiCS shards"),
        ('{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}', "offload_param"),
        ('{"zero_optimization": {"stage": 4}, "bf16": {"enabled": true}}', "expected 0, 1, 2 or 3"),
        ('{"zero_optimization": {"stage": 1}, "zero_optimization": {"stage": 2}}', "is written twice"),
        ('{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, '
         '"bf16": {"enabled": true}}', "is 64; micro-batch 2 x 2 steps x 8 replicas are 32"),
        ('{"train_batch_size": "many", "bf16": {"enabled": true}}', "expected a whole number"),
        ('{"train_batch_size": 64, "amp": {"enabled": true}}', "amp.enabled: is true"),
        ('{"zero_optimization": [1]}', "expected an object"),
    ],
)  # fmt: skip
def test_what_a_configuration_may_not_say(text, message, tmp_path):
    """Degrees, batches and precisions that contradict each other, and what has no costs."""
    path = tmp_path / "ds.json"
    path.write_text(text)

    with pytest.raises(SpecError, match=message):
        import_job(path, [DEVICE, "cluster.num_devices=8", "model=llama3-8b", "training.sequence_length=4096"])


def test_anchors_do_not_grow_without_bound():
    """Nine levels of nine would be 387 million words."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]

    with pytest.raises(SpecError, match="larger than any configuration"):
        read_yaml("\n".join(levels), "example")
    with pytest.raises(SpecError, match=r"is not YAML|larger than any"):
        read_yaml("a: &a [*a]", "example")


def test_words_of_yaml_stay_what_they_are():
    """With anchors as without: 010 is ten, a quoted number is text, a date is text."""
    plain = "n: 010\nq: '1'\nd: 2026-01-01\nf: 1e-5\nz: ~\nb: yes\n"

    assert read_yaml(f"x: &x 1\ny: *x\n{plain}", "e") == {"x": 1, "y": 1, **read_yaml(plain, "e")}
    assert read_json('{"url": "http://x/#y", "n": [1,]}', "e") == {"url": "http://x/#y", "n": [1]}


@pytest.mark.parametrize(
    ("section", "recompute", "words"),
    [
        ('"number_checkpoints": 32', "full", "assumed to be full: all layers"),
        ('"partition_activations": false', "none", "assumed to be none: no layer"),
    ],
)
def test_a_section_of_checkpoints_alone_is_marked_as_assumed(section, recompute, words, tmp_path):
    """The model must be told, too; who says it himself gets no remark."""
    path = tmp_path / "ds.json"
    path.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, '
        f'"activation_checkpointing": {{{section}}}}}'
    )
    entries = [
        "model=llama3-8b",
        "cluster.device=h100-80gb-sxm",
        "cluster.num_devices=8",
        "training.sequence_length=4096",
    ]

    job = import_job(path, entries)

    assert job.document["strategy"]["recompute"] == recompute
    assert any(words in note for note in job.notes)
    assert "assumed to be" not in import_job(path, [*entries, "strategy.recompute=none"]).text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"zero_optimisation": {"stage": 3}, "bf16": {"enabled": true}}', "'zero_optimization.stage'"),
        ("a.toml", '[model]\nname = "llama3"\n[parallelism]\ntensor_paralel_degree = 2', "tensor_parallel_degree'"),
        ("b.toml", '[model]\nname = "llama3"\n[training]\nstepz = 5', "'training.steps'"),
        ("a.yaml", "distributed_type: FSDP\nnum_processes: 8\nmixed_precison: bf16", "'mixed_precision'"),
    ],
)
def test_a_key_that_is_nearly_one_that_is_read_is_refused(name, text, message, tmp_path):
    """The tool would pass over it, and run something else than its author meant."""
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(SpecError, match=f"Did you mean .*{message}"):
        import_job(path, ["cluster.device=h100", "cluster.num_devices=8", "model=llama3-8b"])


def test_keys_of_two_releases_of_torchtitan(tmp_path):
    """The newer one counts if both stand there: local_batch_size, compile.enable, and parallelism's degrees."""
    path = tmp_path / "a.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 4\nbatch_size = 2\ncompile = true\n'
        "[parallelism]\ncontext_parallel_degree = 2\n[experimental]\ncontext_parallel_degree = 4\n"
        "[compile]\nenable = false\n"
    )

    job = import_job(path, ["cluster.device=h100", "cluster.num_devices=8"]).document

    assert (job["strategy"]["mbs"], job["strategy"]["cp"], job["settings"]["kernels"]) == (4, 2, "eager")
    assert job["training"]["global_batch_size"] == 4 * 4  # 8 devices, 2 of a context group


def test_megatron_by_accelerate_overlaps_nothing_and_recomputes_by_its_own_key(tmp_path):
    """Its plugin has no key for overlaps, which Megatron-LM has off; gradient_checkpointing is of transformers."""
    (tmp_path / "c.yaml").write_text(
        "distributed_type: MEGATRON_LM\nnum_processes: 8\nmixed_precision: bf16\n"
        "megatron_lm_config: {megatron_lm_tp_degree: 2, megatron_lm_num_micro_batches: 3}"
    )
    script = tmp_path / "run.sh"
    script.write_text(
        "accelerate launch --config_file c.yaml train.py --model_name_or_path Qwen/Qwen3-8B --max_seq_length 4096 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 5 --gradient_checkpointing --max_steps 100"
    )

    job = import_job(script, ["cluster.device=h100"]).document

    strategy, training = job["strategy"], job["training"]
    assert (strategy["tp_overlap"], strategy["dp_overlap"], strategy["recompute"]) == (False, False, "none")
    assert (training["global_batch_size"], training["tokens"]) == (12, 100 * 12 * 4096)  # 4 replicas of 3 micro-batches


def test_steps_of_torchtitan_are_a_number(tmp_path):
    """Steps below one are no length, and nothing else is assumed in their place."""
    path = tmp_path / "a.toml"
    path.write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nsteps = -1000')

    with pytest.raises(SpecError, match=r"training.steps: expected a whole number of at least 1, got -1000\."):
        import_job(path, ["cluster.device=h100", "cluster.num_devices=8"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--optim paged_adamw_8bit", "optim: costed as Adam with two moments in FP32"),
        ("--my_switch 7", "Not understood, no keys that are known here: my_switch"),
        ("--tensor_parallel_degree 4", "tensor_parallel_degree: is 4. This key is not known"),
        ("--auto_find_batch_size True", "auto_find_batch_size: is true: lets the tool try sizes"),
    ],
)
def test_options_of_a_trainer_do_not_vanish(tmp_path, options, said):
    """An optimizer of 8 bits, an unknown option, a degree of the script itself, a size that is tried."""
    (tmp_path / "ds.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}')
    command = f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {RUN} --per_device_train_batch_size 1 {options}"
    (tmp_path / "run.sh").write_text(command)

    try:
        notes = " ".join(import_job(tmp_path / "run.sh", [DEVICE]).notes)
    except SpecError as error:
        notes = str(error)

    assert said in notes


def test_checkpoints_on_the_host_do_not_vanish(tmp_path):
    """DeepSpeed's own checkpointing takes them there, if the model calls it."""
    config = (
        '{"train_batch_size": 8, "bf16": {"enabled": true}, "activation_checkpointing": {"cpu_checkpointing": true}}'
    )
    (tmp_path / "ds.json").write_text(config)
    entries = ["cluster.num_devices=8", "model=llama3-8b", "training.sequence_length=4096"]

    notes = import_job(tmp_path / "ds.json", [DEVICE, *entries]).notes

    assert any("activation_checkpointing.cpu_checkpointing: counts where" in note for note in notes)
