"""
Real model code as the oracle: parameters on the meta device, FLOPs by torch's counter on fake tensors.

Needs torch and transformers (``pip install -e .[oracle]``). The experts run as batched matmuls, one row for each of
the k experts of a token: the balanced work that the planner assumes, without the routing's data. Attention runs as
plain matmuls, which multiply every query with every key whatever the mask or the window: the ``full`` convention.
"""

from __future__ import annotations

import csv
import json
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

import costmodel
from costmodel import catalog
from costmodel.catalog.files import read
from costmodel.errors import SpecError
from costmodel.facts.model import Attention, CompressedAttention, LatentAttention, Layer, Mamba, Model
from costmodel.lowering import layer_operators
from costmodel.models.families import FAMILIES, PART_DEFAULTS
from costmodel.models.flops import forward_attention_flops, forward_matmul_flops, parameters, whole_shape
from costmodel.models.huggingface import model_from_config
from tests.builders import read_config
from tests.cases import read_table

REASON = "the oracle needs torch and transformers: pip install -e .[oracle]"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
NAMES = [row["model"] for row in csv.DictReader((CONFIGS / "param_counts.csv").open())]

CATALOG = Path(costmodel.__file__).parent / "catalog" / "models"
HYBRIDS = [path.stem for path in sorted(CATALOG.glob("nemotron-[h3]-*.yaml"))]

THEIRS = read_table("transformers_configs")

TOKENS = 1024
"""A multiple of every chunk of linear attention."""

CLASSES = sorted(set(FAMILIES) - set(THEIRS["without_a_class"]))
"""Families with a class of their own for text."""

OTHER_PARTS = "embed_tokens_extend"
"""What Phi-4's class has for images and sounds."""


def default_config(family: str) -> Any:
    """The default configuration of a family's class."""
    return transformers.AutoConfig.for_model(family, **THEIRS["completed"].get(family, {}))


def transformers_config(config: dict[str, Any]) -> Any:
    """The configuration as transformers' own class understands it."""
    spellings = THEIRS["foreign_spellings"].get(config["model_type"], {})
    known = {spellings.get(key, key): value for key, value in config.items()}
    family = THEIRS["without_a_class"].get(config["model_type"], config["model_type"])
    ignored = ("model_type", "quantization_config", "auto_map")
    return transformers.AutoConfig.for_model(family, **{k: v for k, v in known.items() if k not in ignored})


class WithHead(torch.nn.Module):
    """A text part with the head that its multimodal model has, tied as there."""

    def __init__(self, config: Any):
        super().__init__()
        module, name = THEIRS["text_models"][config.model_type]
        self.model = getattr(import_module(f"transformers.models.{module}.modeling_{module}"), name)(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if getattr(config, "tie_word_embeddings", False):
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, **inputs: Any) -> Any:
        """Logits."""
        return self.lm_head(self.model(**inputs).last_hidden_state)


def build_class(config: Any, **options: Any) -> Any:
    """The real model; of a family without a class for text the text part of another, with a head."""
    if config.model_type in THEIRS["text_models"]:
        for name, value in options.items():
            setattr(config, f"_{name}", value)
        return WithHead(config)
    if config.model_type == "emu3_text_model":
        return transformers.models.emu3.modeling_emu3.Emu3ForCausalLM._from_config(config, **options)
    if config.model_type == "mistral4":
        return transformers.Mistral4ForCausalLM._from_config(config, **options)
    return transformers.AutoModelForCausalLM.from_config(config, **options)


def build_on_meta(config: Any) -> Any:
    """The real model without memory."""
    with torch.device("meta"):
        return build_class(config)


def num_trained(model: Any) -> int:
    """Trained parameters of a model's text part, a tied weight once."""
    named = model.named_parameters()
    return sum(one.numel() for name, one in named if one.requires_grad and OTHER_PARTS not in name)


def num_parameters_on_meta(config: Any) -> int:
    """Trained parameters of the real model."""
    return num_trained(build_on_meta(config))


def hybrid_config(name: str, pattern: str) -> dict[str, Any]:
    """The configuration of a Nemotron in the catalog with other layers and no multi-token prediction."""
    whole: dict[str, Any] = yaml.safe_load((CATALOG / f"{name}.yaml").read_text())["config"]
    config = {key: value for key, value in whole.items() if value is not None}  # null: nobody knows
    return {
        **config,
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "num_nextn_predict_layers": 0,
    }


def cut_config(name: str, num_layers: int, **changes: Any) -> dict[str, Any]:
    """A configuration with its first layers only and no multi-token prediction."""
    config = {**json.loads((CONFIGS / f"{name}.json").read_text()), "use_mtp": False, "num_nextn_predict_layers": 0}
    key = "n_layer" if "n_layer" in config else "num_hidden_layers"
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:num_layers]
    return {**config, key: num_layers, **changes}


def counted_flops(config: dict[str, Any], tokens: int, *, fakes: bool = True) -> dict[str, int]:
    """FLOPs of the real model's forward pass by operator, as torch counts them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    def count(**mask: Any) -> dict[str, int]:
        model = build_class(
            transformers_config(config), attn_implementation="eager", experts_implementation="batched_mm"
        )
        counter = FlopCounterMode(display=False)
        with counter:
            model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False, **mask)
        return {str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()}

    with torch.no_grad():
        if not fakes:
            return count()
        with suppress(*WANTING_DATA), torch.device("meta"):
            return count(attention_mask=torch.ones(1, tokens, dtype=torch.long))
        with FakeTensorMode():
            return count()


WANTING_DATA = (RuntimeError, NotImplementedError, TypeError, ValueError)
"""Errors on the meta device, or of a mask, of classes that run with fake tensors: those take three times as long."""


def windowless(layer: Layer) -> Layer:
    """The layer as plain matmuls compute it: the whole sequence, then masked."""
    attention = layer.attention
    if not isinstance(attention, Attention | CompressedAttention | LatentAttention):
        return layer
    windows = {Attention: {"window": None}, CompressedAttention: {"window": TOKENS}}
    whole = replace(attention, **windows.get(type(attention), {}))
    indexer = whole.indexer and replace(whole.indexer, num_keys=TOKENS)
    return replace(layer, attention=replace(whole, indexer=indexer))


def our_flops(model: Model, tokens: int) -> int:
    """Matmuls and full scores of the forward pass."""
    plain = replace(model, layers=tuple(windowless(layer) for layer in model.layers))
    scores = forward_attention_flops(plain, sequence_length=tokens, attention="full")
    return forward_matmul_flops(plain, tokens=tokens) + scores


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_the_real_classes(name: str):
    """All configs, to the last digit."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())

    assert parameters(read_config(CONFIGS / f"{name}.json")) == num_parameters_on_meta(transformers_config(config))


UNTIED = ("dbrx",)
"""Families whose tied embeddings are refused."""


@pytest.mark.parametrize("family", CLASSES)
def test_parameters_of_every_family_by_its_defaults(family: str):
    """
    A family's default configuration is read as transformers 5 writes it, and counts the same.

    So it does with embeddings tied and not: a class without a list of tied weights ties none, whatever it is told.
    """
    config = default_config(family)
    if family in THEIRS["text_models"]:
        assert parameters(model_from_config(config.to_dict())) == num_parameters_on_meta(config)
        return

    config.tie_word_embeddings = False
    model = build_on_meta(config)
    assert parameters(model_from_config(config.to_dict())) == num_trained(model)

    config.tie_word_embeddings = True
    if family in UNTIED:
        with pytest.raises(SpecError, match="tie_word_embeddings"):
            model_from_config(config.to_dict())
        return
    model.tie_weights()  # looks at the configuration again
    assert parameters(model_from_config(config.to_dict())) == num_trained(model)


@pytest.mark.parametrize("family", CLASSES)
def test_absent_keys_mean_what_the_class_says(family: str):
    """Without a key the family's default is that of the class, or the reader asks for it; MTP only if written."""
    config = default_config(family).to_dict()
    whole = model_from_config(config)

    for key in config.keys() - {"num_nextn_predict_layers"}:
        with suppress(SpecError):
            assert model_from_config({name: config[name] for name in config if name != key}) == whole, key


PART_CLASSES = {
    one.model_type: one
    for config in transformers.CONFIG_MAPPING.values()
    for one in getattr(config, "sub_configs", {}).values()
    if getattr(one, "model_type", "") in PART_DEFAULTS
}
"""Classes of text parts that no name of transformers leads to."""


@pytest.mark.parametrize("name", sorted(PART_DEFAULTS))
def test_an_empty_text_part_is_the_default_of_its_class(name: str):
    """The sizes that transformers leaves out of the text part of a multimodal file."""
    config = PART_CLASSES[name]() if name in PART_CLASSES else transformers.AutoConfig.for_model(name)
    whole = model_from_config(config.to_dict())
    part = model_from_config({"model_type": "several", "text_config": {"model_type": name}})

    assert (part.layers, part.hidden_size, part.vocab_size) == (whole.layers, whole.hidden_size, whole.vocab_size)


def test_two_layers_of_llama_3_8b():
    """At 4096 tokens 7,876,970,020,864 in the weights and 4 L s^2 h in scores and values."""
    config = cut_config("llama-3-8b", 2)

    assert counted_flops(config, 4096) == {"aten.mm": 7_876_970_020_864, "aten.bmm": 4 * 2 * 4096**2 * 4096}
    assert forward_matmul_flops(model_from_config(config), tokens=4096) == 7_876_970_020_864


@pytest.mark.parametrize("name", [name for name in NAMES if name != "qwen3-next-80b-a3b"])
def test_flops_of_the_real_classes(name: str):
    """The first 8 layers of every config, scores and lightning attention included, to the last digit."""
    config = cut_config(name, 8)

    assert our_flops(model_from_config(config), TOKENS) == sum(counted_flops(config, TOKENS).values())


def test_flops_of_the_gated_delta_rule():
    """
    Qwen3-Next, to the last digit: all but what only one side counts.

    torch counts the short convolution (element-wise here), and does not count the triangular solve: per token and
    head a chunk of 64 times key and value, 128 wide each, in 32 heads.
    """
    config = cut_config("qwen3-next-80b-a3b", 4)
    counted = counted_flops(config, TOKENS)
    counted.pop("aten.convolution")
    solves = 3 * TOKENS * 32 * 64 * (128 + 128)

    assert our_flops(model_from_config(config), TOKENS) - solves == sum(counted.values())


def test_flops_of_a_decay_per_channel():
    """
    Kimi Linear, to the last digit: all but what only one side counts, or computes otherwise.

    torch counts the short convolution. The class computes products of keys with keys and queries as sums, which torch
    does not count (2 x 2 per pair in a chunk of 64 and channel of 128), and multiplies by an inverse instead of solving
    (twice the 64 x (128 + 128) of a solve), in 32 heads of the 5 of 6 layers.
    """
    known = FURTHER["kimi-linear-48b-a3b"]["config"]
    lists = {key: known[key][:6] for key in ("layer_types", "mlp_layer_types")}
    config = {**known, **lists, "num_hidden_layers": 6}
    counted = counted_flops(config, TOKENS)
    counted.pop("aten.convolution")
    uncounted = 5 * TOKENS * 32 * 64 * (4 * 128 - (128 + 128))

    assert our_flops(model_from_config(config), TOKENS) - uncounted == sum(counted.values())


def test_flops_of_compressed_attention_and_hyper_connections():
    """
    DeepSeek-V4's first five layers, to the last digit: all but what only one side counts.

    Hyper-connections mix 4 streams by a product of 4 x 4 matrices, twice per layer, which are passes over memory here.
    The class sums the 4 index heads as products of elements, of which each pair of 1,024 tokens and 256 entries in 2
    of 5 layers has one here.
    """
    config = {**FURTHER["deepseek-v4-flash"]["config"], **THEIRS["small_deepseek_v4"]}
    counted = counted_flops(config, TOKENS, fakes=False)
    mixed, summed = 2 * 5 * TOKENS * 2 * 4 * 4 * 256, 2 * TOKENS * 256 * 2 * 4

    assert our_flops(model_from_config(config), TOKENS) - summed == sum(counted.values()) - mixed


@pytest.mark.parametrize("name", HYBRIDS)
def test_parameters_of_hybrid_models(name: str):
    """Every Nemotron of the catalog, to the last digit."""
    model = catalog.model(name)
    pattern = yaml.safe_load((CATALOG / f"{name}.yaml").read_text())["config"]["hybrid_override_pattern"]

    assert parameters(model) == num_parameters_on_meta(transformers_config(hybrid_config(name, pattern)))


@pytest.mark.parametrize(
    "config",
    [
        hybrid_config("nemotron-h-8b", "M*-"),
        hybrid_config("nemotron-3-super-120b-a12b", "M*E"),
        hybrid_config("nemotron-h-56b", "M-"),
        {**read("families.yaml")["falcon-h1-34b"]["config"], "num_hidden_layers": 1},
    ],
    ids=["dense", "experts on a latent", "large", "beside attention"],
)
def test_flops_of_mamba(config: dict[str, Any]):
    """
    One layer of each kind, to the last digit: all but what only torch counts, or counts more often.

    That is the short convolution (element-wise here); the scores of B and C, which the plain code computes for each
    head and the kernels for each group; and its sum over all pairs of chunks, a running state in the kernels.
    """
    model = model_from_config(config)
    mamba = model.layers[0].beside or model.layers[0].attention
    assert isinstance(mamba, Mamba)
    counted = counted_flops(config, TOKENS)
    counted.pop("aten.convolution")
    scores = 2 * mamba.chunk_size * mamba.state_size * (mamba.num_heads - mamba.num_groups) * TOKENS
    states_ever = TOKENS // mamba.chunk_size + 1
    running = 2 * states_ever**2 * mamba.num_heads * mamba.head_dim * mamba.state_size

    assert our_flops(model, TOKENS) == sum(counted.values()) - scores - running


def test_backward_of_matmuls_is_twice_forward():
    """Forward and backward of one dense layer's weights: three times the forward pass."""
    model = model_from_config(cut_config("llama-3-8b", 1))
    operators = layer_operators(model.layers[0], whole_shape(model, sequence_length=TOKENS))

    assert all(one.backward_flops == 2 * one.flops for one in operators if one.kind == "matmul")


FURTHER = read("families.yaml")


@pytest.mark.parametrize("name", FURTHER)
def test_parameters_of_further_families(name: str):
    """The stored counts are those of the real classes, and what the class writes of itself is read alike."""
    config = transformers_config(FURTHER[name]["config"])

    assert num_parameters_on_meta(config) == FURTHER[name]["parameters"]
    assert model_from_config(config.to_dict()).layers == model_from_config(FURTHER[name]["config"]).layers


COUNTED = [name for name in FURTHER if not name.startswith(tuple(THEIRS["uncounted"]))]
"""Families in which both sides count the same parts."""


@pytest.mark.parametrize("name", COUNTED)
def test_flops_of_further_families(name: str):
    """
    The first layers and the head, to the last digit: six, of Step three without experts, which loop over data.

    Convolutions are element-wise here. Scans that loop over tokens get 32 of them.
    """
    tokens = 32 if name in THEIRS["scanned"] else TOKENS
    known, num_layers = FURTHER[name]["config"], 3 if name == "step-3.7-flash" else 6
    key = next(key for key in ("n_layer", "n_layers", "num_layers", "num_hidden_layers") if key in known)
    lists = {
        one: value[:num_layers] for one, value in known.items() if isinstance(value, list) and len(value) >= known[key]
    }
    config = {**known, key: num_layers, **lists, "num_nextn_predict_layers": 0}
    config |= {key: value for key, value in THEIRS["cut"].items() if key in known}
    counted = counted_flops(config, tokens)
    counted.pop("aten.convolution", None)

    assert our_flops(model_from_config(config), tokens) == sum(counted.values())
