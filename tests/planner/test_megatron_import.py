"""
Jobs from arguments of Megatron-LM, against the verdicts of its real parser.

``tests/data/megatron_validity_cases.csv`` names 55 argument sets; what they are is written here from their names: 32
layers and heads, 8 key-value heads and 128 sequences of 4,096 tokens, or DeepSeek-V3.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pytest

from costmodel.errors import SpecError
from costmodel.strategy import CudaGraphs, Recompute, Sharding, TokenDispatcher
from planner import estimate, load
from planner.cli import main
from planner.frameworks.megatron.lm import megatron_entries
from planner.frameworks.megatron.model import REFUSED
from planner.frameworks.megatron.options import MEANINGS, options
from planner.frameworks.megatron.read import DATA, from_megatron_lm
from planner.frameworks.megatron.strategy import STRATEGY
from planner.search.runnable import plainest
from planner.verbs.plan import evaluate
from tests.builders_job import a_document
from tests.cases import in_one_case, read_table
from tests.constraints.test_megatron_cases import the_file

SMALL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --max-position-embeddings 8192 --train-iters 1000 "
)
BATCH = "--global-batch-size 128 --seq-length 4096 --bf16 "
LATENT = (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --multi-latent-attention "
    "--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm "
    "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --vocab-size 129280 "
    "--untie-embeddings-and-output-weights --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 "
    "--moe-shared-expert-intermediate-size 2048 --moe-layer-freq ([0]*3+[1]*58) --moe-token-dispatcher-type alltoall "
    "--moe-grouped-gemm --mtp-num-layers 1 --max-position-embeddings 8192 --train-iters 1000 "
)
EXPERTS = "--global-batch-size 8192 --seq-length 4096 --bf16 --expert-tensor-parallel-size 1 "
DSV3 = (
    "--pipeline-model-parallel-size 16 --expert-model-parallel-size 16 --pipeline-model-parallel-layout Et|(tt|)*30mL "
)
OVERLAP = "--overlap-moe-expert-parallel-comm "

CASES = read_table("megatron_import")["cases"]

WHY = read_table("megatron_import")["why"]
"""What our refusal says where the parser refuses."""

NOT_JUDGED = {"ep*etp*pp not dividing world": "the parser misses it; tests/constraints/test_megatron_cases.py"}

OF_DEEPSEEK = (
    "dsv3", "a2a", "delay wgrad", "ep not", "mla + gqa", "recompute mla", "hybrid ep",
)  # fmt: skip
"""How the names of cases about DeepSeek-V3 begin."""


def text_of(name):
    """The arguments of a case; its own come instead of the common ones, and what a shell would expand is quoted."""
    base = LATENT + EXPERTS if name.startswith(OF_DEEPSEEK) else SMALL + BATCH
    own = CASES[name].format(dsv3=DSV3, overlap=OVERLAP).split()
    given = {word for word in own if word.startswith("--")}
    common = [f"--{part}".split() for part in f"{base} --micro-batch-size 1".split("--")[1:]]
    kept = [word for part in common if part[0] not in given for word in part]
    settings = [word for word in own if not word.startswith("--") and "=" in word]
    return " ".join(f"'{word}'" if set(word) & {*"|(*"} else word for word in (*settings, *kept, *own[len(settings) :]))


def broken_rules_of(name):
    """The rules that the imported strategy breaks, on devices of one domain that have enough memory."""
    devices = the_file()[name][0]
    network = f"{{name: nvlink, num_peers: {devices}, bandwidth: 4e11, latency: 1e-6}}"
    cluster = {
        "device": "b200",
        "num_devices": devices,
        "devices_per_node": devices,
        "networks": f"[{network}]",
        "memory_gib": 1e5,
        "host_memory_gib": 1e5,
    }
    imported = from_megatron_lm(text_of(name), [f"cluster.{key}={value}" for key, value in cluster.items()])
    return estimate(load(imported.document), {}, searched=False).broken_rules


# --- the 55 verdicts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_imports_agree_with_the_parser(name):
    """What Megatron-LM takes is taken; what it refuses is refused, or its strategy breaks a rule."""
    megatron_takes_it = the_file()[name][1]

    try:
        said = " ".join(broken_rules_of(name))
    except SpecError as error:
        said = str(error)

    assert (said == "") == megatron_takes_it, said
    assert WHY.get(name, "") in said
    assert (name in WHY) != megatron_takes_it


def test_every_case_is_judged():
    """Each of the 55 is an import here, or has a reason why not."""
    assert {*CASES, *NOT_JUDGED} == {*the_file()}


# --- what is read ------------------------------------------------------------------------------------------


HERE = ["cluster.device=h100-80gb-sxm", "cluster.num_devices=16"]


def strategy_of(more="", overrides=HERE):
    """The strategy of the small model with some arguments more."""
    imported = from_megatron_lm(f"{SMALL} {BATCH} --micro-batch-size 1 {more}", overrides)
    return estimate(load(imported.document), {}, searched=False).plan.strategy


def test_a_model_of_the_catalog_is_named():
    """Llama-3-8B by its sizes alone; the vocabulary need not be told where only one model is like it."""
    with_vocabulary = from_megatron_lm(f"{SMALL} {BATCH} --micro-batch-size 1", HERE)
    latent = from_megatron_lm(f"{LATENT} {EXPERTS} --micro-batch-size 1".split(), HERE)

    assert with_vocabulary.document["model"] == "llama3-8b"
    assert latent.document["model"] == "deepseek-v3"
    assert with_vocabulary.document["training"]["tokens"] == 1000 * 128 * 4096


def test_another_model_is_described():
    """In the words of a job file."""
    text = f"{SMALL} {BATCH} --micro-batch-size 1".replace("--hidden-size 4096", "--hidden-size 2048")

    described = from_megatron_lm(text, HERE).document["model"]

    assert (described["hidden_size"], described["num_kv_heads"], described["norm"]) == (2048, 8, "rms")


def test_squared_relu_is_read_and_written():
    """Nemotron's non-linearity, in the model that is described and in the plan's own arguments."""
    text = f"{SMALL} {BATCH} --micro-batch-size 1".replace("--swiglu", "--squared-relu")

    imported = from_megatron_lm(text, HERE)
    entries = megatron_entries(estimate(load(imported.document), {}, searched=False).plan, "megatron-lm")

    assert (imported.document["model"]["squared_relu"], imported.document["model"]["gated"]) == (True, False)
    assert entries["--squared-relu"] is True
    assert "--swiglu" not in entries


def test_defaults_are_megatrons():
    """No distributed optimizer, no overlap, experts as wide as tensor parallelism, core attention recomputed alone."""
    plain, recomputing = strategy_of(), strategy_of("--recompute-activations")

    assert (plain.sharding, plain.dp_overlap, plain.dp) == (Sharding.NONE, False, 16)
    assert recomputing.recompute == Recompute.of("core_attention")


@pytest.mark.parametrize(("options", "graphs"), read_table("megatron_import")["graphs"])
def test_graphs_are_read(options, graphs):
    """By modules, of whole layers where none is named, or one of everything, in either spelling."""
    assert strategy_of(options).cuda_graphs == CudaGraphs.named(graphs)


def test_unknown_modules_of_graphs_are_refused():
    """By the option that names them."""
    with pytest.raises(SpecError, match=r"--cuda-graph-scope.*'atn'"):
        strategy_of("--cuda-graph-impl transformer_engine --cuda-graph-scope atn")


def test_dispatchers_are_read():
    """The flex dispatcher's default is DeepEP; Megatron-LM's own default is costed as an all-to-all, and says so."""
    text = f"{LATENT} {EXPERTS} {DSV3} --micro-batch-size 1"
    flex = text.replace("--moe-token-dispatcher-type alltoall", "--moe-token-dispatcher-type flex")
    here = ["cluster.device=h100-80gb-sxm", "cluster.num_devices=256"]
    gathered = from_megatron_lm(text.replace("--moe-token-dispatcher-type alltoall", ""), here)
    given = [from_megatron_lm(each, here).document["strategy"] for each in (text, flex)]
    named = [
        from_megatron_lm(f"{flex} --moe-flex-dispatcher-backend {one.text}", here).document["strategy"]
        for one in TokenDispatcher
        if one != TokenDispatcher.ALLTOALL
    ]

    assert [one["token_dispatcher"] for one in given] == ["alltoall", "deepep"]
    assert [one["token_dispatcher"] for one in (given[0], *named)] == [one.text for one in TokenDispatcher]
    assert gathered.document["strategy"]["token_dispatcher"] == "alltoall"
    assert any("allgather" in note for note in gathered.notes)


def test_backends_that_are_no_decision_are_costed_as_hybridep():
    """Those of Megatron-LM's parser that ``TokenDispatcher`` lacks, and the note names each."""
    backend = "--moe-flex-dispatcher-backend"
    text = f"{LATENT} {EXPERTS} {DSV3} --micro-batch-size 1".replace("dispatcher-type alltoall", "dispatcher-type flex")
    for other in {*options()[backend].choices} - {one.text for one in TokenDispatcher}:
        found = from_megatron_lm(
            f"{text} {backend} {other}", ["cluster.device=h100-80gb-sxm", "cluster.num_devices=256"]
        )

        assert found.document["strategy"]["token_dispatcher"] == "hybridep"
        assert any(f"{backend} {other}: costed as hybridep" in note for note in found.notes)


def test_block_recomputation_is_a_layout():
    """Each of four stages recomputes its first three layers."""
    block = "--recompute-granularity full --recompute-method block --recompute-num-layers 3"

    strategy = strategy_of(f"--pipeline-model-parallel-size 4 {block}")

    assert strategy.layout.full_layers == (3, 3, 3, 3)
    assert strategy.recompute == Recompute.NONE


def test_scripts_are_read():
    """Continued lines, comments, quotes, a launcher in front, options with an equals sign."""
    script = (
        "#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\\n"
        f"  {SMALL} \\\n  {BATCH} --micro-batch-size=1 --pipeline-model-parallel-size=4 \\\n"
        '  --pipeline-model-parallel-layout "Et*7|t*9|t*9|t*7L"  # uneven\n'
    )

    imported = from_megatron_lm(script, HERE)

    assert imported.document["strategy"]["layout"] == {"layers": [7, 9, 9, 7]}


def test_what_is_left_out_is_said():
    """Options without influence in one sentence, those with it by name."""
    imported = from_megatron_lm(
        f"{SMALL} {BATCH} --micro-batch-size 1 --lr 1e-4 --data-path a b --hybrid-context-parallel "
        "--context-parallel-size 2 --cp-comm-type a2a --overlap-grad-reduce --use-distributed-optimizer",
        HERE,
    )
    notes = imported.notes

    assert "Without influence on a step's cost: --data-path, --lr, --max-position-embeddings." in notes
    assert any(one.startswith("--hybrid-context-parallel: attention stays within documents") for one in notes)
    assert imported.document["settings"]["cp_comm_type"] == "a2a"
    assert imported.document["strategy"]["cp_overlap"] is False
    assert any("costed as if neither were overlapped" in note for note in notes)


def test_whole_gradients_are_reduced_behind_the_backward_pass():
    """Without the distributed optimizer there are no parameters to gather: one option is the whole overlap."""
    imported = from_megatron_lm(f"{SMALL} {BATCH} --micro-batch-size 1 --overlap-grad-reduce", HERE)
    waiting = from_megatron_lm(f"{SMALL} {BATCH} --micro-batch-size 1", HERE)

    chosen, other = imported.document["strategy"], waiting.document["strategy"]
    assert (chosen["sharding"], chosen["dp_overlap"], other["dp_overlap"]) == ("none", True, False)
    assert not any("costed as if neither were overlapped" in note for note in imported.notes)


def test_the_known_options_exist():
    """Names and groups are those of the parser's table."""
    known, meanings = options(), pd.read_csv(MEANINGS, keep_default_na=False)

    assert {*meanings["option"]} <= {option.name for option in known.values()}
    assert meanings["option"].is_unique
    assert {*meanings["import"]} == {"read", "free", ""}
    assert {*DATA.without_cost} <= {option.group for option in known.values()}


class Asked(dict):
    """Options that remember the names that were asked for."""

    def __init__(self, *options):
        super().__init__(*options)
        self.names = set()

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name):
        self.names.add(name)
        return super().__contains__(name)


OVERLAPS = ("tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "dp_overlap")
FLAGS = dict.fromkeys(("sequence_parallel", "activation_offload", "optimizer_offload", *OVERLAPS), True)
FIELDS = {
    **dict.fromkeys(("tp", "cp", "pp", "ep", "etp", "mbs"), 2),
    **FLAGS,
    "group": 4,
    "sharding": Sharding.OPTIMIZER,
    "recompute": Recompute.of("norms"),
    "token_dispatcher": TokenDispatcher.DEEPEP,
    "cuda_graphs": CudaGraphs.of("attn"),
}
"""Another value than the plainest one of each decision that is read alone; the others are read with the stages."""


def test_each_decision_is_read_as_it_is_written():
    """The table has both directions: each field of a strategy comes back, and what is asked for counts as read."""
    job = a_document("mixtral-8x7b", "16xh100-80gb-sxm", batch=64, sequence=4096, tokens=1e11)
    facts = load(job).facts
    ranks = {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "ep": 2, "vpp": 2}
    strategy = replace(plainest(), **ranks | FIELDS)
    plan = evaluate(load(job), strategy)
    known = {**strategy.decisions(), "model": facts.model}

    for name, value in FIELDS.items():
        written = STRATEGY[name].write
        said = {written: value} if isinstance(written, str) else None
        asked = Asked(said or (written(plan, value) if callable(written) else written[value]))
        beside = Asked({"--expert-model-parallel-size": 2, **asked}) if name == "token_dispatcher" else asked
        assert STRATEGY[name].value(beside, known, []) == value, name
        assert [one for one in beside.names if options()[one].in_import != "read"] == [], name
    assert {name for name, entry in STRATEGY.items() if entry.read or isinstance(entry.write, str)} == {*FIELDS}


@pytest.mark.parametrize("module", ["read", "model", "stages"])
def test_what_an_import_looks_at_counts_as_read(module):
    """Else its notes would say that an option is not costed, or has no influence."""
    source = (MEANINGS.parent / f"{module}.py").read_text(encoding="utf-8")
    reading = source[max(source.find("\ndef read_model("), 0) :]  # what stands before writes
    known = options()

    named = {*re.findall(r'"(--[a-z0-9-]+)"', reading)} - {*REFUSED}

    assert [name for name in named if known[name].in_import != "read"] == []


# --- bad input ---------------------------------------------------------------------------------------------


@in_one_case(("more", "message"), read_table("megatron_import")["wrong_arguments_are_refused"])
def test_wrong_arguments_are_refused(more, message):
    """With the option, what was seen and what is allowed."""
    with pytest.raises(SpecError, match=re.escape(message)):
        strategy_of(more)


@in_one_case(
    ("left_out", "message"),
    [
        ("--num-layers 32", "arguments.--num-layers: is required but missing."),
        ("--seq-length 4096", "arguments.--seq-length: is required but missing."),
        ("--train-iters 1000", "arguments.--train-iters: is required but missing"),
        ("--bf16", "arguments.--bf16: is required, or --fp16"),
        ("--micro-batch-size 1", "arguments.--micro-batch-size: is required but missing."),
    ],
)
def test_missing_arguments_are_named(left_out, message):
    """So that one can add them."""
    text = f"{SMALL} {BATCH} --micro-batch-size 1".replace(left_out, "")

    with pytest.raises(SpecError, match=re.escape(message)):
        from_megatron_lm(text, HERE)


def test_the_vocabulary_decides_between_models_that_differ_in_nothing_else():
    """Llama 2 70B has 32,000 entries, Llama 3 70B 128,256; all other sizes are the same."""
    large = {
        "layers 32": "layers 80",
        "4096": "8192",
        "14336": "28672",
        "heads 32": "heads 64",
        "-size 128256": "-size 32000",
    }
    text = f"{SMALL} {BATCH} --micro-batch-size 1"
    for small, other in large.items():
        text = text.replace(small, other)

    assert from_megatron_lm(text, HERE).document["model"] == "llama2-70b"
    with pytest.raises(SpecError, match=r"--vocab-size: is required: llama2-70b and llama3-70b differ in nothing else"):
        from_megatron_lm(text.replace("--vocab-size 32000", ""), HERE)


def test_the_cluster_is_asked_for():
    """No argument says it; a section that an override gives is a mapping."""
    with pytest.raises(SpecError, match=r"cluster.device: is no argument of Megatron-LM. Add cluster.device="):
        from_megatron_lm(f"{SMALL} {BATCH} --micro-batch-size 1")
    for section in ("cluster", "training"):
        with pytest.raises(SpecError, match=f"^{section}: expected a mapping, got 5."):
            from_megatron_lm(f"{SMALL} {BATCH} --micro-batch-size 1", [f"{section}=5"])


@in_one_case("text", ["", "# nothing", "model: llama3-8b", "pretrain_gpt.py"])
def test_what_is_no_argument_list_is_refused(text):
    """A job file, for example."""
    with pytest.raises(SpecError):
        from_megatron_lm(text, HERE)


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_writes_a_job(tmp_path, capsys):
    """Which ``estimate`` takes; an existing file is kept."""
    path, job = tmp_path / "args.txt", tmp_path / "job.yaml"
    path.write_text(f"{SMALL} {BATCH} --micro-batch-size 1 --tensor-model-parallel-size 2")

    assert main(["import", str(path), *HERE, "-o", str(job)]) == 0
    assert main(["estimate", str(job)]) == 0
    assert "llama3-8b on 16 x h100" in capsys.readouterr().out
    assert main(["import", str(path), *HERE, "-o", str(job)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["import", str(path), *HERE, "-o", str(job), "--force"]) == 0


@pytest.mark.parametrize(
    ("words", "release"),
    [
        ("", "megatron-lm-0.18"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "megatron-lm-0.17"),
        ("--eval-micro-batch-size 1", "megatron-lm-0.18"),
        ("--dataloader-inter-document-masking", "megatron-lm-0.19"),
        ("--ckpt-drop-redundant-extra-state", "megatron-lm-main"),
    ],
)
def test_the_release_that_is_assumed_takes_the_loss_and_the_options(words, release):
    """Core 0.18 and later refuse Transformer Engine's fused loss, and some options are younger still."""
    text = f"{SMALL}{BATCH}--micro-batch-size 1 {words}"

    found = from_megatron_lm(text, ["cluster.device=h100-80gb-sxm", "cluster.num_devices=8"]).document

    assert found["cluster"]["framework"] == release


def test_a_loss_that_the_release_of_other_options_refuses_is_no_script_of_an_older_one():
    """Options of 0.18 and Transformer Engine's fused loss belong to no release."""
    loss = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te --eval-micro-batch-size 1"

    with pytest.raises(SpecError, match=r"--cross-entropy-fusion-impl: is te, which is off since 0\.18"):
        from_megatron_lm(f"{SMALL}{BATCH}--micro-batch-size 1 {loss}", HERE)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--tensor-model-parallel-size 2 --tp-comm-overlap",
            "Tensor-parallel communication is overlapped only together with sequence parallelism.",
        ),
        (
            f"--pipeline-model-parallel-size 2 --num-experts 8 --expert-model-parallel-size 4 {OVERLAP}"
            "--moe-token-dispatcher-type alltoall",
            "In a pipeline (pp above 1), expert-parallel communication is overlapped only with virtual "
            "stages (vpp above 1).",
        ),
    ],
)
def test_what_megatron_refuses_of_a_strategy_is_told(words, sentence):
    """The parser of core 0.18 refuses both (validate_args, TransformerConfig); an import says so on top of the job."""
    found = from_megatron_lm(
        f"{SMALL}{BATCH}--micro-batch-size 1 {words}", ["cluster.device=h200", "cluster.num_devices=8"]
    )

    assert f"Megatron-LM does not run this as it is: {sentence}" in found.notes


def test_dynamic_context_parallelism_is_read_with_lengths():
    """Sequences are dealt where the job says their lengths, which no argument does."""
    imported = from_megatron_lm(
        f"{SMALL} {BATCH} --micro-batch-size 1 --context-parallel-size 2 --hybrid-context-parallel "
        "--max-seqlen-per-dp-cp-rank 1024",
        [*HERE, "training.sequence_lengths={512: 3, 2k: 1}"],
    )

    assert imported.document["training"]["max_seqlen_per_dp_cp_rank"] == 1024
    assert not any("--hybrid-context-parallel" in note for note in imported.notes)


def test_hierarchical_context_parallelism_is_read():
    """The kind and its near ranks, the first of the sizes, are settings; its ring overlaps."""
    imported = from_megatron_lm(
        f"{SMALL} {BATCH} --micro-batch-size 1 --context-parallel-size 4 --cp-comm-type a2a+p2p "
        "--hierarchical-context-parallel-sizes 2 2 --reset-attention-mask",
        HERE,
    )

    assert imported.document["settings"]["cp_comm_type"] == "a2a+p2p"
    assert imported.document["settings"]["cp_a2a_ranks"] == 2
    assert imported.document["strategy"]["cp_overlap"] is True
    assert any("training.sequence_lengths={4k: 70, 32k: 30}" in note for note in imported.notes)
