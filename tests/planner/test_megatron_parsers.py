"""
Arguments that Megatron-LM's own parsers judge otherwise than one would think, and differently from release to release.

Verdicts are those of the parsers of core 0.17.1, 0.18.2, 0.19.0 and main of 2026-08-22; lines are of 0.17.1.
"""

from __future__ import annotations

import re

import pytest

from costmodel.errors import SpecError
from planner import load
from planner.frameworks.megatron.model import frequency_flags
from planner.frameworks.megatron.read import from_megatron_lm
from tests.cases import in_one_case, read_table

WORLD = ["cluster.device=h100-80gb-sxm", "cluster.num_devices=16"]
SMALL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --max-position-embeddings 8192 --train-iters 1000 "
)
DEGREES = "--global-batch-size 128 --seq-length 4096 --bf16 --micro-batch-size 1 "


# --- what the parser takes and does nothing with -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "note"), read_table("megatron_parsers")["options_without_effect_are_taken_and_said"]
)
def test_options_without_effect_are_taken_and_said(options, note):
    """As Megatron-LM's own parser takes them (0.17.1 to main): the job is that without them."""
    plain, given = from_megatron_lm(f"{SMALL}{DEGREES}", WORLD), from_megatron_lm(f"{SMALL}{DEGREES}{options}", WORLD)

    assert given.document == plain.document
    assert any(text.endswith(note) for text in given.notes)


@pytest.mark.parametrize(
    ("options", "recompute"),
    [
        ("--recompute-activations --recompute-granularity full", "core_attention"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --recompute-modules mlp",
            "full",
        ),
    ],
)
def test_the_stronger_word_of_recomputation_counts(options, recompute):
    """``--recompute-activations`` sets the granularity to selective (arguments.py:498); full has no modules."""
    assert from_megatron_lm(f"{SMALL}{DEGREES}{options}", WORLD).document["strategy"]["recompute"] == recompute


def test_gradients_in_bf16_overrule_those_in_fp32():
    """The parser takes both, and switches the accumulation in FP32 off (arguments.py:1001)."""
    options = "--grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32"

    found = from_megatron_lm(f"{SMALL}{DEGREES}{options}", WORLD)

    assert found.document["settings"]["gradient_dtype"] == "bf16"
    assert "--accumulate-allreduce-grads-in-fp32: overruled by --grad-reduce-in-bf16." in found.notes


LATER = "Megatron Core 0.18 and later refuses these options: "
EARLIER = "Megatron Core 0.17 refuses these options: "


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", LATER),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope full_iteration_inference", LATER),
        ("--optimizer muon --overlap-grad-reduce", EARLIER),
        ("--optimizer dist_muon --use-distributed-optimizer", EARLIER),
        ("--recompute-granularity selective --recompute-modules gdn_norm_out", "Megatron Core 0.17 to 0.18 refuses"),
    ],
)
def test_what_some_releases_refuse_is_said(options, note):
    """By their own parsers: 0.17.1, 0.18.2, 0.19.0 and main."""
    notes = from_megatron_lm(f"{SMALL}{DEGREES}{options}", WORLD).notes

    assert any(text.startswith(note) for text in notes)


@in_one_case(("options", "message"), read_table("megatron_parsers")["what_every_parser_refuses_is_refused"])
def test_what_every_parser_refuses_is_refused(options, message):
    """0.17.1, 0.18.2, 0.19.0 and main do."""
    length = "" if "--seq-length" in options else "--seq-length 4096 "
    rest = "--global-batch-size 128 --bf16 --micro-batch-size 1 "

    with pytest.raises(SpecError, match=re.escape(message)):
        from_megatron_lm(f"{SMALL}{rest}{length}{options}", WORLD)


# --- hybrids: the pattern says how many layers there are ---------------------------------------------------------

HYBRID = (
    "--hidden-size 2048 --num-attention-heads 16 --group-query-attention --num-query-groups 4 --kv-channels 128 "
    "--ffn-hidden-size 8192 --squared-relu --normalization RMSNorm --disable-bias-linear "
    "--position-embedding-type none --untie-embeddings-and-output-weights --vocab-size 131072 "
    "--max-position-embeddings 8192 --train-iters 1000 "
)


@pytest.mark.parametrize("name", ["--hybrid-layer-pattern", "--hybrid-override-pattern"])
@pytest.mark.parametrize(("pattern", "layers"), [("M*-M", 4), ("M-M*-M-MM-", 10)])
def test_the_pattern_overrules_the_number_of_layers(name, pattern, layers):
    """From 0.17 on (arguments.py:634): shorter or longer, the parser warns and goes on."""
    found = from_megatron_lm(f"{HYBRID}{DEGREES} --num-layers 8 {name} {pattern}", WORLD)

    assert found.document["model"]["num_layers"] == layers
    assert any(text.startswith("--num-layers 8: overruled by the pattern, which has") for text in found.notes)


def test_the_pattern_and_the_number_agree_in_older_releases():
    """0.14 builds no model otherwise (ssm/mamba_hybrid_layer_allocation.py:77)."""
    with pytest.raises(SpecError, match="is of 4 layers, --num-layers says 8"):
        from_megatron_lm(
            f"{HYBRID}{DEGREES} --num-layers 8 --hybrid-override-pattern M*-M",
            [*WORLD, "cluster.framework=megatron-lm-0.14"],
        )


def test_stages_of_a_pattern_may_be_several_per_rank():
    """Four stages on two ranks are two chunks each; no layer is lost."""
    found = from_megatron_lm(
        f"{HYBRID}{DEGREES} --pipeline-model-parallel-size 2 --hybrid-layer-pattern M-|M*|-M|M-", WORLD
    ).document["strategy"]

    assert (found["pp"], found["vpp"]) == (2, 2)


def test_multi_token_prediction_of_a_hybrid_is_described():
    """Behind slashes, a layer of two blocks each; the pattern counts more than ``--mtp-num-layers``."""
    found = from_megatron_lm(f"{HYBRID}{DEGREES} --mtp-num-layers 1 --hybrid-layer-pattern M*-M/*-/*-", WORLD)

    assert (found.document["model"]["mtp_layers"], found.document["model"]["mtp_pattern"]) == (2, "*-")
    assert found.document["settings"]["mtp_layers"] == 2


# --- the gated delta net -----------------------------------------------------------------------------------------

NEXT = (
    "--num-layers 48 --hidden-size 2048 --ffn-hidden-size 5120 --num-attention-heads 16 --group-query-attention "
    "--num-query-groups 2 --kv-channels 256 --qk-layernorm --attention-output-gate --num-experts 512 "
    "--moe-ffn-hidden-size 512 --moe-shared-expert-intermediate-size 512 --moe-shared-expert-gate --moe-router-topk 10 "
    "--moe-grouped-gemm --disable-bias-linear --normalization RMSNorm --swiglu --untie-embeddings-and-output-weights "
    "--position-embedding-type rope --vocab-size 151936 --max-position-embeddings 8192 --train-iters 1000 "
)
VARIANT = "--experimental-attention-variant gated_delta_net "


@pytest.mark.parametrize("frequency", ["4", "'([1]*3+[0]*1)*12'", "'([1,1,1,0]*12)'"])
@pytest.mark.parametrize("variant", [VARIANT, "--experimental-attention-variant gdn "])
def test_qwen3_next_is_named(frequency, variant):
    """Every fourth layer has softmax attention; sizes of the others are the parser's defaults, as Qwen3-Next's."""
    found = from_megatron_lm(f"{NEXT}{DEGREES}{variant}--linear-attention-freq {frequency}", WORLD)

    assert found.document["model"] == "qwen3-next-80b-a3b"


def test_another_gated_delta_net_is_described():
    """With its own sizes, dense; the job has layers of both kinds."""
    dense = re.sub(r"--(num-experts|moe-\S+)( [0-9]+)? ", "", NEXT).replace("--num-layers 48", "--num-layers 6")
    sizes = "--linear-num-key-heads 4 --linear-num-value-heads 8 --linear-key-head-dim 64 --linear-value-head-dim 32 "

    job = load(from_megatron_lm(f"{dense}{DEGREES}{VARIANT}{sizes}--linear-attention-freq 3", WORLD).document)

    kinds = [type(layer.attention).__name__ for layer in job.facts.model.layers]
    assert kinds == ["LinearAttention", "LinearAttention", "Attention"] * 2
    first = job.facts.model.layers[0].attention
    assert (first.num_key_heads, first.num_value_heads, first.key_head_dim, first.value_head_dim) == (4, 8, 64, 32)


@in_one_case(
    ("options", "message"),
    [
        (VARIANT, "--linear-attention-freq: is required with --experimental-attention-variant gated_delta_net"),
        (f"{VARIANT}--linear-attention-freq [1]*3", "is of 3 layers, the model has 48"),
        (f"{VARIANT}--linear-attention-freq '[0]+[1]*47'", "layers with softmax attention that are no equal distance"),
        (f"{VARIANT}--linear-attention-freq 4 --linear-num-value-heads 24", "is 24, must be a multiple of"),
        ("--experimental-attention-variant dsa", "is dsa, sparse attention (DSA), which has no costs here"),
    ],
)
def test_other_gated_delta_nets_are_refused(options, message):
    """With the option and what is allowed, as Megatron-LM's configuration does for all but the last two."""
    with pytest.raises(SpecError, match=re.escape(message)):
        from_megatron_lm(f"{NEXT}{DEGREES}{options}", WORLD)


@in_one_case(
    ("text", "flags"),
    [
        ("([0]*3+[1]*2)", (0, 0, 0, 1, 1)),
        ("([1]*2+[0]*1)*2", (1, 1, 0, 1, 1, 0)),
        ("(([1]+[0])*2+[1])", (1, 0, 1, 0, 1)),
        ("[1,0]*2", (1, 0, 1, 0)),
    ],
)
def test_lists_of_layers_are_expressions(text, flags):
    """As the parser evaluates them (megatron/training/arguments.py, _eval_pattern)."""
    assert frequency_flags(text, "x") == tuple(map(bool, flags))


@in_one_case("text", ["", "[2]", "([1]", "[1])", "[1]*", "[1]**2", "__import__('os')", "([1]*4000)*4000"])
def test_other_expressions_are_refused(text):
    """None is evaluated."""
    with pytest.raises(SpecError, match=r"expected a number or a list|is of more than 4096 layers"):
        frequency_flags(text, "x")
