"""Configurations that runs print or save: found in logs, exact, of ranks that agree; pickles are never executed."""

from __future__ import annotations

import gzip
import json
import pickle
from argparse import Namespace
from enum import Enum
from io import BytesIO
from zipfile import ZipFile

import pytest
import yaml

from costmodel.errors import SpecError
from planner import import_job
from tests.cases import in_one_case, read_table

ARGUMENTS, CONTAINER, TITAN, EXPERTS, LABELS, SECTIONS = read_table("imports_printed").values()

DEVICE = ["cluster.device=h100-80gb-sxm"]
ON_8 = [*DEVICE, "cluster.num_devices=8"]
LENGTH = "training.sequence_length=4096"


def block(**changes):
    """What Megatron-LM prints: names in order, dots up to 48 characters."""
    whole = {**ARGUMENTS, **changes}
    lines = [f"  {name} {'.' * (48 - len(name))} {whole[name]}" for name in sorted(whole, key=str.lower)]
    return [f"{'-' * 24} arguments {'-' * 24}", *lines, f"{'-' * 20} end of arguments {'-' * 21}"]


def imported(tmp_path, lines, entries=DEVICE, **given):
    """A log of these lines."""
    path = tmp_path / "train.log"
    path.write_text("\n".join(["using world size: 16", *lines, "> building the dataset", ""]))
    return import_job(path, entries, given)


def test_a_printed_block_is_the_job(tmp_path):
    """Nothing is asked but the device, which no line names."""
    result = imported(tmp_path, block())

    job, strategy = result.document, result.document["strategy"]
    names = ("tp", "pp", "cp", "dp", "ep", "etp", "vpp", "mbs")
    assert tuple(strategy[name] for name in names) == (2, 2, 1, 4, 4, 1, 1, 2)
    assert (strategy["recompute"], strategy["sharding"]) == ("core_attention+expert_activation", "optimizer")
    assert job["cluster"]["num_devices"] == 16
    assert (job["training"]["global_batch_size"], job["training"]["sequence_length"]) == (64, 4096)
    assert (job["model"]["num_experts"], job["model"]["first_dense_layers"]) == (8, 1)
    assert job["settings"]["gradient_dtype"] == "fp32"


def test_the_log_says_the_device_and_the_release(tmp_path):
    """As the driver's tools and a package name them; of two devices neither is taken."""
    lines = ["| 0  NVIDIA H100 80GB HBM3   On |", "megatron-core version: 0.17.1", *block()]

    cluster = imported(tmp_path, lines, []).document["cluster"]

    assert (cluster["device"], cluster["framework"]) == ("h100-80gb-sxm", "megatron-core-0.17.1")
    with pytest.raises(SpecError, match=r"cluster.device"):
        imported(tmp_path, ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", *block()], [])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The job of the block alone."""
    return imported(tmp_path_factory.mktemp("plain"), block()).document


@pytest.mark.parametrize("label", LABELS)
def test_labels_times_and_colours_are_passed_over(label, plain, tmp_path):
    """With lines of another rank in between."""
    lines = [line for one in block() for line in (LABELS[label].format(one), "[rank7]: W0102 something else ... 3")]

    assert imported(tmp_path, lines).document == plain


@pytest.mark.parametrize("labels", [("[rank0]:", "[rank1]:"), ("", "")])
def test_ranks_that_print_together(labels, tmp_path):
    """Their own rank may differ; what else differs is named."""
    pairs = zip(block(), block(rank=1), strict=True)
    lines = [label + line for pair in pairs for label, line in zip(labels, pair, strict=True)]
    differing = zip(block(), block(rank=1, micro_batch_size=1), strict=True)

    assert imported(tmp_path, lines).document == imported(tmp_path, block()).document
    with pytest.raises(SpecError, match=r"ranks that disagree.*micro_batch_size is '2' and '1'"):
        imported(tmp_path, [label + line for pair in differing for label, line in zip(labels, pair, strict=True)])


def test_one_of_two_runs_is_asked_for(tmp_path):
    """A restart with the same arguments is the same run."""
    other = block(micro_batch_size=1)

    with pytest.raises(SpecError, match=r"has 2 runs \(1 on line 2, 2 on line \d+\).*micro_batch_size is '2' and '1'"):
        imported(tmp_path, [*block(), *other])
    assert imported(tmp_path, [*block(), *other], run="2").document["strategy"]["mbs"] == 1
    assert imported(tmp_path, [*block(), *block()]).document["strategy"]["mbs"] == 2
    with pytest.raises(SpecError, match=r"run: is '3'; .* has 2"):
        imported(tmp_path, [*block(), *other], run="3")


def test_a_block_that_is_cut_says_what_is_missing(tmp_path):
    """At its end, at its beginning, or in the middle, where the degrees do not make the world any more."""
    whole = block(context_parallel_size=2, data_parallel_size=2)

    with pytest.raises(SpecError, match=r"line 2: begins the block .* cut after micro_batch_size: num_layers, .*world"):
        imported(tmp_path, whole[: whole.index("  micro_batch_size ................................ 2") + 1])
    with pytest.raises(SpecError, match=r"ends a block of arguments that begins before the log"):
        imported(tmp_path, whole[9:])
    with pytest.raises(SpecError, match=r"has arguments without hidden_size: some are missing"):
        imported(tmp_path, [line for line in whole if "  hidden_size" not in line])
    with pytest.raises(SpecError, match=r"has arguments without context_parallel_size: some are missing"):
        imported(tmp_path, [line for line in whole if "  context_parallel_size" not in line])
    with pytest.raises(SpecError, match=r"degrees of 8 ranks, and world_size 16"):
        imported(tmp_path, block(data_parallel_size=2))


def test_a_block_of_a_known_release_lacks_no_option(tmp_path):
    """Core 0.16 is the first with activation_func_clamp_value (releases.csv); all since 0.14 print tp_comm_overlap."""
    whole = block(activation_func_clamp_value=None)

    with pytest.raises(SpecError, match=r"has arguments without .*tp_comm_overlap, .* and \d+ more: some are missing"):
        imported(tmp_path, whole)


def test_a_run_that_died_in_its_block_is_begun_again(tmp_path):
    """The first block has no end; a last one that has none says nothing else so far."""
    dead, whole = block()[:20], block(micro_batch_size=4)

    assert imported(tmp_path, [*dead, "Traceback", *whole]).document["strategy"]["mbs"] == 4
    assert imported(tmp_path, [*block(), *dead]).document["strategy"]["mbs"] == 2
    with pytest.raises(SpecError, match="is cut after"):
        imported(tmp_path, [*block(bf16=False, fp16=True), *dead])


def test_names_that_decide_nothing_may_differ_between_ranks(tmp_path):
    """Their host and folder, of ranks with labels or without."""
    one, other = (block(hostname=name, tensorboard_dir=name) for name in "ab")

    mixed = [line for pair in zip(one, other, strict=True) for line in pair]
    assert imported(tmp_path, mixed).document["strategy"]["tp"] == 2
    assert imported(tmp_path, [f"{n}: {line}" for n, lines in enumerate((one, other)) for line in lines])


def test_a_log_may_have_bytes_that_are_no_text(tmp_path):
    """Such as a name in Latin-1."""
    (tmp_path / "train.log").write_bytes("\n".join(["caf\xe9", *block()]).encode("latin-1"))
    assert import_job(tmp_path / "train.log", DEVICE).document["strategy"]["tp"] == 2


@pytest.mark.slow
def test_a_log_without_a_configuration_is_no_script(tmp_path):
    """It may be long, too: a day of lines behind the block is no reason to refuse it."""
    with pytest.raises(SpecError, match=r"train.log: prints no configuration that is known here"):
        imported(tmp_path, ["iteration 1/10", "torchrun pretrain_gpt.py --num-layers 4"])
    assert imported(tmp_path, [*block(), *["[rank0]: iteration 1/10 | lm loss: 1.0E+01 |"] * 30_000])


def test_names_of_older_releases(tmp_path):
    """Recomputation of 2021, a stage of ZeRO under Megatron-LM, a vocabulary that is printed later."""
    older = {"checkpoint_activations": True, "DDP_impl": "local", "encoder_seq_length": 4096, "deepspeed": True}
    unused = {"recompute_granularity": None, "recompute_modules": None, "use_distributed_optimizer": False}
    dense = {"num_experts": None, "moe_layer_freq": 1, "expert_model_parallel_size": 1}
    lines = block(**older, **unused, zero_stage=1.0, vocab_size=None, **dense)
    lines += [" > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)"]

    job = imported(tmp_path, lines).document

    assert (job["strategy"]["recompute"], job["strategy"]["sharding"]) == ("full", "optimizer")
    assert job["model"]["vocab_size"] == 50257


def test_arguments_of_late_2023(tmp_path):
    """Before core 0.5 nothing prints moe_grouped_gemm; recompute_num_layers is 1 whatever the granularity."""
    newer = ("moe_", "expert_tensor_parallel_size", "recompute_modules", "exp_avg_dtype", "attention_backend")
    lines = [line for line in block(recompute_num_layers=1) if not line.lstrip().startswith(newer)]

    strategy = imported(tmp_path, lines).document["strategy"]

    assert (strategy["ep"], strategy["recompute"]) == (4, "core_attention")
    of_core_0_5 = [*lines[:-1], "  moe_router_topk ................................. 2", lines[-1]]
    with pytest.raises(SpecError, match=r"has arguments without moe_grouped_gemm: some are missing"):
        imported(tmp_path, of_core_0_5)


def test_entries_that_the_run_had_otherwise_are_said(tmp_path):
    """The command counts, and 32 devices are twice the replicas of 16."""
    result = imported(tmp_path, block(), [*DEVICE, "cluster.num_devices=32"])

    assert result.document["strategy"]["dp"] == 8
    assert "cluster.num_devices: the run had 16; the command's 32 counts instead." in result.notes
    assert not any("the run had" in note for note in imported(tmp_path, block(), ON_16).notes)


def test_an_argument_that_nobody_knows_is_said(tmp_path):
    """A fork's own: the degrees that are known make the world, so that it is none of them."""
    notes = imported(tmp_path, block(my_parallel_size=4)).notes

    assert "Not understood, no options that are known here: --my-parallel-size." in notes


# --- other frameworks --------------------------------------------------------------------------------------

ON_16 = [*DEVICE, "cluster.num_devices=16"]


@pytest.mark.parametrize("label", ["", "0: ", "[rank0]:"])
def test_a_container_is_read_where_it_is_printed_and_saved(label, tmp_path):
    """Fields of the provider are the model: no name is asked for."""
    text = yaml.safe_dump(CONTAINER)
    (tmp_path / "run_config.yaml").write_text(text)
    (tmp_path / "run_config.json").write_text(json.dumps(CONTAINER))

    saved = import_job(tmp_path / "run_config.yaml", ON_16).document
    assert import_job(tmp_path / "run_config.json", ON_16).document == saved
    printed = imported(
        tmp_path, [label + line for line in ["--- Task Configuration ---", *text.splitlines(), "-" * 34]], ON_16
    )

    assert printed.document == saved
    strategy, model = saved["strategy"], saved["model"]
    assert tuple(strategy[name] for name in ("tp", "cp", "pp", "dp", "vpp", "mbs")) == (2, 2, 2, 2, 2, 1)
    assert (model["num_kv_heads"], model["gated"], model["tied_embeddings"]) == (4, True, False)
    assert (saved["training"]["precision"], saved["settings"]["gradient_dtype"]) == ("bf16", "bf16")


def test_a_container_without_its_end_is_refused(tmp_path):
    """The batch stands in the last section."""
    lines = yaml.safe_dump({name: value for name, value in CONTAINER.items() if name != "train"}).splitlines()

    with pytest.raises(SpecError, match=r"line 2: is a configuration without train: it is cut"):
        imported(tmp_path, lines)
    path = tmp_path / "run_config.yaml"
    path.write_text("\n".join(lines[: lines.index("  num_attention_heads: 16")]))
    with pytest.raises(SpecError, match=r"run_config.yaml: is a configuration without train, optimizer: it is cut"):
        import_job(path, ON_16)


def test_fields_of_a_container_that_nobody_knows_are_said(tmp_path):
    """One whose name may decide a degree is refused; the model's sequence length counts."""
    path, data = tmp_path / "run_config.yaml", {"seq_length": 4096}
    path.write_text(
        yaml.safe_dump({**CONTAINER, "model": {**CONTAINER["model"], "my_thing": 3, "mine": None}, "dataset": data})
    )

    notes = import_job(path, ON_8).text

    assert "Not read, no options of Megatron-LM: model.my_thing." in notes
    assert "dataset.sequence_length is 4096; read is model.seq_length, 8192." in notes
    path.write_text(yaml.safe_dump({**CONTAINER, "model": {**CONTAINER["model"], "my_parallel_size": 3}}))
    with pytest.raises(SpecError, match=r"model\.my_parallel_size: is 3, a field that is not known here.*Take it out"):
        import_job(path, ON_8)


ZERO = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3, "bf16": {"enabled": True}}
ZERO |= {"zero_optimization": {"stage": 2}}


def test_torchtitan_prints_and_saves_json(tmp_path):
    """Lines behind the first have the launcher's label alone; 0.2.2's own defaults are known."""
    (tmp_path / "job.json").write_text(json.dumps(TITAN, indent=2))
    first, *others = f"Running with args: {json.dumps(TITAN, indent=2)}".splitlines()
    lines = [
        f"[rank0]:[titan] 2025-01-02 03:04:05,678 - root - INFO - {first}",
        *(f"[rank0]:{line}" for line in others),
    ]

    saved = import_job(tmp_path / "job.json", ON_16).document
    printed = imported(tmp_path, lines, ON_16).document

    assert printed == saved
    # torchtitan 0.1, train.py: logger.info(f"Running with args: {job_config.to_dict()}")
    of_python = lines[0].partition("{")[0] + str(TITAN)
    assert imported(tmp_path, [of_python], ON_16).document == saved
    assert (saved["strategy"]["tp"], saved["strategy"]["dp"], saved["training"]["global_batch_size"]) == (4, 4, 8)


NONE_SAVED = {"param_init": None, "sharding_config": None}


def titan_layer(**changes):
    """A layer as torchtitan 0.3 saves it: 8 heads of 128, a gated feed-forward of 4096."""
    weight = {"in_features": 1024, "out_features": 4096, "bias": False}
    heads = {"n_heads": 8, "n_kv_heads": 2, "head_dim": 128, "wqkv": weight}
    attention = {**NONE_SAVED, "n_heads": 8, "qkv_linear": heads, "qk_norm": None, "wo": weight}
    forward = {**NONE_SAVED, "w1": weight, "w2": weight, "w3": weight}
    return {**NONE_SAVED, "attention": attention, "feed_forward": forward, "moe": None, **changes}


def titan_json(layers, **changes):
    """Its other sections."""
    model = {"dim": 1024, "vocab_size": 32000, "enable_weight_tying": False, "layers": layers, **NONE_SAVED}
    whole = {
        "model_spec": {"name": "llama3", "flavor": "mine", "model": model},
        "parallelism": {"data_parallel_shard_degree": 8},
        "training": {"local_batch_size": 2, "seq_len": 2048, "steps": 10, "disable_cuda_graphs": True},
        "optimizer": {"param_groups": [{"optimizer_name": "Muon"}]},
        **changes,
    }
    return json.dumps(whole)


def test_torchtitan_saves_the_sizes_of_every_layer(tmp_path):
    """The flavor is nobody's; of experts the dispatcher is said; Muon is read."""
    path = tmp_path / "config.json"
    path.write_text(titan_json([titan_layer(), *[titan_layer(feed_forward=None, moe=EXPERTS)] * 3]))

    result = import_job(path, ON_8)

    model = result.document["model"]
    assert (model["hidden_size"], model["num_layers"], model["num_heads"], model["num_kv_heads"]) == (1024, 4, 8, 2)
    assert (model["num_experts"], model["top_k"], model["first_dense_layers"]) == (16, 4, 1)
    assert (model["ffn_hidden_size"], model["expert_ffn_hidden_size"], model["shared_ffn_hidden_size"]) == (
        4096,
        512,
        768,
    )
    notes = "\n".join(result.notes)
    assert "expert_parallel_comm_backend: hybridep, costed as an all-to-all" in notes
    assert result.document["settings"]["optimizer"] == "muon"


@pytest.mark.parametrize(
    ("changes", "message"),
    SECTIONS,
)
def test_sections_of_torchtitan_that_are_none(changes, message, tmp_path):
    """A message, whatever stands there."""
    path = tmp_path / "config.json"
    path.write_text(titan_json([titan_layer()] * 2, **changes))

    with pytest.raises(SpecError, match=message):
        import_job(path, ON_8)


NARROW = titan_layer(feed_forward={"w1": {"in_features": 1024, "out_features": 64, "bias": False}})


@pytest.mark.parametrize(
    "layers",
    [
        [3],
        [titan_layer(attention={"state": 64})],
        [titan_layer(), titan_layer(mixer={"width": 2})],
        [titan_layer(), NARROW],
        [titan_layer(feed_forward=None, moe=EXPERTS), titan_layer()],
    ],
)
def test_layers_of_torchtitan_that_no_size_describes(layers, tmp_path):
    """The command may name the model."""
    path = tmp_path / "config.json"
    path.write_text(titan_json(layers))

    with pytest.raises(SpecError, match=r"model_spec.model.*not read"):
        import_job(path, ON_8)
    assert import_job(path, [*ON_8, "model=llama3-8b"]).document["model"] == "llama3-8b"


def test_deepspeed_prints_its_replicas_and_its_json(tmp_path):
    """2 sequences x 3 micro-batches x 8 replicas."""
    lines = [f"[2025-01-02 03:04:05,678] [INFO] [config.py:904:print]   world_size {'.' * 19} 8"]
    lines += (
        f"[2025-01-02 03:04:05,678] [INFO] [config.py:906:print]   json = {json.dumps(ZERO, indent=4)}".splitlines()
    )

    job = imported(tmp_path, lines, [*DEVICE, "model=llama3-8b", LENGTH]).document

    assert (job["cluster"]["num_devices"], job["training"]["global_batch_size"]) == (8, 48)
    assert (job["strategy"]["sharding"], job["strategy"]["mbs"]) == ("gradients", 2)
    mixed = [*lines[:4], "NCCL INFO ring", *lines[4:]]
    assert imported(tmp_path, mixed, [*DEVICE, "model=llama3-8b", LENGTH]).document == job
    with pytest.raises(SpecError, match=r"line 3: begins a configuration in JSON that is cut"):
        imported(tmp_path, lines[:-2])


def test_numbers_as_deepspeed_prints_them(tmp_path):
    """Above 1,000 with an exponent, and infinite without quotes: 2,048 sequences of 8 replicas, 256 at once."""
    numbers = {"train_batch_size": 2048, "steps_per_print": float("inf"), "zero_optimization": {"stage": 3}, "x": "inf"}
    text = json.dumps({**ZERO, **numbers, "train_micro_batch_size_per_gpu": 256, "gradient_accumulation_steps": 1})
    printed = text.replace("2048", "2.048000e+03").replace("Infinity", "inf").replace(", ", ", \n    ")
    lines = f"[2025-01-02 03:04:05,678] [INFO] [config.py:906:print]   json = {printed}".splitlines()
    given = ["model=llama3-8b", "training.sequence_length=4096", "cluster.num_devices=8"]

    job = imported(tmp_path, lines, [*DEVICE, *given]).document

    assert (job["training"]["global_batch_size"], job["strategy"]["mbs"]) == (2048, 256)


# --- checkpoints -------------------------------------------------------------------------------------------


class Executed:
    """What a pickle would run."""

    def __reduce__(self):
        """Raise, where somebody loads it."""
        return (exec, ("raise AssertionError('executed')",))


def test_a_checkpoint_is_read_from_text_beside_its_pickles(tmp_path):
    """The newest step's arguments by name; without them the pickle is refused, and not executed."""
    for step in ("iter_0000010", "iter_0000020"):
        (tmp_path / step).mkdir()
        (tmp_path / step / "common.pt").write_bytes(pickle.dumps(Executed()))
    pickled = tmp_path / "iter_0000020/common.pt"

    with pytest.raises(SpecError, match=r"is .pt, a pickle; .* not executed. Give the log of the run's first minute"):
        import_job(pickled, DEVICE)
    with pytest.raises(SpecError, match=r"is a folder without run_config.yaml or args.json"):
        import_job(tmp_path, DEVICE)
    (tmp_path / "iter_0000020/args.json").write_text(json.dumps(ARGUMENTS))
    (tmp_path / "train.log").write_text("\n".join(block()))
    expected = import_job(tmp_path / "train.log", DEVICE).document
    assert import_job(tmp_path, DEVICE).document == import_job(pickled, DEVICE).document == expected


class AttnBackend(Enum):
    """Megatron-LM's enumeration, by its name."""

    unfused = 3


class WithTensors(pickle.Pickler):
    """The pickler of torch.save, which leaves tensors to the archive."""

    def persistent_id(self, obj):
        """Name a tensor."""
        return ("storage", "cpu") if isinstance(obj, bytearray) else None


def saved_bytes(content, protocol):
    """A pickle beside whose tensors it lies."""
    stream = BytesIO()
    WithTensors(stream, protocol).dump(content)
    return stream.getvalue()


def write_zip(path, **members):
    """A zip as torch.save writes it, with these members."""
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"archive/{name.replace('_', '.')}", content)
    return path


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arguments_in_a_checkpoint_are_read_and_nothing_is_loaded(protocol, tmp_path):
    """The pickle's instructions say plain values; what it would call is not called."""
    given = {**ARGUMENTS, "attention_backend": AttnBackend.unfused, "data": Executed(), "timers": {"a": [Executed()]}}
    given |= {"kind": Executed, "rng": bytearray(b"x")}
    saved = {"first": Executed(), "args": Namespace(**given), "iteration": 10, "last": (1.5, {2}, b"x", 2**70)}
    (tmp_path / "iter_0000010").mkdir()
    path = write_zip(tmp_path / "iter_0000010/common.pt", data_pkl=saved_bytes(saved, protocol))
    (tmp_path / "train.log").write_text("\n".join(block(attention_backend="AttnBackend.unfused")))

    expected = import_job(tmp_path / "train.log", DEVICE).document
    assert import_job(path, DEVICE).document == import_job(path.parent, DEVICE).document == expected
    assert import_job(tmp_path, DEVICE).notes[0] == f"Read from {path}, which is not loaded."
    assert expected["settings"]["attention"] == "unfused"


@in_one_case(
    "content",
    [
        pickle.dumps(Executed()),
        pickle.dumps({"args": Executed()}),
        pickle.dumps({"args": Namespace(num_layers=2)})[:-4],
        b"\x80\x02}(\x8c\x04args]\x94h\x00au.",
        b"\x80\x02" + b"(" * 9 + b"tttt.",
        b"\x80\x022.",
        b"",
    ],
)
def test_a_pickle_without_arguments_is_refused(content, tmp_path):
    """Cut, with an object in their place, or no pickle; the message says what to give."""
    for path in (write_zip(tmp_path / "a.pt", data_pkl=content), tmp_path / "b.pt"):
        if path.name == "b.pt":
            path.write_bytes(content)
        with pytest.raises(SpecError, match=r"holds no arguments of Megatron-LM.*Give the log"):
            import_job(path, DEVICE)


def test_text_in_a_zip_is_read(tmp_path):
    """The arguments by name, whatever pickles lie beside them."""
    path = write_zip(tmp_path / "a.pt", data_pkl=pickle.dumps(Executed()), args_json=json.dumps(ARGUMENTS))

    assert import_job(path, DEVICE).document["strategy"]["ep"] == 4


@pytest.mark.parametrize("name", ["evil.pkl", "evil.log", "evil.yaml"])
def test_text_beside_a_pickle_of_no_checkpoint_is_another_run(name, tmp_path):
    """It is not read in its place."""
    (tmp_path / name).write_bytes(pickle.dumps(Executed()))
    (tmp_path / "args.json").write_text(json.dumps(ARGUMENTS))

    with pytest.raises(SpecError, match="Pickles are code and are not executed"):
        import_job(tmp_path / name, DEVICE)


def test_a_log_may_be_compressed(tmp_path):
    """As schedulers keep old ones; one that is cut is no text."""
    text = gzip.compress("\n".join(block()).encode())
    (tmp_path / "train.log.gz").write_bytes(text)
    (tmp_path / "cut.log.gz").write_bytes(text[: len(text) // 2])

    assert import_job(tmp_path / "train.log.gz", DEVICE).document["strategy"]["tp"] == 2
    with pytest.raises(SpecError, match="is not text"):
        import_job(tmp_path / "cut.log.gz", DEVICE)


def test_a_refused_script_asks_for_the_log(tmp_path):
    """Where the log would say what the script leaves open; a model that is not known is the log's as well."""
    path = tmp_path / "run.sh"
    path.write_text("torchrun pretrain_gpt.py $(python make_arguments.py)\n")

    with pytest.raises(SpecError, match=r"Or give the log of the run's first minute"):
        import_job(path, ON_16)
    path.write_text("torchrun pretrain_t5.py --num-layers 4\n")
    with pytest.raises(SpecError, match=r"trains T5, [^\n]*alone\.$"):
        import_job(path, ON_16)
