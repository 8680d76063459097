"""Wrong data becomes one sentence: where, what was seen, what is expected."""

from __future__ import annotations

import pickle
from dataclasses import field
from typing import Any, Literal

import pytest
from pydantic.dataclasses import dataclass

from costmodel.errors import SpecError, mistakes_of, together
from costmodel.facts.calibration import Constants
from costmodel.facts.model import Model
from costmodel.facts.reliability import Reliability
from costmodel.validation import build, shown
from tests.cases import in_one_case


@dataclass(kw_only=True)
class Choices:
    """A record with unions of scalars, lists and records."""

    size: int | Literal["auto"] | list[int] = "auto"
    limits: dict[str, int] = field(default_factory=dict)


SEEN_IDS = ("text", "list", "mapping", "number", "number too long to print")


def an_attention(**changes: Any) -> dict[str, Any]:
    """Plain attention, as YAML has it."""
    return {"num_heads": 8, "num_kv_heads": 8, "head_dim": 64} | changes


def a_layer(**changes: Any) -> dict[str, Any]:
    """A layer, as YAML has it."""
    return {"attention": an_attention(), "feed_forward": {"ffn_hidden_size": 2048}} | changes


def a_model(**changes: Any) -> dict[str, Any]:
    """A model of one layer, as YAML has it."""
    return {"name": "tiny", "hidden_size": 512, "vocab_size": 1000, "layers": [a_layer()]} | changes


def message(record_type: type, mapping: object, where: str = "model") -> str:
    """What the user reads first."""
    with pytest.raises(SpecError) as raised:
        build(record_type, mapping, where)
    return str(mistakes_of(raised.value)[0])


def test_valid_data_becomes_the_record():
    """Lists become tuples, records nest, text that reads as a number is one."""
    model = build(Model, a_model(hidden_size="512"), "model")

    assert (model.hidden_size, model.num_layers, model.layers[0].attention.head_dim) == (512, 1, 64)


@in_one_case(
    ("changes", "expected"),
    [
        ({"hiden_size": 512}, "model.hiden_size: no such entry. Did you mean 'hidden_size'?"),
        ({"hidden_size": "8k"}, "model.hidden_size: expected a whole number, got '8k'."),
        ({"hidden_size": 8.5}, "model.hidden_size: expected a whole number, got 8.5."),
        ({"hidden_size": 0}, "model.hidden_size: must be at least 1, got 0."),
        ({"hidden_size": True}, "model.hidden_size: expected a number, got true."),
        ({"hidden_size": None}, "model.hidden_size: expected a whole number, got null."),
        ({"name": 3}, "model.name: expected text, got 3."),
        ({"layers": []}, "model.layers: length must be at least 1, got 0."),
        ({"layers": "abc"}, "model.layers: expected a list, got 'abc'."),
        ({"tied_embeddings": "maybe"}, "model.tied_embeddings: expected true or false, got 'maybe'."),
        (
            {"final_norm": "layr"},
            "model.final_norm: expected 'rms', 'layer' or 'none', got 'layr'. Did you mean 'layer'?",
        ),
    ],
)
def test_message_names_the_entry_and_what_was_seen(changes, expected):
    """Where, what was seen, what is expected."""
    assert message(Model, a_model(**changes)) == expected


def test_missing_entry():
    """The path is that of the entry that should be there."""
    entries = a_model()
    del entries["hidden_size"]

    assert message(Model, entries) == "model.hidden_size: is required but missing."


def test_misspelt_entry_goes_before_the_missing_one():
    """Without this order the user reads that ``hidden_size`` is missing, though it is only misspelt."""
    entries = a_model(hiden_size=512)
    del entries["hidden_size"]

    assert message(Model, entries) == "model.hiden_size: no such entry. Did you mean 'hidden_size'?"


def test_path_counts_into_lists():
    """The second layer is number 1."""
    layers = [a_layer(), a_layer(attention=an_attention(head_dim=-1))]

    assert message(Model, a_model(layers=layers)) == "model.layers.1.attention.head_dim: must be at least 1, got -1."


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        (an_attention(hed_dim=64), "hed_dim: no such entry. Did you mean 'head_dim'?"),
        ({"num_heads": 8, "kv_lora_rank": 512}, "q_lora_rank: is required but missing."),
        ({"variant": "gated_delta", "num_key_heads": 0}, "num_key_heads: must be at least 1, got 0."),
    ],
)
def test_union_of_records_is_judged_by_the_likeliest_one(attention, expected):
    """The message speaks of plain, latent or linear attention by the keys that were written, and names no class."""
    assert message(Model, a_model(layers=[a_layer(attention=attention)])) == f"model.layers.0.attention.{expected}"


def test_union_of_records_wants_a_mapping():
    """Three records could stand there, and none is a number."""
    layers = [a_layer(attention=7)]

    assert message(Model, a_model(layers=layers)) == "model.layers.0.attention: expected a mapping, got 7."


@in_one_case(
    ("entries", "expected"),
    [
        ({"size": 2.5}, "job.size: expected a whole number or 'auto', got 2.5."),
        ({"size": "atuo"}, "job.size: expected a whole number or 'auto', got 'atuo'."),
        ({"size": [1, "x"]}, "job.size.1: expected a whole number, got 'x'."),
        ({"limits": {"tp": "x"}}, "job.limits.tp: expected a whole number, got 'x'."),
        ({"limits": 3}, "job.limits: expected a mapping, got 3."),
    ],
)
def test_union_of_scalars_names_all_of_them(entries, expected):
    """A list is judged as a list, a scalar by every scalar that could stand there."""
    assert message(Choices, entries, "job") == expected


def test_keys_of_a_mapping_are_checked():
    """Where the type lists the keys, others are unknown entries."""
    expected = "calibration.matmul_efficiency.bf15: no such entry. Did you mean 'bf16'?"

    assert message(Constants, {"matmul_efficiency": {"bf15": 1}}, "calibration") == expected


@pytest.mark.parametrize("seen", [None, [1], "text"])
def test_whole_record_wants_a_mapping(seen):
    """An empty file or a list is no record."""
    assert message(Model, seen).startswith("model: expected a mapping, got ")


def test_entries_need_names():
    """YAML allows numbers as keys."""
    assert message(Model, {**a_model(), 1: 2}).startswith("model.1: no such entry. Known: ")


def test_not_a_number_is_refused():
    """YAML reads ``.nan`` as a number."""
    entries = {"failures_per_node_day": float("nan"), "mttr_seconds": 1, "checkpoint_seconds": 1}

    assert message(Reliability, entries, "r") == "r.failures_per_node_day: must be at least 0, got nan."


@in_one_case("seen", ["x" * 1000, [1] * 1000, {"a": "b" * 100}, 10**70, 10**5000], ids=SEEN_IDS)
def test_values_are_shortened(seen):
    """A message stays one line, whatever the user pasted; Python cannot even print the last one."""
    assert len(shown(seen)) <= 60
    assert "\n" not in message(Model, a_model(hidden_size=seen, vocab_size=seen))


def test_keys_are_shortened_and_stay_on_one_line():
    """A message stays one line, whatever the key."""
    assert len(message(Model, a_model(**{"x" * 1000: 1})).split(":")[0]) <= len("model.") + 60
    assert "\n" not in message(Model, a_model(**{"a\nb": 1}))


def test_errors_cross_processes_as_they_are():
    """Workers report them through a pipe."""
    error = SpecError("model.hidden_size", "is 0.", "It is at least 1.")

    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "model.hidden_size: is 0. It is at least 1."
    several = together([error, SpecError("top", "is 0.")])
    assert str(pickle.loads(pickle.dumps(several))) == str(several)
    assert mistakes_of(pickle.loads(pickle.dumps(several)))[1].where == "top"
