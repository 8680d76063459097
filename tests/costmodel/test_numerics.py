"""Facts of a config.json that change no cost: spellings, defaults of classes, what is refused."""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from costmodel.models.huggingface import model_from_config
from tests.cases import in_one_case

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}
GEMMA_3 = {**LLAMA, "model_type": "gemma3_text", "num_key_value_heads": 2, "num_hidden_layers": 6}


def numerics(mapping=LLAMA, **entries):
    """Facts of a configuration with more entries."""
    return model_from_config({**mapping, **entries}).numerics


def test_a_key_that_is_left_out_has_the_default_of_its_class():
    """LlamaConfig: base 10,000, epsilon 1e-6, standard deviation 0.02, no dropout."""
    found = numerics()

    assert (found.rotary.base, found.norm_epsilon, found.initializer_range) == (10000.0, 1e-6, 0.02)
    assert (found.attention_dropout, found.hidden_dropout) == (0.0, 0.0)


def test_a_key_that_is_null_says_that_nothing_is_known():
    """A default is that of a key which is not there."""
    found = numerics(rms_norm_eps=None, initializer_range=None, rope_theta=None)

    assert (found.rotary.base, found.norm_epsilon, found.initializer_range) == (None, None, None)


@pytest.mark.parametrize(
    "entries",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}},
        {
            "rope_parameters": {
                "rope_theta": 5e5,
                "rope_type": "yarn",
                "factor": 4,
                "original_max_position_embeddings": 4096,
            }
        },
        {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4}, "max_position_embeddings": 4096},
    ],
)
def test_rotary_embeddings_have_two_spellings(entries):
    """Those of transformers 4 and 5; without their own number scalings are of the model's positions."""
    rotary = numerics(**entries).rotary

    assert (rotary.base, rotary.scaling) == (5e5, "yarn")
    assert rotary.parameters == (("factor", 4.0), ("original_max_position_embeddings", 4096.0))


def test_layers_with_a_window_may_rotate_otherwise():
    """Gemma 3: base 10,000 in windows and 1,000,000 elsewhere; a file may say both."""
    assert numerics(GEMMA_3).windowed_rotary.base == 10000.0
    both = {
        "full_attention": {"rope_theta": 2e6, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 3e4, "rope_type": "default"},
    }
    found = numerics(GEMMA_3, rope_parameters=both)

    assert (found.rotary.base, found.rotary.scaling) == (2e6, "linear")
    assert (found.windowed_rotary.base, found.windowed_rotary.scaling) == (3e4, "default")


def test_two_models_that_differ_in_facts_alone_cost_alike():
    """They are equal: no cost depends on them."""
    assert model_from_config(LLAMA) == model_from_config({**LLAMA, "rope_theta": 5e5})


@in_one_case(
    ("entries", "complaint"),
    [
        ({"rms_norm_eps": "small"}, "model.rms_norm_eps: expected a number, got 'small'."),
        ({"rms_norm_eps": True}, "model.rms_norm_eps: expected a number, got true."),
        ({"attention_dropout": 1.5}, "model.attention_dropout: must be at least 0 and at most 1, got 1.5."),
        ({"rope_theta": 0}, "model.rope_theta: must be above 0, got 0."),
        ({"rope_scaling": "yarn"}, "model.rope_scaling: expected a mapping, got 'yarn'."),
        ({"rope_scaling": {"type": "linear", "factor": "8"}}, "model.rope_scaling.factor: expected a number, got '8'."),
        ({"hidden_act": 3}, "model.hidden_act: expected text, got 3."),
        (
            {"rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5},
            "model.layer_norm_eps: is 1e-05, but 'rms_norm_eps' is 1e-06, and they mean the same.",
        ),
    ],
)
def test_what_is_no_fact_is_refused(entries, complaint):
    """With its place, what was seen, and what is allowed."""
    with pytest.raises(SpecError) as error:
        numerics(**entries)

    assert str(error.value) == complaint


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_fact_that_is_not_finite_is_not_known(number: float):
    """It costs nothing, so it is read; exports ask for what the file does not say."""
    sizes = {"hidden_size": 64, "intermediate_size": 256, "vocab_size": 1000, "num_hidden_layers": 2}
    facts = {"rope_theta": number, "rms_norm_eps": number}
    model = model_from_config({"model_type": "llama", "num_attention_heads": 4, **sizes, **facts})

    assert model.numerics.norm_epsilon is None
    assert model.numerics.rotary is not None
    assert model.numerics.rotary.base is None
