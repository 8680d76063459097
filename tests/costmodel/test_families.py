"""Families beyond those of the catalog: what tells their generations apart, and which are refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.catalog.files import read
from costmodel.errors import SpecError
from costmodel.facts.model import Attention, Experts, LatentAttention, LinearAttention, Mamba, Mlp
from costmodel.models.families import FAMILIES, TEXT_PARTS, UNMODELLED
from costmodel.models.flops import forward_attention_flops, parameters
from costmodel.models.huggingface import model_from_config
from tests.cases import in_one_case

OWN = read("families.yaml")


def of_family(name: str, **changes: Any) -> Any:
    """A model of ``families.yaml``, changed."""
    return model_from_config({**OWN[name]["config"], **changes})


@pytest.mark.parametrize(
    ("name", "kv_heads", "norms", "parallel", "rotary"),
    [("falcon-40b", 8, 2, True, True), ("falcon-2-11b", 8, 1, True, True), ("falcon-rw-1b", 32, 2, False, False)],
)
def test_generations_of_falcon(name: str, kv_heads: int, norms: int, parallel: bool, rotary: bool):
    """The first has all heads and ALiBi, the later ones groups and blocks side by side with one or two norms."""
    layer = of_family(name).layers[0]

    assert (layer.attention.num_kv_heads, layer.num_norms, layer.parallel_blocks) == (kv_heads, norms, parallel)
    assert layer.attention.rotary == rotary


def test_falcon_7b_shares_one_key_head():
    """Multi-query attention and one norm before both blocks: the class's defaults."""
    layer = of_family("falcon-rw-1b", multi_query=True, parallel_attn=True, alibi=False, num_kv_heads=32).layers[0]

    assert (layer.attention.num_kv_heads, layer.num_norms, layer.parallel_blocks) == (1, 1, True)


def test_llama_4_attends_in_chunks_but_in_every_fourth_layer():
    """Layers 4, 8, ... attend across and do not rotate; Maverick's every second layer has experts."""
    scout, maverick = of_family("llama-4-scout"), of_family("llama-4-maverick")
    attentions = [layer.attention for layer in scout.layers]

    assert [one.chunk for one in attentions[:5]] == [8192, 8192, 8192, None, 8192]
    assert [one.rotary for one in attentions[:5]] == [True, True, True, False, True]
    assert all(isinstance(layer.feed_forward, Experts) for layer in scout.layers)
    assert [isinstance(layer.feed_forward, Experts) for layer in maverick.layers[:4]] == [False, True, False, True]
    assert maverick.layers[0].feed_forward.ffn_hidden_size == 16384
    assert maverick.layers[1].feed_forward.shared_ffn_hidden_size == 8192


def test_gemma_4_has_wider_heads_in_full_attention():
    """Every sixth layer: 2 key heads of 512 instead of 8 of 256, and no values of their own; 7 norms with experts."""
    window, full = (of_family("gemma-4-26b-a4b").layers[index] for index in (0, 5))

    assert (window.attention.head_dim, window.attention.num_kv_heads, window.attention.window) == (256, 8, 1024)
    assert (full.attention.head_dim, full.attention.num_kv_heads, full.attention.window) == (512, 2, None)
    assert (window.attention.key_is_value, full.attention.key_is_value, full.num_norms) == (False, True, 7)
    assert full.feed_forward.shared_ffn_hidden_size == 2112
    dense = of_family("gemma-4-26b-a4b", enable_moe_block=False, num_experts=None).layers[0]
    assert (dense.feed_forward.ffn_hidden_size, dense.num_norms) == (2112, 4)


def test_mimo_v2_doubles_key_heads_in_windows():
    """129 keys with the query's own; 8 key heads and sinks there, 4 and none in layers 0, 5, 11, ..., 47."""
    model = of_family("mimo-v2-flash")
    full = [index for index, layer in enumerate(model.layers) if layer.attention.window is None]
    window, whole = model.layers[1].attention, model.layers[0].attention

    assert full == [0, *range(5, 48, 6)]
    assert (window.num_kv_heads, window.sinks, window.window, window.v_head_dim) == (8, True, 129, 128)
    assert (whole.num_kv_heads, whole.sinks, whole.head_dim) == (4, False, 192)
    assert of_family("mimo-v2-flash", hybrid_layer_pattern=None).layers == model.layers


def test_step_has_other_query_heads_in_windows():
    """The maker says 96 (``attention_other_setting``); MTP layers are dense, of the kinds behind the last one."""
    kinds = ["full_attention", "sliding_attention"]
    listed = [*kinds, *kinds, "sliding_attention"]
    changes = {"num_hidden_layers": 4, "num_nextn_predict_layers": 1, "moe_layers_enum": "1,3"}
    changes["first_k_dense_replace"] = None
    model = of_family(
        "step-3.7-flash", layer_types=listed, attention_other_setting={"num_attention_heads": 96}, **changes
    )

    assert [layer.attention.num_heads for layer in model.layers] == [64, 96, 64, 96]
    assert [isinstance(layer.feed_forward, Experts) for layer in model.layers] == [False, True, False, True]
    assert (model.mtp_layers[0].attention.window, model.mtp_layers[0].attention.num_heads) == (512, 96)
    assert not isinstance(model.mtp_layers[0].feed_forward, Experts)


@in_one_case(
    ("name", "changes", "message"),
    [
        ("mimo-v2-flash", {"hybrid_layer_pattern": [2] * 48}, "expected 0 or 1, got 2"),
        ("mimo-v2-flash", {"moe_layer_freq": [1] * 47}, "has 47 entries, the model 48 layers"),
        ("laguna-xs", {"num_attention_heads_per_layer": [[]] * 40}, "per_layer.0: expected a whole number"),
        ("lfm2-1.2b", {"layer_types": ["conv"] * 16}, "layer_types: layer 2 .* is 'linear_attention' by"),
        ("hunyuan-a13b", {"moe_topk": [8] * 31 + [4]}, r"moe_topk: differs among layers, .*: 8 in layer 0, 4 in 31\."),
        ("hunyuan-a13b", {"moe_topk": [8] * 31}, "moe_topk: has 31 entries, the model 32 layers"),
        ("hunyuan-a13b", {"moe_topk": [8, "8"] * 16}, "moe_topk: expected a whole number"),
        ("hunyuan-a13b", {"moe_intermediate_size": [3072, 64] * 16}, "moe_intermediate_size: differs among layers"),
        ("exaone-moe", {"is_moe_layer": [False] + [True] * 30}, "is_moe_layer: has 31 entries, the model 32 layers"),
        ("exaone-moe", {"is_moe_layer": [True] * 32}, "layer 0 .*, but 'dense' by 'first_k_dense_replace'"),
        ("exaone-moe", {"is_moe_layer": [False] + [1] * 31}, "is_moe_layer.1: expected true or false, got 1"),
    ],
)
def test_lists_that_fit_no_model_are_refused(name: str, changes: dict[str, Any], message: str):
    """Their number, an entry, entries that differ where a class has one, or what another key says."""
    with pytest.raises(SpecError, match=message):
        of_family(name, **changes)


def test_the_activation_of_apertus_may_be_said():
    """As its published files do; its two weights are in each of 32 layers."""
    said = of_family("apertus-8b", hidden_act="xielu")

    assert said.layers == of_family("apertus-8b").layers
    assert said.layers[0].feed_forward.activation_weights == 2


def test_mpt_may_say_its_usual_layers():
    """``mptmlp`` and full heads, as newer files of its maker do."""
    heads = {"attn_type": "multihead_attention", "kv_n_heads": 64, "alibi": True}
    said = of_family("mpt-30b", attn_config=heads, ffn_config={"ffn_type": "mptmlp", "fc_type": "torch"})

    assert said.layers == of_family("mpt-30b").layers


def test_layers_may_have_heads_of_their_own():
    """As many as ``per_layer_config`` says, by their number; a Bamba whose list of attention is absent has none."""
    heads = {"3": {"num_attention_heads": 4}}
    attention = [layer.attention for layer in of_family("muse-glimmer-30b", per_layer_config=heads).layers[2:5]]

    assert [one.num_heads for one in attention] == [attention[0].num_heads, 4, attention[0].num_heads]
    assert {type(layer.attention) for layer in of_family("bamba-9b", attn_layer_indices=None).layers} == {Mamba}


def test_lfm2_rounds_its_feed_forward_up():
    """Two thirds of 12,288 are 8,192; times 1.1 is 9,011, of which the next multiple of 256 is 9,216."""
    widths = [
        of_family("lfm2-1.2b", **changes).layers[0].feed_forward.ffn_hidden_size
        for changes in (
            {},
            {"block_ffn_dim_multiplier": 1.1},
            {"block_ffn_dim_multiplier": None},
            {"block_auto_adjust_ff_dim": False},
        )
    ]

    assert widths == [8192, 9216, 8192, 12288]


def test_a_jamba_of_one_expert_is_dense():
    """Its class builds a feed-forward block without a router where a layer has one expert."""
    model = of_family("jamba-52b", num_experts=1, num_experts_per_tok=1)

    assert {type(layer.feed_forward) for layer in model.layers} == {Mlp}


def test_jamba_places_attention_and_experts_in_their_periods():
    """One attention of 8 layers, at 4; experts in every second, from 1 on; no positions."""
    model = of_family("jamba-52b")
    full = [n for n, layer in enumerate(model.layers) if isinstance(layer.attention, Attention)]

    assert (full, model.layers[4].attention.rotary) == ([4, 12, 20, 28], False)
    assert [isinstance(layer.feed_forward, Experts) for layer in model.layers[:4]] == [False, True, False, True]


def test_qwen3_5_predicts_tokens_with_full_attention():
    """The published files say one such layer, whose attention is none of the linear ones before it."""
    config = {"num_hidden_layers": 33, "mtp_num_hidden_layers": 1}
    model = of_family("qwen3.5-9b", **config)

    assert isinstance(model.layers[-1].attention, LinearAttention)
    assert [isinstance(layer.attention, Attention) for layer in model.mtp_layers] == [True]


def test_kimi_linear_counts_layers_from_one():
    """The maker's lists of 20 KDA and 7 full layers; sizes in a mapping of their own."""
    full, number = [4, 8, 12, 16, 20, 24, 27], 27
    own = {
        "full_attn_layers": full,
        "kda_layers": [n for n in range(1, number + 1) if n not in full],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    }
    keys = ("layer_types", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    model = of_family("kimi-linear-48b-a3b", linear_attn_config=own, **dict.fromkeys(keys))

    assert [n for n, layer in enumerate(model.layers, 1) if isinstance(layer.attention, LatentAttention)] == full
    assert model.layers[0] == of_family("kimi-linear-48b-a3b").layers[0]
    assert not model.layers[3].attention.rotary
    with pytest.raises(SpecError, match="kda_layers: and 'full_attn_layers' must name each of the layers 1 to 27 once"):
        of_family("kimi-linear-48b-a3b", linear_attn_config={**own, "kda_layers": [1]}, layer_types=None)


K3 = {
    "model_type": "kimi_linear", "hidden_size": 7168, "intermediate_size": 33792, "moe_intermediate_size": 3072,
    "num_hidden_layers": 93, "num_attention_heads": 96, "num_key_value_heads": 96, "num_experts": 896,
    "num_experts_per_token": 16, "num_shared_experts": 2, "first_k_dense_replace": 1, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840,
    "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True, "attn_res_block_size": 12, "mla_use_nope": True,
    "mla_use_output_gate": True, "tie_word_embeddings": False,
    "linear_attn_config": {
        "full_attn_layers": [*range(4, 93, 4), 93],
        "kda_layers": [number for number in range(1, 93) if number % 4],
        "num_heads": 96, "head_dim": 128, "short_conv_kernel_size": 4, "use_full_rank_gate": True,
    },
}  # fmt: skip
"""Sizes of Kimi K3's ``text_config``; no class of transformers fits it."""


def test_kimi_k3_by_its_matrices():
    """
    The matrices of Megatron-Bridge's ``kimi_k3_layers.py``, D = 96 x 128: 69 KDA and 24 latent layers, the first dense.

    Each layer has two norms, and two norms and vectors of attention residuals. Layer i reads floor(i / 12) + 1
    snapshots, 408 / 93 = 4.4 on average.
    """
    h, d = 7168, 96 * 128
    kda = 5 * d * h + 3 * d * 4 + 128 * h + d * 128 + d + 96 + 96 * h + 128
    latent = 1536 * h + 1536 + 18432 * 1536 + 576 * h + 512 + 24576 * 512 + 2 * d * h
    experts = 896 * h + 896 * 3 * 3584 * 3072 + 2 * 3584 * h + 3584 + 3 * h * 6144
    total = 69 * kda + 24 * latent + 92 * experts + 3 * h * 33792 + 93 * 6 * h + 2 * 163840 * h + h
    model = model_from_config({"model_type": "kimi_k3", "text_config": K3})

    assert parameters(model) == total
    assert {layer.snapshots for layer in model.layers} == {4}
    with pytest.raises(SpecError, match="mla_use_nope: means rotated keys, which is not modelled, got false"):
        model_from_config({**K3, "mla_use_nope": False})


def test_chunks_count_their_own_scores_only():
    """Of 32,768 tokens in chunks of 8,192 each query reads a quarter of the keys; of one chunk all of them."""
    scores = {
        (length, chunk): forward_attention_flops(
            of_family("llama-4-scout", attention_chunk_size=chunk, no_rope_layers=[1] * 48),
            sequence_length=length,
            attention="causal",
        )
        for length in (8192, 32768)
        for chunk in (8192, None)
    }

    assert scores[32768, 8192] == pytest.approx(scores[32768, None] / 4)
    assert scores[8192, 8192] == scores[8192, None]


def test_layers_without_rotation_follow_a_list_or_every_fourth():
    """SmolLM3: ``no_rope_layers`` says 0 where queries and keys are not rotated."""
    assert [layer.attention.rotary for layer in of_family("smollm3-3b").layers[:4]] == [True, True, True, False]
    listed = of_family("smollm3-3b", no_rope_layers=[0] * 36)
    assert not any(layer.attention.rotary for layer in listed.layers)
    for flags, message in (([2] * 36, "expected 0 or 1, got 2"), ([1], "has 1 entries, the model 36 layers")):
        with pytest.raises(SpecError, match=message):
            of_family("smollm3-3b", no_rope_layers=flags)


@in_one_case(
    ("name", "windows", "rotary"),
    [
        ("exaone-4.0-32b", [4096, 4096, 4096, None, 4096], [True, True, True, False, True]),
        ("command-r7b", [4096, 4096, 4096, None, 4096], [True, True, True, False, True]),
        ("trinity-mini", [2048, 2048, 2048, None, 2048], [True, True, True, False, True]),
        ("cwm-32b", [None, 8192, 8192, 8192, None], [True] * 5),
        ("mellum-12b", [None] * 5, [True] * 5),
    ],
)
def test_periods_of_windows(name: str, windows: list[int | None], rotary: list[bool]):
    """The last of four layers attends to all, in CWM the first; some of these do not rotate there."""
    attentions = [layer.attention for layer in of_family(name).layers[:5]]

    assert [one.window for one in attentions] == windows
    assert [one.rotary for one in attentions] == rotary


def test_without_windows_all_layers_rotate():
    """EXAONE 4.0 1.2B has none, and no position would be left."""
    attentions = [layer.attention for layer in of_family("exaone-4.0-32b", sliding_window=None).layers]

    assert {(one.window, one.rotary) for one in attentions} == {(None, True)}


def test_granite_4_is_a_hybrid_with_or_without_experts():
    """H-Small: Mamba but in every tenth layer, 72 experts; Micro: attention with rotations, a dense feed-forward."""
    older = ["attention" if index % 10 == 5 else "mamba" for index in range(40)]
    small, micro = of_family("granite-4.0-h-small", layer_types=older), of_family("granite-4.0-micro")

    assert small.layers == of_family("granite-4.0-h-small").layers
    assert [type(layer.attention).__name__ for layer in small.layers[4:7]] == ["Mamba", "Attention", "Mamba"]
    assert not small.layers[5].attention.rotary
    assert small.layers[0].feed_forward.shared_ffn_hidden_size == 1536
    assert {(layer.attention.rotary, layer.feed_forward.ffn_hidden_size) for layer in micro.layers} == {(True, 8192)}


@in_one_case(
    ("name", "changes", "extras"),
    [
        ("ministral-3-8b", {}, "queries scaled by their position"),
        ("ministral-3-8b", {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, ""),
        ("trinity-mini", {}, "scales of mup_enabled"),
        ("trinity-mini", {"mup_enabled": False}, ""),
        ("exaone-4.0-32b", {"sliding_window": None}, "norms behind the blocks"),
        ("exaone-moe", {}, ""),
        ("hyperclovax-default", {"residual_multiplier": 0.5}, "scales of residual_multiplier"),
        ("hyperclovax-default", {}, ""),
    ],
)
def test_extras_follow_from_keys(name: str, changes: dict[str, Any], extras: str):
    """Parts without a size that exports would have to say."""
    assert of_family(name, **changes).extras == extras


def test_norms_and_heads_that_a_key_decides():
    """StableLM's parallel blocks share a norm, HyperCLOVA X may have four, StarCoder one key head, OLMo no rotation."""
    stable, clova = of_family("stablelm-3b", use_parallel_residual=True), of_family("hyperclovax-default")
    coder = (of_family("starcoder-15b"), of_family("starcoder-15b", multi_query=False))
    olmo = of_family("olmo-hybrid-7b", rope_parameters={"rope_theta": None}), of_family("olmo-hybrid-7b")

    assert (stable.layers[0].num_norms, clova.layers[0].num_norms) == (1, 4)
    assert of_family("hyperclovax-default", use_post_norm=False).layers[0].num_norms == 2
    assert [model.layers[0].attention.num_kv_heads for model in coder] == [1, 48]
    assert [model.layers[3].attention.rotary for model in olmo] == [False, True]


def test_bamba_mixes_mamba_and_attention():
    """Attention in the layers that are listed, Mamba-2 elsewhere; a feed-forward in all."""
    kinds = [type(layer.attention).__name__ for layer in of_family("bamba-9b").layers]

    assert [index for index, kind in enumerate(kinds) if kind == "Attention"] == [9, 18, 27]
    assert kinds.count("Mamba") == 29


def test_a_pure_mamba_has_no_feed_forward():
    """64 single blocks, as letters say it for hybrids."""
    model = of_family("mamba2-2.7b")

    assert model.has_single_blocks
    assert {(type(layer.attention).__name__, layer.feed_forward) for layer in model.layers} == {("Mamba", None)}


def test_a_list_of_one_number_for_every_layer_is_that_number():
    """HunYuan writes ``moe_topk`` per layer; where layers differ it is refused."""
    assert of_family("hunyuan-a13b").layers[0].feed_forward.top_k == 8
    widths = of_family("hunyuan-a13b", moe_intermediate_size=[3072] * 32)
    assert widths == of_family("hunyuan-a13b")
    assert of_family("hunyuan-a13b", moe_intermediate_size=[1024] * 32).doubts == (
        "model.moe_intermediate_size is 1024, but intermediate_size, which is read, is 3072"
    )


def test_keys_that_decide_nothing_are_read_over():
    """As published files hold them: a method for a function, shared keys that are off, and one expert."""
    dots = OWN["dots.llm1"]["config"]
    assert of_family("dots.llm1", scoring_func="noaux_tc") == model_from_config(dots)
    assert of_family("hunyuan-a13b", use_cla=False, cla_share_factor=2) == of_family("hunyuan-a13b")
    with pytest.raises(SpecError, match="use_cla: asks for keys and values shared across layers"):
        of_family("hunyuan-a13b", use_cla=True, cla_share_factor=2)
    assert of_family("hunyuan-7b", num_experts=1) == of_family("hunyuan-7b")
    with pytest.raises(SpecError, match="num_experts: the family 'hunyuan_v1_dense' has no experts, got 2"):
        of_family("hunyuan-7b", num_experts=2)
    with pytest.raises(SpecError, match="scoring_func: expected softmax"):
        of_family("mistral-small-4", scoring_func="noaux_tc")


def test_a_missing_number_is_named_by_all_its_spellings():
    """Families spell the number of experts in five ways, Nemotron-H as DeepSeek does."""
    sizes = {"hidden_size": 64, "vocab_size": 1000, "num_attention_heads": 4, "num_key_value_heads": 2}
    with pytest.raises(SpecError, match=r"num_local_experts: is required but missing\. .*n_routed_experts"):
        model_from_config({"model_type": "nemotron_h", "hybrid_override_pattern": "E*", **sizes})


def test_layers_with_experts_may_be_flags():
    """K-EXAONE's ``is_moe_layer``, alone or beside the number of dense layers."""
    alone = of_family("exaone-moe", is_moe_layer=[False] + [True] * 31, first_k_dense_replace=None)

    assert alone.layers == of_family("exaone-moe").layers
    assert of_family("exaone-moe", is_moe_layer=[False] + [True] * 31) == of_family("exaone-moe")


@in_one_case(
    ("name", "changes", "message"),
    [
        ("opt-66b", {"do_layer_norm_before": False}, "means norms behind the blocks, which is not modelled"),
        ("opt-66b", {"word_embed_proj_dim": 512}, "means embeddings of another width, which is not modelled, got 512"),
        ("phi-2", {"qk_layernorm": True}, "means layer norms of queries and keys, which is not modelled"),
        ("ernie-4.5-21b-a3b", {"use_bias": True}, "means biases of experts, which is not modelled"),
        ("command-r-35b", {"use_qk_norm": True}, "means norms of queries and keys with a weight for each head"),
        ("internlm3-8b", {"bias": True}, "bias: means biases, which is not modelled, got true"),
        ("stablelm-3b", {"qk_layernorm": True}, "means layer norms of queries and keys, which is not modelled"),
        ("phi-4", {"moe_layers": [1]}, "asks for Llama 4's interleaved experts, which is not modelled"),
    ],
)
def test_what_a_family_can_have_but_is_not_modelled_is_refused(name: str, changes: dict[str, Any], message: str):
    """By its key and what it means."""
    with pytest.raises(SpecError, match=message):
        of_family(name, **changes)


@in_one_case("name", UNMODELLED)
def test_known_families_that_are_not_modelled_say_why(name: str):
    """Not a slip of a known name: nothing is suggested instead."""
    with pytest.raises(SpecError, match=rf"model_type: '{name}' has .*, which is not modelled\."):
        model_from_config({**OWN["phi-4"]["config"], "model_type": name})


@in_one_case("name", TEXT_PARTS)
def test_multimodal_families_are_read_by_their_text_part(name: str):
    """Known by the family of the text part."""
    assert TEXT_PARTS[name] in FAMILIES


def test_other_names_of_a_family_have_its_layers():
    """MiniMax's files say ``minimax_m1`` or ``minimax_text_01``, with a list of numbers; PaddleOCR-VL its own name."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 96, "vocab_size": 1000, "num_local_experts": 8, "num_experts_per_tok": 2}
    minimax = model_from_config({"model_type": "minimax", "attn_type_list": [0, 0, 0, 1], **sizes})
    others = ("minimax_m1", "minimax_text_01")

    assert all(
        model_from_config({"model_type": name, "attn_type_list": [0, 0, 0, 1], **sizes}) == minimax for name in others
    )
    ernie = OWN["ernie-4.5-0.3b"]["config"]
    assert model_from_config({**ernie, "model_type": "paddleocr_vl"}).layers == model_from_config(ernie).layers


def test_mistral_4_has_experts_from_the_first_layer():
    """All else is DeepSeek-V3's, whose class has three dense layers unless a key says it."""
    config = {key: value for key, value in OWN["mistral-small-4"]["config"].items() if key != "first_k_dense_replace"}

    assert model_from_config(config) == of_family("mistral-small-4")
    assert parameters(of_family("mistral-small-4", first_k_dense_replace=1)) < parameters(model_from_config(config))


def test_muse_glimmer_rotates_where_its_bases_are_not_zero():
    """A base for each layer, 0 without rotation; without bases those with a window rotate."""
    bases = [0 if index % 4 == 3 else 10000.0 for index in range(52)]

    assert of_family("muse-glimmer-30b", layer_rope_theta=bases) == of_family("muse-glimmer-30b")
    assert all(layer.attention.rotary for layer in of_family("muse-glimmer-30b", layer_rope_theta=[1e4] * 52).layers)
    with pytest.raises(SpecError, match="layer_rope_theta: has 3 entries, the model 52 layers"):
        of_family("muse-glimmer-30b", layer_rope_theta=bases[:3])


@pytest.mark.parametrize("name", ["kimi-linear-48b-a3b", "glm-ocr"])
def test_embeddings_of_a_class_that_ties_nothing_are_counted_twice(name: str):
    """Kimi Linear's class has no list of tied weights, unlike that of GLM-OCR."""
    plain, tied = (of_family(name, tie_word_embeddings=flag) for flag in (False, True))
    doubt = "model.tie_word_embeddings is true, but transformers' class ties nothing, which is read"

    assert (parameters(plain) == parameters(tied)) == (doubt in tied.doubts) == (name != "glm-ocr")
    assert doubt not in plain.doubts


def test_a_multimodal_model_says_that_it_is_the_text_part():
    """Llama 4 as it is published, with an encoder of images beside it; a model of text alone says nothing."""
    text = OWN["llama-4-scout"]["config"]
    whole = {"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 1408}}

    assert model_from_config(whole).is_text_part
    assert model_from_config(whole).layers == model_from_config(text).layers
    assert not model_from_config(text).is_text_part
    assert model_from_config({**OWN["phi-4"]["config"], "model_type": "phi4_multimodal"}).is_text_part


NEWCOMERS = {
    "flint": {
        "like": "qwen3_moe", "sinks": "all", "shared_width": "shared_expert_intermediate_size",
        "rotary_windows": True, "window_switch": False,
    },
    "granite-swa": {"like": "granite", "sinks": "all", "window": 128, "period": ["sliding_attention", "", 4, True]},
    "kolibri1": {
        "like": "qwen3_moe", "num_norms": 4, "shared_width": "shared_expert_intermediate_size",
        "rotary_windows": True, "window_switch": False,
        "period": {"others": "sliding_attention", "key": "", "default": 5},
    },
    "lara-mini": {
        "like": "qwen3_next", "output_gate": False, "shared_gate": False, "tied": True,
        "shared_width": "shared_expert_intermediate_size", "rotary_windows": True,
    },
}  # fmt: skip
"""Families of transformers 5.24, each described by another one."""


@pytest.mark.parametrize("name", NEWCOMERS)
def test_an_unknown_family_is_described_by_a_known_one(name: str):
    """Parameters are those of the family's class (costmodel/catalog/families.yaml), layers as if it were known."""
    config = OWN[name]["config"]

    model = model_from_config({**config, "model_type": "a_newcomer", "family": NEWCOMERS[name]})

    assert parameters(model) == OWN[name]["parameters"]
    assert model.layers == model_from_config(config).layers


@in_one_case(
    ("row", "message"),
    [
        ({"like": "qwen3_mo"}, "model.family.like: unsupported family 'qwen3_mo'. Did you mean 'qwen3_moe'?"),
        ({"like": "llama", "sink": "all"}, "model.family.sink: no such entry. Did you mean 'sinks'?"),
        ({"like": "llama", "sinks": "few"}, "model.family.sinks: got 'few': Input should be 'none', 'all' or 'win"),
        ({"like": "llama", "refined": "x"}, "model.family.refined: no such entry."),
        ("llama", "model.family: expected a mapping, got 'llama'."),
    ],
)
def test_a_wrong_description_of_a_family_is_refused(row: object, message: str):
    """By its place, with the value and what is allowed."""
    with pytest.raises(SpecError) as refused:
        model_from_config({**OWN["phi-4"]["config"], "model_type": "a_newcomer", "family": row})

    assert str(refused.value).startswith(message)


SPELLINGS = """
    llama qwen2 qwen3 qwen2_moe qwen3_moe qwen3_next qwen3_5 qwen3_5_moe mistral mixtral deepseek_v2 deepseek_v3
    deepseek_v32 deepseek_v4 gpt_oss gemma2 gemma3_text gemma3 gemma4 gpt_neox gpt2 olmo olmo2 olmo3 olmoe glm4
    glm4_moe glm_moe_dsa minimax minimax_m2 nemotron nemotron_h llama4_text phi3 falcon granite granitemoe
    ernie4_5_moe hunyuan_v1_moe dots1 bamba jamba mamba2 kimi_linear longcat_flash seed_oss smollm3 gptj opt bloom
"""
"""``model_type`` of 50 families of transformers that hold a decoder."""


def test_every_family_is_read_or_says_why():
    """Under the name that its ``config.json`` has."""
    assert [name for name in SPELLINGS.split() if not {name, TEXT_PARTS.get(name)} & {*FAMILIES, *UNMODELLED}] == []


def test_keys_that_a_described_family_leaves_unread_are_doubted():
    """Grok-2 has a dense block beside experts of a width of its own, which Mixtral's row reads over."""
    config = {"model_type": "a_newcomer", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 1000}
    config |= {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 256, "num_local_experts": 8}
    config |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "residual_moe": True, "rms_norm_eps": 1e-5}
    beside = {"like": "mixtral", "expert_width": "moe_intermediate_size", "shared_width": "intermediate_size"}
    plain = model_from_config({**config, "family": {"like": "mixtral"}})

    assert plain.doubts == ("not read by the family that is described: moe_intermediate_size (32), residual_moe (true)")
    assert model_from_config({**config, "family": {**beside, "ignores": ["residual_moe"]}}).doubts == ""


def test_keys_that_a_known_family_leaves_unread_are_doubted():
    """A size that no class of the family has; its own keys that this model does not need are no doubts."""
    memory = of_family("phi-4", num_memory_layers=4, attention_sink_size=0)

    assert memory.doubts == "not read by the family 'phi3': num_memory_layers (4)"
    assert memory.layers == of_family("phi-4").layers
    assert not any("not read" in of_family(name).doubts for name in OWN)
    assert of_family("mistral-small-4", head_dim=128, rope_interleave=True).doubts == ""


@pytest.mark.parametrize(
    ("name", "key", "more"),
    [
        ("cwm-32b", "mlp_bias", 64 * (2 * 21504 + 6144)),  # gate, up and down in 64 layers
        ("minicpm3-4b", "mlp_bias", 62 * (2 * 6400 + 2560)),
        ("ernie-4.5-0.3b", "use_bias", 18 * ((16 + 2 * 2) * 128 + 1024 + 2 * 3072 + 1024)),  # none of the head
    ],
)
def test_biases_are_those_of_the_class(name: str, key: str, more: int):
    """A class of transformers 5 has a bias per output of the matrices that the key is for."""
    plain, biased = (parameters(of_family(name, **{key: flag})) for flag in (False, True))

    assert biased - plain == more


def test_a_gate_without_the_biases_of_its_attention_is_refused():
    """AFMoE's class gives ``attention_bias`` to queries, keys, values and output, but not to the gate."""
    with pytest.raises(SpecError, match="attention_bias: means biases beside an output gate without one"):
        of_family("trinity-mini", attention_bias=True)
