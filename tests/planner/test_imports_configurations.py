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
from tests.cases import in_one_case, read_table

CASES = read_table("imports_configurations")

DEVICE = "cluster.device=h100-80gb-sxm"
RUN = "--model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096"

DEEPSPEED, ACCELERATE = CASES["deepspeed"], CASES["accelerate"]

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


@in_one_case(("text", "message"), CASES["impossible"])
def test_what_a_configuration_may_not_say(text, message, tmp_path):
    """Degrees, batches and precisions that contradict each other, and what has no costs."""
    path = tmp_path / "ds.json"
    path.write_text(text)

    with pytest.raises(SpecError, match=message):
        import_job(path, [DEVICE, "cluster.num_devices=8", "model=llama3-8b", "training.sequence_length=4096"])


@pytest.mark.slow
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


@in_one_case(("name", "text", "message"), CASES["nearly"])
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
