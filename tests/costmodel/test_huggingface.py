"""What the reader of config.json understands, and what it refuses by name."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from costmodel.catalog.files import read
from costmodel.errors import SpecError
from costmodel.facts.model import Attention, Experts, LatentAttention, LinearAttention, Mamba, Mlp
from costmodel.models.families import FAMILIES
from costmodel.models.flops import parameters
from costmodel.models.huggingface import model_from_config
from tests.builders import read_config
from tests.cases import in_one_case, read_table

OWN = read("families.yaml")
CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"


def a_config(**changes: Any) -> dict[str, Any]:
    """A small Llama."""
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 1000}
    return {"model_type": "llama", **sizes, "num_attention_heads": 8, "num_key_value_heads": 2, **changes}


def an_expert_config(**changes: Any) -> dict[str, Any]:
    """A small Qwen3-MoE."""
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    return a_config(model_type="qwen3_moe", **{**experts, **changes})


def a_hybrid_config(**changes: Any) -> dict[str, Any]:
    """A small Nemotron-H."""
    mamba = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    shared = {"moe_shared_expert_intermediate_size": 24}
    changes = {"hybrid_override_pattern": "M*-E", **mamba, **experts, **shared, **changes}
    return a_config(model_type="nemotron_h", **changes)


LATENT_SIZES = {
    "model_type": "deepseek_v3", "num_hidden_layers": 4, "hidden_size": 512, "vocab_size": 1000,
    "num_attention_heads": 8, "intermediate_size": 1024, "moe_intermediate_size": 256,
    "n_routed_experts": 16, "num_experts_per_tok": 4,
    "q_lora_rank": None, "kv_lora_rank": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip

CHANGED = {
    "llama": a_config(),
    "qwen3_moe": an_expert_config(),
    "nemotron_h": a_hybrid_config(),
    "deepseek_v3": LATENT_SIZES,
}
ROWS = read_table("configurations")


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    """The configuration less one key."""
    return {name: value for name, value in config.items() if name != key}


def attention(config: dict[str, Any], layer: int = 0) -> Any:
    """The attention of one layer."""
    return model_from_config(config).layers[layer].attention


def dense_layers(config: dict[str, Any]) -> list[int]:
    """Layers without experts."""
    layers = model_from_config(config).layers
    return [index for index, layer in enumerate(layers) if not isinstance(layer.feed_forward, Experts)]


# --- what is read ------------------------------------------------------------------------------------------------


def test_nemotrons_square_relu():
    """``relu2`` in their classes' defaults; of Llama a gate."""
    nemotron, llama = (model_from_config(config) for config in (a_hybrid_config(), a_config()))

    assert {layer.feed_forward.squared_relu for layer in nemotron.layers if layer.feed_forward} == {True}
    assert {layer.feed_forward.squared_relu for layer in llama.layers} == {False}


def test_absent_kv_heads_mean_as_many_as_query_heads_for_llama():
    """MHA models leave the key out, or write null."""
    assert attention(without(a_config(), "num_key_value_heads")).num_kv_heads == 8
    assert attention(a_config(num_key_value_heads=None)).num_kv_heads == 8


def test_head_dim_null_is_hidden_size_over_heads():
    """64 / 8."""
    assert attention(a_config(head_dim=None)).head_dim == 8
    assert attention(a_config(head_dim=16)).head_dim == 16


def test_tied_embeddings_default_by_family():
    """Gemma ties when the key is absent, Llama does not; the key decides for both."""
    assert model_from_config(a_config(model_type="gemma")).tied_embeddings
    assert not model_from_config(a_config()).tied_embeddings
    assert not model_from_config(a_config(model_type="gemma", tie_word_embeddings=False)).tied_embeddings


def test_experts_may_be_spelled_four_ways():
    """num_local_experts, num_experts, n_routed_experts, and SimAI's num_routed_experts."""
    config = without(an_expert_config(), "num_experts")

    for key in ("num_local_experts", "num_experts", "n_routed_experts", "num_routed_experts"):
        assert model_from_config({**config, key: 8}).layers[0].feed_forward.num_experts == 8


def test_shared_experts_by_number_or_by_width():
    """DeepSeek counts them, Qwen writes their width, and has to."""
    config = {**an_expert_config(shared_expert_intermediate_size=48), "model_type": "qwen2_moe"}

    assert model_from_config(config).layers[0].feed_forward.shared_ffn_hidden_size == 48
    with pytest.raises(SpecError, match=r"model\.shared_expert_intermediate_size: is required but missing"):
        model_from_config(without(config, "shared_expert_intermediate_size"))
    assert read_config(CONFIGS / "deepseek-v2.json").layers[1].feed_forward.shared_ffn_hidden_size == 2 * 1536


def test_dense_layers_among_experts():
    """DeepSeek's first layers, Qwen's list and step, and the list of transformers 5."""
    deepseek = json.loads((CONFIGS / "deepseek-v3.json").read_text())

    assert dense_layers(deepseek) == [0, 1, 2]
    assert dense_layers(an_expert_config(mlp_only_layers=[1])) == [1]
    assert dense_layers(an_expert_config(decoder_sparse_step=2)) == [0, 2]
    assert dense_layers(an_expert_config(mlp_layer_types=["dense", "sparse", "sparse", "dense"])) == [0, 3]


def test_patterns_of_sliding_windows():
    """Gemma 2 alternates, Gemma 3 has one full layer in six, Qwen slides from max_window_layers on."""
    gemma2 = read_config(CONFIGS / "gemma-2-27b.json").layers
    gemma3 = read_config(CONFIGS / "gemma-3-27b-text.json").layers
    qwen = a_config(model_type="qwen3", use_sliding_window=True, sliding_window=32, max_window_layers=2)

    assert [layer.attention.window for layer in gemma2[:4]] == [4096, None, 4096, None]
    assert [layer.attention.window for layer in gemma3[:7]] == [1024] * 5 + [None, 1024]
    assert [layer.attention.window for layer in model_from_config(qwen).layers] == [None, None, 32, 32]


def test_a_window_that_is_off_is_off():
    """Qwen writes a window and turns it off; Mixtral writes null."""
    assert attention(a_config(model_type="qwen2", sliding_window=32, use_sliding_window=False)).window is None
    assert read_config(CONFIGS / "mixtral-8x7b.json").layers[0].attention.window is None
    assert read_config(CONFIGS / "mistral-7b.json").layers[0].attention.window == 4096


def test_linear_attention_by_either_spelling():
    """MiniMax-Text-01: transformers lists names, the hub's own file 0 and 1."""
    named = json.loads((CONFIGS / "minimax-text-01.json").read_text())
    numbers = [int(kind == "full_attention") for kind in named["layer_types"]]
    numbered = {**without(named, "layer_types"), "attn_type_list": numbers}

    assert model_from_config(numbered) == model_from_config(named)
    assert isinstance(attention(named, 0), LinearAttention)
    assert isinstance(attention(named, 7), Attention)


def test_layers_of_one_block_by_either_spelling():
    """Nemotron-H: a letter per layer, or its name, of which transformers has had two generations."""
    written = model_from_config(a_hybrid_config())
    names = ["mamba", "attention", "mlp", "moe"]
    newer = ["linear_attention", "full_attention", "mlp", "moe"]

    assert [type(layer.attention or layer.feed_forward) for layer in written.layers] == [Mamba, Attention, Mlp, Experts]
    for listed in (names, newer):
        config = without(a_hybrid_config(layers_block_type=listed), "hybrid_override_pattern")
        assert model_from_config(config).layers == written.layers


def test_experts_on_a_latent_beside_multi_token_prediction():
    """Nemotron 3 Super: an attention and an expert block each."""
    model = model_from_config(a_hybrid_config(moe_latent_size=12, num_nextn_predict_layers=2))

    assert model.layers[3].feed_forward.latent_size == 12
    assert [(layer.attention, layer.feed_forward) for layer in model.mtp_layers] == [
        (model.layers[1].attention, model.layers[3].feed_forward)
    ] * 2


def test_latent_attention_without_a_query_rank():
    """q_lora_rank: null projects queries directly (Moonlight, DeepSeek-V2-Lite)."""
    config = {**json.loads((CONFIGS / "deepseek-v3.json").read_text()), "q_lora_rank": None}

    assert isinstance(attention(config), LatentAttention)
    assert attention(config).q_lora_rank is None


@in_one_case(
    ("changes", "layers"),
    [
        ({"num_nextn_predict_layers": 1}, 1),
        ({"num_mtp_modules": 3, "mtp_transformer_layers": 2}, 6),
        ({"num_mtp_modules": 3, "use_mtp": False}, 0),
        ({}, 0),
    ],
)
def test_multi_token_prediction_is_counted_apart(changes: dict[str, Any], layers: int):
    """Its layers are like the last one, and not among the layers."""
    model = model_from_config(a_config(**changes))

    assert (len(model.mtp_layers), model.num_layers) == (layers, 4)


def test_blocks_of_gpt_neox_run_in_parallel():
    """The published 20B says so; a config may say otherwise."""
    config = json.loads((CONFIGS / "gpt-neox-20b.json").read_text())
    in_a_row = config | {"use_parallel_residual": False}

    assert model_from_config(config).layers[0].parallel_blocks
    assert not model_from_config(in_a_row).layers[0].parallel_blocks


def test_text_part_of_a_multimodal_config():
    """Gemma 3's hub files hold the language model under text_config; what is missing there the whole says."""
    text = json.loads((CONFIGS / "gemma-3-27b-text.json").read_text())
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}

    assert parameters(model_from_config(whole)) == 27_009_346_304
    inherited = {**whole, "text_config": without(text, "model_type"), "tie_word_embeddings": True}
    assert parameters(model_from_config(inherited)) == 27_009_346_304


def test_a_text_part_leaves_out_what_its_class_says():
    """
    Gemma 3's hub files do: 27B has no vocabulary, 4B no heads either; 3,880,263,168 parameters.

    Embedding 262,208 x 2560. A layer: q and o 2 x 2560 x 2048, k and v 2 x 2560 x 1024, feed-forward 3 x 2560 x 10240,
    norms 4 x 2560 + 2 x 256; 34 of them, and a norm. Alone, as the file of a text model, it is incomplete.
    """
    sizes = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    part = {"model_type": "gemma3_text", **sizes}

    assert parameters(model_from_config({"model_type": "gemma3", "text_config": part})) == 3_880_263_168
    other = without({**part, "n_layer": 34}, "num_hidden_layers")
    assert model_from_config({"text_config": other}).num_layers == 34
    with pytest.raises(SpecError, match="is required but missing"):
        model_from_config(part)


@pytest.mark.parametrize("keys", [("llm_config",), ("language_config",), ("thinker_config", "text_config")])
def test_the_text_part_has_several_names(keys: tuple[str, ...]):
    """InternVL's, DeepSeek-VL2's and, one in the other, Qwen2.5-Omni's; sizes that are repeated around it agree."""
    config: dict[str, Any] = {**a_config(), "tie_word_embeddings": True}
    for key in reversed(keys):
        config = {"model_type": "several", "vision_config": {"hidden_size": 1}, "hidden_size": 64, key: config}

    model = model_from_config(config)

    assert model.is_text_part
    assert model.layers == model_from_config(a_config()).layers


def test_keys_that_are_no_architecture_are_ignored():
    """HF files hold dozens of them; quantised weights are the same model."""
    config = a_config(torch_dtype="bfloat16", rope_scaling={"type": "yarn"}, quantization_config={"bits": 8}, x=[1])

    assert model_from_config(config) == model_from_config(a_config())


def test_the_name_is_that_of_the_file_or_its_folder(tmp_path: Path):
    """config.json says nothing, its folder does."""
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(a_config()))

    assert read_config(folder / "config.json").name == "my-llama"
    assert read_config(CONFIGS / "qwen3-8b.json").name == "qwen3-8b"


# --- what is refused ---------------------------------------------------------------------------------------------


def changed(row: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a row of ``configurations.yaml``."""
    config = CHANGED.get(row["of"]) or OWN[row["of"]]["config"]
    left = row.get("without", "").split(", ")
    return {name: value for name, value in config.items() if name not in left} | row.get("with", {})


@in_one_case("row", ROWS["refused"], ids=lambda row: row["says"].partition(":")[0])
def test_refusals_name_the_path_what_was_seen_and_what_is_allowed(row: dict[str, Any]):
    """The first thing wrong, in one sentence, with the other entry where two contradict each other."""
    with pytest.raises(SpecError) as refused:
        model_from_config(changed(row))

    assert str(refused.value) == row["says"]


@in_one_case("row", ROWS["doubted"], ids=lambda row: row["of"])
def test_contradictions_that_a_class_ignores_are_doubts(row: dict[str, Any]):
    """Published files have some; the class reads one side of them."""
    assert model_from_config(changed(row)).doubts == row["says"]


def test_a_text_part_may_tie_its_embeddings_otherwise():
    """It is read, and told."""
    config = {"tie_word_embeddings": True, "text_config": a_config(tie_word_embeddings=False)}

    assert model_from_config(config).doubts == (
        "model.text_config.tie_word_embeddings is false, which is read, but model.tie_word_embeddings is true"
    )


@in_one_case(
    ("config", "message"),
    [
        (
            {"text_config": a_config(), "llm_config": a_config()},
            "model.llm_config: is a text part, as is 'text_config'; a model has one.",
        ),
        (
            {"num_experts": 1, "n_layer": 8, "hidden_size": 64, "llm_config": a_config()},
            "model.llm_config.num_hidden_layers: is 4, but 'model.n_layer' is 8.",
        ),
        (
            {"hidden_size": 5, "text_config": {"model_type": "llama"}},  # left out there, so that of the class
            "model.text_config.hidden_size: is 4096, but 'model.hidden_size' is 5.",
        ),
        (
            {"model_type": "gemma3", "text_config": a_config(model_type="gemma3_text", hidden_size="x")},
            "model.text_config.hidden_size: expected a whole number, got 'x'.",
        ),
        ([1, 2], "model: expected a mapping, got [1, 2]."),
    ],
)
def test_text_parts_that_contradict_the_whole_are_refused(config: Any, message: str):
    """By the path of the part."""
    with pytest.raises(SpecError) as refused:
        model_from_config(config)

    assert str(refused.value) == message


def test_an_unsupported_family_can_be_described():
    """The message says how to describe a family that no spelling is near to."""
    with pytest.raises(SpecError, match=r"unsupported family 'rwkv7'\. .*family: \{like: NAME\}"):
        model_from_config(a_config(model_type="rwkv7"))


@in_one_case("family", FAMILIES)
def test_an_empty_config_of_each_family_is_refused(family: str):
    """Whatever is missing first, it is named."""
    with pytest.raises(SpecError, match=r"model\.\w+: is required but missing"):
        model_from_config({"model_type": family})


HYBRID = {
    "model_type": "nemotron_h", "hidden_size": 2048, "num_hidden_layers": 8, "hybrid_override_pattern": "M-M*-M-M",
    "intermediate_size": 8192, "mlp_hidden_act": "relu2", "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "conv_kernel": 4, "chunk_size": 128, "vocab_size": 131072, "tie_word_embeddings": False,
}  # fmt: skip
"""A small Mamba-2 hybrid."""


@pytest.mark.parametrize("infinity", ["Infinity", '{"__float__": "Infinity"}'])
def test_infinity_that_decides_no_size_is_read(tmp_path: Path, infinity: str):
    """
    Python writes ``time_step_limit`` of Mamba-2 so, transformers 5 as an object; 766,143,232 parameters.

    Mamba, 4 times: in 2048 x (2 x 4096 + 2 x 8 x 128 + 64) = 21,102,592, convolution 5 x (4096 + 2048) = 30,720, heads
    3 x 64, norm 4096, out 4096 x 2048 = 8,388,608. Feed-forward, 3 times: 2 x 2048 x 8192 = 33,554,432. Attention:
    2048 x (2 x 2048 + 2 x 512) = 10,485,760. Norms: 9 x 2048. Embedding and head: 2 x 131,072 x 2048 = 536,870,912.
    """
    path = tmp_path / "config.json"
    path.write_text(json.dumps(HYBRID)[:-1] + f', "time_step_limit": [0.0, {infinity}]}}')

    assert parameters(read_config(path)) == 766_143_232


@in_one_case("number", ["NaN", "Infinity", "-Infinity", '{"__float__": "NaN"}'])
@in_one_case("key", ["hidden_size", "num_hidden_layers", "mamba_num_heads", "vocab_size", "conv_kernel"])
def test_a_size_that_is_no_number_is_named(tmp_path: Path, key: str, number: str):
    """With its entry, as any other wrong size."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**HYBRID, key: "@"}).replace('"@"', number))

    with pytest.raises(SpecError, match=rf"\.{key}: expected a whole number, got -?(nan|inf)"):
        read_config(path)


def test_comments_are_read(tmp_path: Path):
    """Files edited by hand have them, of all three forms; signs of a comment in a text are text."""
    path = tmp_path / "config.json"
    text = json.dumps(a_config(_name='https://here # /* no comment */ " // text'), indent=1)
    path.write_text("/* a\n small Llama */ // made by hand\n" + text.replace("64,\n", "64, // of 128 /*\n# more\n"))

    assert read_config(path).layers == model_from_config(a_config()).layers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n"hidden_size": 1 /* of 2\n}', "is not a config.json: the comment in line 2 has no end."),
        (b'{"hidden_size": 1} /*/', "the comment in line 1 has no end."),
        (b'{ // 1\n"hidden_size": 12/* 3 */4}', "is not JSON: Expecting ',' delimiter in line 2, column 25."),
        (b"// only a comment", "is not JSON: "),
        (b"/*" * 10**5, "the comment in line 1 has no end."),
        (b"", "is empty."),
        (b"  \n", "is empty."),
        (b"{", "is not JSON: "),
        (b"[1, 2]", "expected an object, got [1, 2]."),
        (b"3", "expected an object, got 3."),
        (b'{"hidden_size": 1, "hidden_size": 2}', "the key 'hidden_size' appears twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not a config.json: "),
        (b"[" * 100_000, "is nested too deep"),
        (b'{"a":' * 100_000, "is nested too deep"),
        (b"\xff\xfe\x00\x01binary", "is not text in UTF-8."),
        (b"\x00" * 64, "is not JSON: "),
        (b" " * (4 * 2**20) + b"{}", "bytes, a config.json at most 4194304."),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes, message: str):
    """Whatever stands in the file, the user gets a sentence with its path."""
    path = tmp_path / "config.json"
    path.write_bytes(content)

    with pytest.raises(SpecError) as refused:
        read_config(path)

    assert refused.value.where == str(path)
    assert message in str(refused.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path):
    """Missing, a folder, a pipe, a path that no file can have."""
    os.mkfifo(tmp_path / "pipe")

    for path, message in {
        tmp_path / "missing.json": "no such file",
        tmp_path: "is a folder, expected a file. Give the file config.json",
        tmp_path / "pipe": "is not a regular file",
        "a\0b": "cannot be read|no such file",
        "x" * 5000: "cannot be read|no such file",
    }.items():
        with pytest.raises(SpecError, match=message):
            read_config(path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("named", [("key",), ("key", "family")], ids="-".join)
def test_no_value_of_any_key_breaks_the_reader(named: tuple[str, ...]):
    """Each key, of each family too, in the first known config with it, with every third of some absurd values."""
    configs = [json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))]
    keys = {(one["model_type"] if "family" in named else "", key): one for one in reversed(configs) for key in one}

    for index, ((_, key), config) in enumerate(keys.items()):
        for value in (None, "x", -1, 0, 10**30, 2.5, [], {}, [None], True)[index % 3 :: 3]:
            with suppress(SpecError):
                model_from_config({**config, key: value})


def test_statements_that_agree_are_read():
    """Layers 1 and 3 of four are full by a pattern of 2; one dense layer in front by the list and by the number."""
    kinds = ["sliding_attention", "full_attention"] * 2
    windows = model_from_config(a_config(model_type="gemma3_text", sliding_window_pattern=2, layer_types=kinds))
    words = ["dense", "sparse", "sparse", "sparse"]

    assert [layer.attention.window for layer in windows.layers] == [4096, None, 4096, None]
    assert dense_layers({**LATENT_SIZES, "mlp_layer_types": words, "first_k_dense_replace": 1}) == [0]


@in_one_case("key", ["intermediate_size", "hidden_size", "num_hidden_layers", "vocab_size", "head_dim"])
def test_a_list_is_no_number_where_no_class_has_one(key: str):
    """Qwen3's class has one width, one vocabulary and one number of layers, a list of equal entries none."""
    value = a_config(head_dim=8)[key]
    with pytest.raises(SpecError, match=rf"model\.{key}: expected a whole number, got \[{value}, "):
        model_from_config(a_config(model_type="qwen3", **{key: [value] * 4}))


@pytest.mark.parametrize("key", ["moe_topk", "num_shared_expert"])
def test_a_list_has_an_entry_for_each_layer(key: str):
    """Hunyuan-A13B's file repeats both numbers for each of its layers, here four."""
    config = a_config(model_type="hunyuan_v1_moe", num_experts=8, moe_topk=2, num_shared_expert=1)

    assert model_from_config({**config, key: [config[key]] * 4}) == model_from_config(config)
    with pytest.raises(SpecError, match=rf"model\.{key}: has 3 entries, the model 4 layers"):
        model_from_config({**config, key: [config[key]] * 3})


def a_gated_delta_config(**changes: Any) -> dict[str, Any]:
    """A small Qwen3.5."""
    heads = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
    sizes = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}
    return a_config(model_type="qwen3_5_text", **heads, **{**sizes, **changes})


@pytest.mark.parametrize("value_heads", [2, 5])
def test_value_heads_of_a_gated_delta_are_a_multiple_of_its_key_heads(value_heads: int):
    """Qwen3-Next's class repeats each of the 4 key heads for the same number of value heads."""
    message = f"linear_num_value_heads: must be a multiple of the 4 key heads, got {value_heads}"
    with pytest.raises(SpecError, match=message):
        model_from_config({**a_gated_delta_config(), "linear_num_value_heads": value_heads})
    assert attention(a_gated_delta_config()).num_value_heads == 8


def test_mambas_heads_fill_its_width():
    """Mamba-2's class refuses 4 heads of 8 where 2 x 64 channels are asked for."""
    sizes = {"num_heads": 4, "head_dim": 8, "state_size": 16, "n_groups": 2, "conv_kernel": 4, "chunk_size": 8}
    config = {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 1000, **sizes}

    with pytest.raises(SpecError, match="num_heads: times the width of a head, 8, is 32, but the blocks are 128 wide"):
        model_from_config({**config, "expand": 2})
    assert model_from_config({**config, "expand": 2, "num_heads": 16}).num_layers == 2
