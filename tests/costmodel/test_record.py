"""Records behave as frozen dataclasses, and pydantic checks the entries of validated ones."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace

import pytest
from pydantic import ValidationError

from costmodel import catalog
from costmodel.facts.calibration import Samples
from costmodel.facts.model import Mlp, Model
from costmodel.facts.reliability import RecoveryLevel
from costmodel.record import record

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


def test_fields_outside_the_hash_are_compared():
    """A mapping cannot be hashed; records that differ in it alone are different all the same."""
    samples = Samples(machine="A", operators=(), sources={"all": "here"})
    others = replace(samples, sources={})
    assert (hash(samples), samples != others) == (hash(others), True)


@record(frozen=True, slots=True)
class Span:
    """
    Numbers from one to another, for the tests.

    Parameters
    ----------
    least, most
        The ends.
    texts
        Both as text.
    """

    least: int
    most: int = 8
    seen: list[int] = field(default_factory=list, compare=False)
    texts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Write the ends."""
        object.__setattr__(self, "texts", (str(self.least), str(self.most)))


def test_plain_records_are_made_as_dataclasses_make_them():
    """By position or name, with defaults, fields of their own and what follows; wrong arguments are Python's errors."""
    span = Span(1)
    assert (span.most, span.texts, Span(least=1, most=2).texts) == (8, ("1", "8"), ("1", "2"))
    assert (span, hash(span)) == (Span(1, 8, [3]), hash(Span(1, 8, [3])))
    assert Span(1).seen is not Span(1).seen
    assert pickle.loads(pickle.dumps(span)) == copy.copy(span) == span
    for wrong in ((), (1, 2, [], ("1",))):
        with pytest.raises(TypeError):
            Span(*wrong)
    with pytest.raises(FrozenInstanceError):
        span.least = 2  # type: ignore[misc]


@pytest.mark.parametrize("checked", [LEVEL, LLAMA], ids=["slots", "dictionary"])
def test_copies_are_equal(checked: RecoveryLevel | Model):
    """Workers of a batch get records by pickle."""
    assert pickle.loads(pickle.dumps(checked)) == copy.deepcopy(checked) == checked


def test_records_are_dataclasses_that_show_their_fields():
    """Other code lists their fields, and a failed test shows them."""
    assert is_dataclass(LEVEL)
    assert [one.name for one in fields(LEVEL)] == ["name", "probability", "seconds"]
    assert repr(LEVEL) == "RecoveryLevel(name='pod', probability=0.6, seconds=262.0)"
