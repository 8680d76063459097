"""Validated records behave as frozen dataclasses whose entries pydantic checks."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest
from pydantic import ValidationError

from costmodel import catalog
from costmodel.facts.model import Mlp, Model
from costmodel.facts.reliability import RecoveryLevel

LLAMA = catalog.model("llama3-8b")
LEVEL = RecoveryLevel(name="pod", probability=0.6, seconds=262)


def test_entries_are_checked_and_converted():
    """A whole number becomes the float that the field is; text in its place, or an unknown entry, is refused."""
    assert isinstance(LEVEL.seconds, float)
    for wrong in ({"seconds": "long"}, {"seconds": -1}, {"second": 1}):
        with pytest.raises(ValidationError):
            RecoveryLevel(**{"name": "pod", "probability": 0.6, "seconds": 262, **wrong})


def test_changed_entries_are_checked_again():
    """Also dataclasses.replace refuses what does not fit."""
    assert replace(LEVEL, probability=1.0).probability == 1.0
    with pytest.raises(ValidationError):
        replace(LEVEL, probability=1.1)


def test_records_are_frozen():
    """Neither a field nor another attribute can be set or deleted."""
    for name in ("seconds", "other"):
        with pytest.raises(FrozenInstanceError):
            setattr(LEVEL, name, 1.0)
    with pytest.raises(FrozenInstanceError):
        del LEVEL.seconds


def test_equal_records_are_one_key():
    """Records compare by type and fields, without those that say so (a model's numerics)."""
    alike = RecoveryLevel(name="pod", probability=0.6, seconds=262.0)
    assert (alike, hash(alike)) == (LEVEL, hash(LEVEL))
    assert replace(LEVEL, name="node") != LEVEL
    assert Mlp(ffn_hidden_size=8) != LEVEL
    numerics = replace(LLAMA.numerics, activation="none")
    assert replace(LLAMA, numerics=numerics) == LLAMA


@pytest.mark.parametrize("record", [LEVEL, LLAMA], ids=["slots", "dictionary"])
def test_copies_are_equal(record: RecoveryLevel | Model):
    """Workers of a batch get records by pickle."""
    assert pickle.loads(pickle.dumps(record)) == copy.deepcopy(record) == record


def test_records_are_dataclasses_that_show_their_fields():
    """Other code lists their fields, and a failed test shows them."""
    assert is_dataclass(LEVEL)
    assert [one.name for one in fields(LEVEL)] == ["name", "probability", "seconds"]
    assert repr(LEVEL) == "RecoveryLevel(name='pod', probability=0.6, seconds=262.0)"
