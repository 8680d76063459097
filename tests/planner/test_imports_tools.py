"""Configurations of other tools: read by one table of keys, none of which is dropped in silence."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from costmodel.models.flops import parameters
from planner import import_job, load
from planner.frameworks.imports.documents import flat_entries
from tests.cases import in_one_case, read_table

CASES = read_table("imports_tools")

DEVICE = "cluster.device=h100-80gb-sxm"

SAMPLES = Path(__file__).parents[1] / "data" / "tools"
"""A small file of each kind, its keys on lines of their own and other than the tool's defaults."""

FILES = {path.name: path.read_text() for path in sorted(SAMPLES.iterdir()) if path.is_file()}
NEMO, NEOX, FLAGSCALE, PRIMUS = (FILES[name] for name in ("nemo.yaml", "neox.yml", "flagscale.yaml", "primus.yaml"))

OUTER = """
defaults:
  - _self_
  - train: mine
experiment:
  task: {type: train, backend: megatron, entrypoint: flagscale/train/train_gpt.py}
  runner: {nnodes: 2, nproc_per_node: 8}
  envs: {PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:True"}
"""


BESIDE = {
    "deepspeed.json": ("cluster.num_devices=32", "model=llama3-8b", "training.sequence_length=4096"),
    "accelerate.yaml": ("model=llama3-8b", "training.sequence_length=4096", "strategy.mbs=2"),
    "nemo.yaml": (),
    "nanotron.yaml": (),
}
"""What the command says beside a file that says its devices, or leaves out more than them."""


def found(tmp_path, name, text, *entries, **given):
    """The job of a file, or the refusal."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    if name == "primus.yaml":
        shutil.copytree(SAMPLES / "primus", tmp_path / "primus", dirs_exist_ok=True)
    return import_job(path, [DEVICE, *BESIDE.get(name, ("cluster.num_devices=64",)), *entries], given)


def figures(job):
    """Degrees, batches and what else is compared."""
    strategy, training = job.document["strategy"], job.document["training"]
    degrees = [strategy[name] for name in ("tp", "cp", "pp", "dp", "ep", "vpp", "mbs")]
    batches = (training["global_batch_size"], training["sequence_length"], training["precision"])
    return degrees, *batches, strategy["sharding"], strategy["recompute"], strategy["dp_overlap"]


@pytest.mark.parametrize(("name", "expected"), CASES["runs"])
def test_a_configuration_is_what_its_tool_would_run(tmp_path, name, expected):
    """Degrees, batches, precision, sharding, recomputation and overlap by hand."""
    assert [*figures(found(tmp_path, name, FILES[name]))] == expected


def test_nemos_optimizer_says_overlap_and_gradients(tmp_path):
    """overlap_grad_sync, overlap_param_sync and grad_sync_dtype; three layers of each chunk of two are all six."""
    job = found(tmp_path, "nemo.yaml", NEMO).document

    assert (job["settings"]["gradient_dtype"], job["strategy"]["tp_overlap"]) == ("bf16", True)
    assert job["model"]["ffn_hidden_size"] == 4 * 5120
    assert job["model"]["vocab_size"] == 64000
    assert job["cluster"]["framework"].startswith("nemo-")


def test_widths_that_a_tool_computes(tmp_path):
    """GPT-NeoX has gate and projection in one, a third each; FlagScale rounds 8/3 of the hidden size up."""
    neox = found(tmp_path, "neox.yml", NEOX).document["model"]
    flagscale = found(tmp_path, "flagscale.yaml", FLAGSCALE).document["model"]

    assert (neox["ffn_hidden_size"], neox["parallel_blocks"], neox["num_kv_heads"]) == (33024 // 3, True, 8)
    # 4 x 2048 x 2 / 3 = 5461, x 1.3 = 7099, up to a multiple of 256
    assert flagscale["ffn_hidden_size"] == 7168


def test_experts_of_tools_are_as_wide_as_they_say(tmp_path):
    """GPT-NeoX routes to one expert as wide as the MLP, in every layer; Nanotron's shared expert is one expert wide."""
    neox = found(tmp_path, "neox.yml", NEOX.replace('"num-layers": 32,', '"num-layers": 32, "moe_num_experts": 8,'))
    moe = "moe_config: {num_experts: 8, top_k: 2, enable_shared_expert: true, moe_intermediate_size: 1024}"
    text = FILES["nanotron.yaml"].replace("num_hidden_layers: 28", f"num_hidden_layers: 28\n    {moe}")
    nanotron = found(tmp_path, "nanotron.yaml", text.replace("is_llama_config", "is_qwen2_config"))

    names = ("num_experts", "top_k", "expert_ffn_hidden_size", "moe_layer_interval", "shared_ffn_hidden_size")
    assert [neox.document["model"].get(name) for name in names] == [8, 1, 11008, 1, None]
    assert [nanotron.document["model"].get(name) for name in names] == [8, 2, 1024, 1, 1024]


def test_llm_foundry_counts_tokens_and_names_models_of_the_hub(tmp_path):
    """Without ``fsdp_config`` every GPU holds the whole model."""
    text = FILES["foundry.yaml"]
    hub = "model: {name: hf_causal_lm, pretrained_model_name_or_path: meta-llama/Meta-Llama-3-8B}\n"
    plain = f"{text[: text.index('fsdp_config')]}{text[text.index('optimizer') :]}".replace("100ba", "2000000tok")
    job = found(tmp_path, "foundry.yaml", plain).document
    named = f"{text[: text.index('model:')]}{hub}{text[text.index('max_duration') :]}"
    other = found(tmp_path, "foundry.yaml", named).document

    assert (job["strategy"]["sharding"], job["training"]["tokens"]) == ("none", 2_000_000)
    assert (other["model"], other["strategy"]["sharding"]) == ("llama3-8b", "gradients")


def test_a_configuration_of_deepspeed_that_is_null_is_none(tmp_path):
    """Accelerate's own keys then say the stage."""
    text = "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
    text += "deepspeed_config: {zero_stage: 2, deepspeed_config_file: null}\n"

    assert found(tmp_path, "accelerate.yaml", text).document["strategy"]["sharding"] == "gradients"


def test_gpt_neox_has_defaults_of_its_own(tmp_path):
    """FP16, a tied embedding with learned positions, GELU, no ZeRO, no recomputation, one micro-batch a step."""
    text = '{"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "seq_length": 1024,\n'
    text += '"max_position_embeddings": 1024, "train_micro_batch_size_per_gpu": 4}'
    job = found(tmp_path, "plain.yml", text)

    assert figures(job) == ([1, 1, 1, 64, 1, 1, 4], 256, 1024, "fp16", "none", "none", False)
    # 12 layers of 12 h^2 + 13 h, a table of 50,257 words and 1,024 positions, the last norm
    assert parameters(load(job.document).facts.model) == 12 * (12 * 768**2 + 13 * 768) + (50257 + 1024) * 768 + 2 * 768


def test_muon_of_deepspeed_is_muon(tmp_path):
    """Its stages deal whole matrices; Lion is priced as Adam, and that is said."""
    config = '{"train_batch_size": 64, "bf16": {"enabled": true}, "optimizer": {"type": "TYPE"}}'
    here = ("model=llama3-8b", "cluster.device=h100", "cluster.num_devices=16", "training.sequence_length=4096")
    muon, lion = (found(tmp_path, "ds.json", config.replace("TYPE", name), *here) for name in ("Muon", "Lion"))

    assert muon.document["settings"]["optimizer"] == "muon"
    assert "optimizer.type: costed as Adam: two moments." in lion.notes


def test_gpt_neox_merges_the_files_of_a_run(tmp_path):
    """A local_setup.yml beside it has the tokenizer: 50,277 words."""
    (tmp_path / "local_setup.yml").write_text('{"vocab-file": "20B_tokenizer.json", "data-path": "x"}')
    text = NEOX.replace('"vocab_file": "20B_tokenizer.json",', "")
    job = found(tmp_path, "neox.yml", text)

    assert job.document["model"]["vocab_size"] == 50277
    assert any("local_setup.yml in the same folder" in note for note in job.notes)


def test_flagscale_starts_with_an_outer_file(tmp_path):
    """The outer file has the devices and the environment; either file leads to the other."""
    conf = tmp_path / "conf"
    (conf / "train").mkdir(parents=True)
    (conf / "train.yaml").write_text(OUTER)
    (conf / "train" / "mine.yaml").write_text(FLAGSCALE)
    jobs = [import_job(conf / name, [DEVICE]).document for name in ("train.yaml", "train/mine.yaml")]

    assert jobs[0] == jobs[1]
    assert (jobs[0]["cluster"]["num_devices"], jobs[0]["settings"]["allocator"]) == (16, "expandable")


def test_primus_stands_on_files_that_it_names(tmp_path):
    """The model's file counts more than what it extends, the overrides more than both; variables have defaults."""
    plain = found(tmp_path, "primus.yaml", PRIMUS).document
    wide = found(tmp_path, "primus.yaml", PRIMUS, PRIMUS_TP="1").document

    model = load(plain).facts.model
    assert (model.num_layers, model.has_experts) == (16, True)
    assert plain["strategy"]["token_dispatcher"] == "deepep"
    assert (plain["strategy"]["tp"], wide["strategy"]["tp"]) == (2, 1)
    # 16 layers in two ranks, two of each in full
    assert plain["strategy"]["layout"]["full_layers"] == [2, 2]


def test_numbered_layers_that_are_recomputed_are_refused(tmp_path):
    """They lie on ranks that only the layout says."""
    listed = PRIMUS.replace("recompute_method: block", 'recompute_layer_ids: "0,1,5,9"')

    with pytest.raises(SpecError, match=r"recompute_layer_ids: is '0,1,5,9': numbers of layers that are recomputed"):
        found(tmp_path, "primus.yaml", listed)


def test_layers_that_do_not_divide_are_padded_by_primus(tmp_path):
    """17 layers on 2 ranks are 9 and 8."""
    padded = found(tmp_path, "primus.yaml", PRIMUS.replace("lr: 1e-5", "num_layers: 17"))

    assert padded.document["strategy"]["layout"]["layers"] == [9, 8]
    assert "the last has 8" in " ".join(padded.notes)


def test_a_model_of_primus_that_is_not_there_is_asked_for(tmp_path):
    """The hint names the model; with it the overrides are enough."""
    text = PRIMUS.replace("PRIMUS_MODEL:mine", "PRIMUS_MODEL:llama3.1_8B").replace("expert_model_parallel_size: 8", "")
    path = tmp_path / "run.yaml"
    path.write_text(text.replace("use_turbo_deepep: true", ""))
    with pytest.raises(SpecError, match=r"which was not found.*add model=llama3-8b"):
        import_job(path, [DEVICE, "cluster.num_devices=64"])
    job = import_job(path, [DEVICE, "cluster.num_devices=64", "model=llama3-8b"]).document

    assert (job["model"], job["strategy"]["pp"], job["strategy"]["dp"]) == ("llama3-8b", 2, 16)


@in_one_case(("name", "text", "message"), CASES["others"])
def test_other_tools_are_refused_by_their_name(tmp_path, name, text, message):
    """The message says whose it is, what that is, and what is read."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SpecError, match=f"{message}.*Write the job by hand"):
        import_job(path, [DEVICE])


@pytest.mark.parametrize(("name", "change", "message"), CASES["refused"])
def test_what_is_refused_names_the_key(tmp_path, name, change, message):
    """What has no costs, is left open, or may decide the cost and is not known."""
    text = FILES[name].replace(*change)
    assert text != FILES[name]
    with pytest.raises(SpecError, match=message):
        found(tmp_path, name, text)


def test_references_are_those_of_omegaconf():
    """Entries from the root, beside and above, sums, variables with defaults; what nobody says stays as it is."""
    content = {
        "a": {"b": 4, "c": "${.b}", "d": {"e": "${..b}", "f": "${a.b}"}},
        "sum": "${multiply:3, ${a.b}}",
        "text": "x-${a.b}-y",
        "variable": "${TP:8}",
        "environment": "${oc.env:MINE,null}",
        "given": "${SAID:1}",
        "under": "${training.a.b}",
        "open": "${nothing}",
        "must": "${path:??}",
    }
    flat = flat_entries(content, {"SAID": "true"})

    assert [flat[name] for name in ("a.c", "a.d.e", "a.d.f", "sum", "text")] == [4, 4, 4, 12, "x-4-y"]
    assert [flat[name] for name in ("variable", "environment", "given", "under")] == [8, None, True, 4]
    assert [flat[name] for name in ("open", "must")] == ["${nothing}", "${path:??}"]
    with pytest.raises(SpecError, match="refers to itself"):
        flat_entries({"a": "${b}", "b": "${a}"}, {})


@pytest.mark.parametrize(("given", "expected"), [("true", True), ("false", False)])
def test_a_variable_of_model_args_has_the_types_of_yaml(tmp_path, given, expected):
    """``--set X=true`` is a switch that is on, not the word behind it."""
    path = tmp_path / "args.yaml"
    path.write_text(
        "MODEL_ARGS:\n  --num-layers: ${LAYERS}\n  --hidden-size: 1024\n  --num-attention-heads: 16\n"
        "  --seq-length: 2048\n  --micro-batch-size: 1\n  --global-batch-size: 64\n  --bf16: true\n"
        "  --vocab-size: 32000\n  --max-position-embeddings: 2048\n  --use-distributed-optimizer: ${X}\n"
    )
    job = import_job(path, [DEVICE, "cluster.num_devices=8"], {"X": given, "LAYERS": "12"}).document

    assert (job["strategy"]["sharding"] == "optimizer") is expected
    assert job["model"]["num_layers"] == 12


VALUES = ("null", "-1", "[]", "{}", "[1, 2]", "{a: 1}", "true", "???", "${x}", "${.y}", "auto", "1e30", ".nan", "&a 3")


@pytest.mark.sampled(0, 3, 2)  # short files
@pytest.mark.parametrize("name", FILES)
def test_whatever_is_written_is_a_job_or_a_message(tmp_path, name):
    """Files with lines removed, doubled, cut, moved or of other types."""
    chance = random.Random(name)
    for _ in range(15):
        lines = FILES[name].splitlines()
        place = chance.randrange(len(lines))
        key, colon, _ = lines[place].partition(":")
        value = f"{key}{colon} {chance.choice(VALUES)}"
        lines[place : place + 1] = chance.choice([[], [lines[place]] * 2, [lines[place][:-2]], [value], [value, value]])
        try:
            job = found(tmp_path, name, "\n".join(lines))
        except SpecError:
            continue
        load(job.document)


BIG = """{"num_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, "seq_length": 2048, "precision": "bfloat16",
"pos_emb": "rotary", "model_parallel_size": 2, "pipe_parallel_size": 4, "train_batch_size": 1024,
"gradient_accumulation_steps": 32}"""


def test_gpt_neox_derives_the_third_of_batch_micro_batch_and_steps(tmp_path):
    """1,024 sequences in 32 steps on 8 replicas are micro-batches of 4; 5 x 32 x 8 = 1,280 contradict them."""
    job = found(tmp_path, "neox.yml", BIG)
    both = BIG.replace('"train_b', '"train_micro_batch_size_per_gpu": 5, "train_b')

    assert (job.document["strategy"]["mbs"], job.document["training"]["global_batch_size"]) == (4, 1024)
    with pytest.raises(SpecError, match="train_batch_size: is 1024; micro-batch 5 x 32 steps x 8 replicas are 1280"):
        found(tmp_path, "neox.yml", both)
    with pytest.raises(SpecError, match="train_batch_size: is 1000; micro-batch 3 x 32 steps x 8 replicas are 768"):
        found(tmp_path, "neox.yml", BIG.replace("1024", "1000"))


@pytest.mark.parametrize(
    ("method", "layers", "pp", "expected"),
    [
        # of deepspeed 0.19.8: partition_balanced of [0, 1, 44 x 1, 1, 0, 0], in which the functions' names count
        ("type:transformer|mlp", 44, 4, [11, 12, 11, 10]),
        ("type:ParallelTransformerLayerPipe", 44, 4, [11, 11, 11, 11]),
        ("type:transformer|mlp", 32, 2, [16, 16]),
    ],
)
def test_gpt_neox_deals_layers_as_deepspeed_does(tmp_path, method, layers, pp, expected):
    """Layers of each stage, equally many of them written out, too."""
    text = BIG.replace('rs": 44', f'rs": {layers}').replace('"pipe_parallel_size": 4', f'"pipe_parallel_size": {pp}')
    text = text.replace('"seq', f'"pipe_partition_method": "{method}", "seq')
    strategy = found(tmp_path, "neox.yml", text).document["strategy"]

    assert strategy.get("layout", {}).get("layers") == expected


def test_gpt_neox_refuses_other_ways_to_deal_layers(tmp_path):
    """By parameters, which the modules say; a layout of the command says it."""
    text = BIG.replace('"seq', '"pipe_partition_method": "parameters", "seq')
    job = found(tmp_path, "neox.yml", text, "strategy.layout={layers: [10, 12, 12, 10]}")

    assert job.document["strategy"]["layout"]["layers"] == [10, 12, 12, 10]
    with pytest.raises(SpecError, match="pipe_partition_method: is 'parameters'"):
        found(tmp_path, "neox.yml", text)


def test_llamas_feed_forward_of_gpt_neox_is_gated_whatever_its_activation(tmp_path):
    """Three matrices of 2/3 x 4 x 6,144 = 16,384."""
    for more in ("", '"activation": "swiglu", "intermediate_size": 16384, '):
        model = found(tmp_path, "neox.yml", BIG.replace('"seq', f'"mlp_type": "llama", {more}"seq')).document["model"]

        assert (model["gated"], model["ffn_hidden_size"]) == (True, 16384)


def test_younger_keys_of_gpt_neox_are_read_with_a_note(tmp_path):
    """sequence_parallel and context_parallel_size came after the release that is costed."""
    job = found(
        tmp_path, "neox.yml", BIG.replace('"seq', '"sequence_parallel": true, "context_parallel_size": 2, "seq')
    )
    strategy = job.document["strategy"]

    assert (strategy["sequence_parallel"], strategy["cp"], strategy["mbs"]) == (True, 2, 8)
    assert any("sequence_parallel: a key since 2024, costed on gpt-neox-2.0" in note for note in job.notes)


NODES = BIG.replace('"seq', '"num_nodes": 4, "num_gpus": 8, "seq')


@pytest.mark.parametrize(
    ("name", "text", "world"),
    [("nanotron.yaml", FILES["nanotron.yaml"], 16), ("nemo.yaml", NEMO, 64), ("neox.yml", NODES, 32)],
)
def test_devices_of_the_file_that_the_command_contradicts_are_named(tmp_path, name, text, world):
    """The command's number counts, with a note."""
    job = found(tmp_path, name, text, f"cluster.num_devices={2 * world}")

    assert f"The configuration says {world} devices; the command's count" in " ".join(job.notes)


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("neox.yml", BIG.replace('"seq', '"communication_data_type": "fp32", "seq'), "gradients sent in FP32"),
        ("neox.yml", BIG.replace('"seq', '"optimizer": {"type": "OneBitAdam"}, "seq'), "gradients in 1 bit"),
        ("neox.yml", BIG.replace('"seq', '"moe_token_dropping": true, "seq'), "are dropped, costed as if none were"),
        ("foundry.yaml", FILES["foundry.yaml"].replace("decoupled_adamw", "decoupled_lionw"), "Lion does not have"),
        (
            "nemo.yaml",
            NEMO.replace("unheard_of: 3", "fp32_residual_connection: true"),
            "residuals in FP32, costed in 16",
        ),
        ("deepspeed.json", FILES["deepspeed.json"].replace('"unheard_of"', '"sparse_gradients"'), "are sent otherwise"),
    ],
)
def test_what_decides_time_or_memory_is_not_called_a_number(tmp_path, name, text, note):
    """The note says what is costed in its place."""
    assert text not in FILES.values()
    assert note in " ".join(found(tmp_path, name, text).notes)


def test_extra_keys_for_deepspeed_are_refused(tmp_path):
    """They may be any of DeepSpeed's; checkpoints on the host have no costs."""
    with pytest.raises(SpecError, match="past GPT-NeoX"):
        found(tmp_path, "neox.yml", BIG.replace('"seq', '"deepspeed_extra_args": {"zero_hpz": 8}, "seq'))
    text = BIG.replace('"seq', '"activation_checkpointing": {"cpu_checkpointing": true}, "seq')
    with pytest.raises(SpecError, match="cpu_checkpointing"):
        found(tmp_path, "neox.yml", text)


def test_arguments_of_megatron_may_stand_in_yaml_by_their_names(tmp_path):
    """Wrappers keep them so; 64 devices are tp 4 x pp 2 x dp 8, and a word that Megatron-LM does not have is said."""
    sizes = (
        "num_layers: 32\nhidden_size: 4096\nnum_attention_heads: 32\nseq_length: 4096\nvocab_size: 32000\nbf16: true\n"
    )
    batches = "micro_batch_size: 1\nglobal_batch_size: 64\ntrain_iters: 9\nmax_position_embeddings: 4096\nmine: 1\n"
    degrees = "tensor_model_parallel_size: 4\npipeline_model_parallel_size: 2\n"

    job = found(tmp_path, "args.yaml", f"{sizes}{batches}{degrees}")

    assert figures(job)[:3] == ([4, 1, 2, 8, 1, 1, 1], 64, 4096)
    assert any("Not understood" in note and "mine" in note for note in job.notes)
