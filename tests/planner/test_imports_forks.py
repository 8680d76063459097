"""Scripts of Megatron-LM's forks and older releases: what their options meant there."""

from __future__ import annotations

import csv
import random

import pytest

from benchmarks.imports.mutations import mutated
from costmodel.errors import SpecError
from planner import import_job, load
from planner.frameworks.imports.bridge.overrides import bridge_job
from planner.frameworks.imports.documents import ROOM
from planner.frameworks.megatron.options import options, split_options
from tests.cases import in_one_case, read_table

CASES = read_table("imports_forks")

DEVICE = "cluster.device=h100-80gb-sxm"

SIZES = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--vocab-size 50257 --micro-batch-size 1 --global-batch-size 64 --train-iters 100"
)


def imported(tmp_path, options_of, *entries, front="", sizes=SIZES, number=16, **given):
    """A script that starts these options on some devices."""
    path = tmp_path / "run.sh"
    launch = f"torchrun --nproc_per_node 8 --nnodes {number // 8}"
    path.write_text(f"{front}\n{launch} pretrain_gpt.py {sizes} {options_of}\n")
    return import_job(path, [DEVICE, *entries], given)


def notes_of(job):
    """All notes as one text."""
    return "\n".join(job.notes)


# --- tables ------------------------------------------------------------------------------------------------


def rows():
    """Rows of the table of forks."""
    with (ROOM / "forks.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_what_options_mean_are_options_of_megatron_lm():
    """A misspelled one would be refused where a user has the option of a fork."""
    words = [word for row in rows() if row["meaning"] == "means" for word, _ in split_options(row["why"].split())]

    assert set(words) <= {*options()}


def test_rows_say_what_they_are():
    """One of three meanings, a reason, and whose option it is; no option of Megatron-LM is passed over as a fork's."""
    assert {row["meaning"] for row in rows()} == {"ignored", "means", "refused"}
    assert all(row["of"] and (row["why"] or row["meaning"] == "means") for row in rows())
    assert not [row["option"] for row in rows() if row["meaning"] == "ignored" and row["option"] in options()]


# --- older spellings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "entry", "value"), CASES["older"])
def test_older_words_mean_what_they_meant(text, entry, value, tmp_path):
    """Decisions of the job, as the forks' own parsers and engines have them."""
    assert imported(tmp_path, f"--bf16 {text}").document["strategy"][entry] == value


def test_bf16_without_zero_shards_its_states_under_deepspeed(tmp_path):
    """BigScience: "bf16 must use z0! it implements its own zero stage 1 equivalent"; FP16 has no such optimizer."""
    narrow, half = (imported(tmp_path, f"--{one} --deepspeed --zero-stage 0") for one in ("bf16", "fp16"))

    assert narrow.document["strategy"]["sharding"] == "optimizer"
    assert "BF16_Optimizer" in notes_of(narrow)
    assert half.document["strategy"]["sharding"] == "none"


def test_the_stage_stands_in_the_configuration_that_the_script_writes(tmp_path):
    """A here-document is DeepSpeed's file; where there is none, the stage is stated as assumed."""
    config = 'C=./ds.$JOB.json\ncat <<EOT > $C\n{"zero_optimization": {"stage": 2}}\nEOT'
    written = imported(tmp_path, "--fp16 --deepspeed --deepspeed_config $C", front=config)
    unwritten = imported(tmp_path, "--fp16 --deepspeed --deepspeed_config other.json")

    assert written.document["strategy"]["sharding"] == "gradients"
    assert unwritten.document["strategy"]["sharding"] == "none"
    assert "'other.json' is not read: ZeRO stage 0 is assumed" in notes_of(unwritten)


@pytest.mark.parametrize("text", ["--position-embedding-type alibi", "--use-alibi-mask"])
def test_alibi_has_no_positions(text, tmp_path):
    """Neither a table of positions nor rotations: a bias on the scores, which is said."""
    job = imported(tmp_path, f"--bf16 {text}")

    model = load(job.document).facts.model
    assert (model.learned_positions, model.layers[0].attention.rotary) == (0, False)
    assert "a bias on the scores" in notes_of(job)


def test_a_gate_doubles_the_first_matmul_of_bigscience(tmp_path):
    """Four times the hidden size is left, where Megatron-LM's --swiglu makes it two thirds of that."""
    model = load(imported(tmp_path, "--fp16 --glu-activation geglu").document).facts.model

    assert (model.layers[0].feed_forward.gated, model.layers[0].feed_forward.ffn_hidden_size) == (True, 8192)


# --- experts -----------------------------------------------------------------------------------------------


def test_experts_of_megatron_deepspeed_are_in_every_second_layer(tmp_path):
    """--expert-interval 2 and --topk 1 are its defaults; expert parallelism has a name of its own."""
    job = imported(tmp_path, "--fp16 --num-experts 16 --moe-expert-parallel-size 8 --deepspeed")

    model = load(job.document).facts.model
    routed = [layer.feed_forward for layer in model.layers if hasattr(layer.feed_forward, "num_experts")]
    assert (len(routed), routed[0].num_experts, routed[0].top_k) == (12, 16, 1)
    assert job.document["strategy"]["ep"] == 8
    assert "--expert-interval 2 --topk 1" in notes_of(job)


def test_one_expert_is_a_dense_model(tmp_path):
    """Scripts of Megatron-DeepSpeed say --num-experts 1 for dense models."""
    job = imported(tmp_path, "--fp16 --num-experts 1 --moe-expert-parallel-size 1 --deepspeed")

    assert not load(job.document).facts.model.has_experts


def test_dense_layers_in_front_and_shared_experts_of_mindspeed(tmp_path):
    """Three dense layers of 24; two shared experts of 512 are one of 1,024."""
    text = (
        "--bf16 --disable-bias-linear --swiglu --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512 "
        "--n-shared-experts 2 --first-k-dense-replace 3 --moe-layer-freq 1"
    )
    model = load(imported(tmp_path, text).document).facts.model

    routed = [layer.feed_forward for layer in model.layers if hasattr(layer.feed_forward, "num_experts")]
    assert len(routed) == 21
    assert routed[0].shared_ffn_hidden_size == 1024


def test_layers_without_computation_leave_gaps_in_stages(tmp_path):
    """Of 24 places two are empty: 22 layers, in four chunks of six places 6, 6, 5 and 5."""
    text = "--bf16 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 6 --noop-layers 13,23"
    job = imported(tmp_path, text)

    assert load(job.document).facts.model.num_layers == 22
    assert job.document["strategy"]["vpp"] == 2
    assert job.document["strategy"]["layout"]["layers"] == [6, 6, 5, 5]


def test_embedding_and_loss_count_as_layers_of_bigscience(tmp_path):
    """22 layers, the embedding and the loss are six places on each of four stages (tr11-176B: 70 layers on 12)."""
    sizes = SIZES.replace("--num-layers 24", "--num-layers 22")
    text = "--bf16 --pipeline-model-parallel-size 4 --pp-partition-method 'type:transformer|embedding'"
    job = imported(tmp_path, text, sizes=sizes)

    assert "Layers on stages: 5, 6, 6, 5" in notes_of(job)


def test_gemma_2_of_mindspeed_is_gemma_2(tmp_path):
    """A window in every other layer and four norms in each, which Megatron-LM's options cannot say."""
    text = (
        "--bf16 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope --post-norm "
        "--ffn-hidden-size 8192 --kv-channels 128 --group-query-attention --num-query-groups 4 "
        "--interleave-sliding-window 1024 --spec mindspeed_llm.tasks.models.spec.gemma2_spec layer_spec"
    )
    model = load(imported(tmp_path, text).document).facts.model

    assert [layer.attention.window for layer in model.layers[:4]] == [1024, None, 1024, None]
    assert model.layers[0].num_norms == 4


# --- refused -----------------------------------------------------------------------------------------------


@in_one_case(("text", "message"), CASES["refused"])
def test_what_has_no_costs_is_refused_by_its_name(text, message, tmp_path):
    """With the true reason, not with that of another option."""
    with pytest.raises(SpecError) as refused:
        imported(tmp_path, f"--bf16 {text}")

    assert message in str(refused.value)


def test_sparse_attention_over_few_tokens_is_costed_as_dense(tmp_path):
    """The indexer keeps 2,048 tokens, and a sequence has no more; another script may have said the precision."""
    job = imported(tmp_path, "--enable-dsa-indexer", "training.precision=fp16")

    assert job.document["training"]["precision"] == "fp16"
    assert "--enable-dsa-indexer, sparse attention: costed as dense over 2,048 tokens" in notes_of(job)


def test_unknown_options_are_named_and_asked_for_where_something_is_missing(tmp_path):
    """The words in an option's name say nothing; a size that nothing says may be what an unknown option says."""
    job = imported(tmp_path, "--bf16 --log-batch-parallel-recompute-shard 3")
    with pytest.raises(SpecError, match=r"--seq-length: is required but missing.*may say it: --my-length"):
        imported(tmp_path, "--bf16 --my-length 4096", sizes=SIZES.replace("--seq-length 2048", ""))

    assert "no options that are known here: --log-batch-parallel-recompute-shard" in notes_of(job)


# --- scripts -----------------------------------------------------------------------------------------------


def test_a_megatron_script_stays_one_on_other_makers_devices(tmp_path):
    """The device decides the release; DeepSpeed, its own software, has no pipeline beside ZeRO."""
    job = imported(tmp_path, "--bf16 --pipeline-model-parallel-size 2", "cluster.device=ascend-910b")

    assert job.document["cluster"]["framework"].startswith("megatron-lm-")
    assert job.document["strategy"]["pp"] == 2


@pytest.mark.parametrize("command", ["cp a/pretrain_gpt.py .", "sed -i s/a/b/ pretrain_gpt.py", "vim pretrain_gpt.py",
                                     "grep python pretrain_gpt.py", "dos2unix pretrain_gpt.py"])  # fmt: skip
def test_commands_that_name_the_program_start_none(command, tmp_path):
    """What python, torchrun and their kin start is a launch."""
    job = imported(tmp_path, "--bf16", front=command)

    assert job.document["cluster"]["num_devices"] == 16
    assert "trainings" not in notes_of(job)


ARGUMENTS = """
SIZE=$1; LR=$2; LOAD=$3; AC=$4
if [ $SIZE = 1B ]; then LAYERS=24; elif [ $SIZE = 2B ]; then LAYERS=48; fi
if [ $LOAD != none ]; then load_options="--load $LOAD"; fi
if [ $AC = full ]; then ac="--recompute-granularity full --recompute-method uniform"
elif [ $AC = none ]; then ac=" "; fi
"""


def test_arguments_that_decide_nothing_are_not_asked_for(tmp_path):
    """The learning rate and the checkpoint may be anything; the size and the recomputation may not."""
    sizes = SIZES.replace("--num-layers 24", "--num-layers $LAYERS --lr $LR $load_options $ac")
    with pytest.raises(SpecError) as refused:
        imported(tmp_path, "--bf16", front=ARGUMENTS, sizes=sizes)
    job = imported(tmp_path, "--bf16", front=ARGUMENTS, sizes=sizes, **{"1": "2B", "4": "full"})

    assert "cannot do without $1 (line 3), $4 (line 5, 6)" in str(refused.value)
    assert load(job.document).facts.model.num_layers == 48
    assert job.document["strategy"]["recompute"] == "full"


def test_a_variable_of_a_branch_that_is_not_taken_is_empty(tmp_path):
    """Bash has nothing there, and nobody is asked for the script's own variable."""
    front = 'if [ "${OFFLOAD:-no}" = yes ]; then offload="--optimizer-cpu-offload"; fi'

    job = imported(tmp_path, "--bf16 $offload --save $ROOT/x-$STAMP", front=front)

    assert job.document["strategy"]["optimizer_offload"] is False


def test_scripts_of_other_tools_are_answered_by_their_name(tmp_path):
    """No reason of ours stands in the way, but another tool's language."""
    path = tmp_path / "train.py"
    path.write_text("from olmo_core.config import DType\n\nBATCH = 4\n")

    with pytest.raises(SpecError, match="is a configuration of OLMo-core, which is not read"):
        import_job(path, [DEVICE])


def test_mutated_scripts_import_or_are_refused(tmp_path):
    """Dropped lines, open quotation marks, other numbers: a message, never a traceback."""
    chance, became = random.Random(7), set()
    launch = (
        f'{ARGUMENTS}\nOPTS=" \\\n  --bf16 $ac \\\n"\ntorchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} $OPTS > log\n'
    )
    path = tmp_path / "run.sh"
    for _ in range(30):
        path.write_text(mutated(launch, chance))
        try:
            became.add(bool(import_job(path, [DEVICE], {"1": "1B", "4": "full"}).document))
        except SpecError as refused:
            became.add(bool(refused.problem) and "refused")

    assert became == {True, "refused"}


def test_overlap_of_mindspeed_is_no_kernel(tmp_path):
    """COC and MC2 hide tensor-parallel communication, O2 keeps moments of 16 bits: the note says what is costed."""
    notes = notes_of(imported(tmp_path, "--bf16 --use-ascend-coc --coc-mode 1 --o2-optimizer"))

    assert "overlaps tensor-parallel communication with matmuls: costed as exposed" in notes
    assert "moments and gradients in 16 bits: costed in FP32" in notes


# --- what forks count otherwise ----------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "noops", "expected"), [(64, "", 8), (64, "--noop-layers 61,62,63", 8), (48, "", 8)])
def test_mindspeed_counts_recomputed_layers_of_a_rank(layers, noops, expected, tmp_path):
    """Eight of a rank are four of each of its two chunks (MindSpeed, should_recompute_activation)."""
    words = (
        f"--bf16 --num-layers {layers} --pipeline-model-parallel-size 4 "
        f"--num-layers-per-virtual-pipeline-stage {layers // 8} "
        f"--recompute-granularity full --recompute-method block --recompute-num-layers 8 {noops}"
    )
    flag = "--enable-recompute-layers-per-pp-rank"

    assert imported(tmp_path, f"{words} {flag}").document["strategy"]["layout"]["full_layers"] == [expected] * 4
    with pytest.raises(SpecError, match=r"--recompute-num-layers: is 7 for a rank of 2 chunks"):
        imported(tmp_path, f"{words} {flag} --recompute-num-layers 7")


LLAMA = "--swiglu --disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights --bf16"
LLAMA_SIZES = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 "
    "--position-embedding-type rope --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64"
)


def test_the_tokenizer_says_the_vocabulary_before_a_model_that_is_alike(tmp_path):
    """GPT-2's has 50,257 entries, whatever Llama 2 has of the same layers."""
    words = f"{LLAMA} --tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json"

    job = imported(tmp_path, words, sizes=LLAMA_SIZES)

    assert job.document["model"]["vocab_size"] == 50257
    assert "llama2-7b" not in notes_of(job)
    assert imported(tmp_path, LLAMA, sizes=LLAMA_SIZES).document["model"] == "llama2-7b"


@pytest.mark.parametrize(
    ("layers", "stages", "method"),
    [
        (64, 8, "type:transformer|embedding"),
        (30, 4, "type:transformer"),
        (30, 4, ""),  # the model's own default
    ],
)
def test_deepspeed_deals_layers_that_do_not_divide(layers, stages, method, tmp_path):
    """No stage has two modules more than another one; an embedding counts as one where it is named."""
    method = f"--pp-partition-method '{method}'" if method else ""
    words = f"--bf16 --deepspeed --num-layers {layers} --pipeline-model-parallel-size {stages} {method}"

    job = imported(tmp_path, words)

    found = job.document["strategy"]["layout"]["layers"]
    modules = [number + ("embedding" in method and place in (0, stages - 1)) for place, number in enumerate(found)]
    assert sum(found) == layers
    assert max(modules) - min(modules) == 1
    assert f"{layers} layers do not divide over {stages} pipeline ranks: dealt as" in notes_of(job)


@pytest.mark.parametrize(("words", "front", "release"), CASES["releases"])
def test_what_only_older_releases_have_says_the_release(words, front, release, tmp_path):
    """The nearest entry of the catalog, with a note; the command may name another one."""
    job = imported(tmp_path, words, front=front)

    assert job.document["cluster"]["framework"] == release
    assert f"is of older releases: {release} is assumed" in notes_of(job)
    assert "No argument says the release" not in notes_of(job)
    other = imported(tmp_path, words, "cluster.framework=megatron-lm-0.18", front=front)
    assert other.document["cluster"]["framework"] == "megatron-lm-0.18"


def test_a_key_of_deepspeed_is_named_where_it_says_the_offload(tmp_path):
    """And no option that the script does not have."""
    front = 'cat <<E > ds.json\n{"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}\nE'

    job = imported(tmp_path, "--bf16 --deepspeed --deepspeed_config ds.json", front=front)

    assert job.document["strategy"]["optimizer_offload"] is True
    assert "zero_optimization.offload_optimizer of 'ds.json'" in notes_of(job)
    assert "--cpu-optimizer" not in notes_of(job)


def test_a_hybrid_of_context_has_the_ranks_of_each_level(tmp_path):
    """MindSpeed's all-to-all over 2 of 4 ranks leaves a ring of 2; Megatron-LM names both sizes."""
    hybrid = "--bf16 --context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp"

    assert imported(tmp_path, f"{hybrid} 2").document["strategy"]["cp"] == 4
    with pytest.raises(SpecError, match="are 3 x 1, whose product is not --context-parallel-size 4"):
        imported(tmp_path, f"{hybrid} 3")


def test_a_recipe_whose_model_megatron_lm_has_no_options_for_keeps_its_model():
    """Gemma 2 has four norms in a layer: its recipe of Megatron-Bridge is read by the model's name."""
    cluster = ["cluster.device=h100-80gb-sxm", "cluster.num_devices=64"]

    imported = bridge_job({}, "gemma2_27b_pretrain_config", cluster, {})

    assert imported.document["model"] == "gemma-2-27b"
