"""Tables: the same values, whether computed for each strategy or looked up."""

from __future__ import annotations

import gc
import pickle
import weakref
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodel import tables
from costmodel.memory import embedding_head_footprint, layer_footprint
from costmodel.pipelines.stages import stages
from costmodel.step.compute import layer_seconds
from costmodel.step.embedding_head import embedding_head_seconds
from costmodel.step.rank_time import p2p_seconds
from costmodel.tables import WORTH_A_TABLE, Record, lookup, microbatches, num_microbatches, signature, tabulate
from tests.cases import in_one_case
from tests.costmodel.strategies import MODELS, random_strategies, the_facts

QUANTITIES = (layer_seconds, embedding_head_seconds, layer_footprint, embedding_head_footprint, p2p_seconds, stages)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(Record):
    """Two arrays, one with an axis of its own."""

    product: NDArray[np.int64]
    rows: NDArray[np.int64]


class Counter:
    """A quantity that remembers how many values it was asked for."""

    def __init__(self):
        self.asked = 0

    def __call__(self, model, *, tp, pp):
        """The product of two degrees, and a row of three per strategy."""
        product = np.asarray(tp * pp)
        self.asked += product.size
        return Answer(product=product, rows=product[..., None] * np.arange(3))


def assert_same(seen: object, expected: object) -> None:
    """Both have the same arrays."""
    for name in (field.name for field in fields(expected)):
        one, other = getattr(seen, name), getattr(expected, name)
        if isinstance(other, Record):
            assert_same(one, other)
        else:
            assert np.array_equal(one, other), name


def test_signature_tells_facts_from_decisions():
    """Positional parameters are facts, keyword-only ones decisions."""
    assert signature(num_microbatches) == (("workload",), ("dp", "mbs"))
    assert signature(p2p_seconds) == (
        ("model", "cluster", "workload"),
        ("tp", "cp", "pp", "dp", "mbs", "sequence_parallel"),
    )


def test_a_rule_that_nobody_holds_dies():
    """The rules of a job are closures over it; that their signatures are known does not keep them, nor the job."""
    gc.disable()
    try:
        made_of = {1, 2, 4}

        def allowed(*, tp):
            return tp in made_of

        assert signature(allowed) == signature(allowed) == ((), ("tp",))
        alive = weakref.ref(allowed)
        del allowed
        assert alive() is None
    finally:
        gc.enable()


def test_microbatches():
    """128 sequences on 4 ranks, two at a time: 16; what does not divide is dropped."""
    given = the_facts(MODELS["dense"])

    assert num_microbatches(given.workload, dp=4, mbs=2) == 32
    assert num_microbatches(given.workload, dp=3, mbs=1) == 85
    assert microbatches(given, {"dp": np.array([1, 2]), "mbs": 2}).tolist() == [128, 64]


def test_tabulate_derives_microbatches():
    """A quantity that asks for them need not be told; told, it takes them."""

    def asked(*, num_microbatches):
        return num_microbatches

    given = the_facts(MODELS["dense"])

    assert tabulate(asked, given, {"dp": 4, "mbs": 2}) == 32
    assert tabulate(asked, given, {"dp": 4, "mbs": 2, "num_microbatches": 7}) == 7


def test_lookup_computes_each_combination_once():
    """A thousand strategies, two by three different ones: six values."""
    rng, counter = np.random.default_rng(1), Counter()
    decisions = {"tp": rng.choice([1, 2], 1000), "pp": rng.choice([1, 2, 4], 1000), "dp": rng.choice([1, 2], 1000)}

    answer = lookup(counter, the_facts(MODELS["dense"]), decisions)

    assert counter.asked == 6
    assert answer.product.tolist() == (decisions["tp"] * decisions["pp"]).tolist()
    assert answer.rows.shape == (1000, 3)
    assert answer.rows[:, 2].tolist() == (2 * decisions["tp"] * decisions["pp"]).tolist()


def test_records_of_tables_are_ordinary_ones():
    """Fields that are read late are those of a record that was made at once; a name that is none is refused."""
    given, tp = the_facts(MODELS["dense"]), np.tile([1, 2, 4], 200)

    answer = lookup(Counter(), given, {"tp": tp, "pp": 3})

    assert replace(answer, rows=tp).product.tolist() == (3 * tp).tolist()
    assert pickle.loads(pickle.dumps(answer)).product.tolist() == (3 * tp).tolist()
    with pytest.raises(AttributeError, match="Answer has no factor"):
        answer.factor  # noqa: B018


def test_lookup_keeps_what_it_computed():
    """Of the same facts a part of the combinations costs nothing, one more costs one, few alone stay alone."""
    given, counter = the_facts(MODELS["dense"]), Counter()
    few, some = np.tile([1, 2], 3), np.tile([1, 2, 4], 200)

    asked = []
    for tp in (few, some, few, some[::-1], np.append(some, 8), some, np.append(few, 16)):
        assert lookup(counter, given, {"tp": tp, "pp": 3}).product.tolist() == (3 * tp).tolist()
        asked.append(counter.asked)

    assert asked == [6, 9, 9, 9, 10, 10, 17]


def test_a_table_whose_other_axes_grow_is_made_anew():
    """The widest combination decides how many entries each has: those that are known are computed again."""
    asked = []

    def up_to(*, tp):
        asked.append(tp.tolist())
        return np.minimum(np.arange(tp.max()), tp[..., None])

    given, some = the_facts(MODELS["dense"]), np.tile([1, 2, 3], 200)
    for tp in (some, np.append(some, 2), np.append(some, 4), np.append(some, 5)):
        assert lookup(up_to, given, {"tp": tp}).tolist() == np.minimum(np.arange(tp.max()), tp[:, None]).tolist()

    assert asked == [[1, 2, 3], [4], [1, 2, 3, 4], [5], [1, 2, 3, 4, 5]]


def test_the_same_arrays_are_looked_up_once():
    """Other arrays are looked up, and so are equal ones."""
    given, counter = the_facts(MODELS["dense"]), Counter()
    decisions = {"tp": np.tile([1, 2, 4], 200), "pp": np.tile([1, 2, 4], 200)}

    first, again = lookup(counter, given, decisions), lookup(counter, given, dict(decisions))
    other = lookup(counter, given, decisions | {"pp": decisions["pp"][::-1]})
    equal = lookup(counter, given, decisions | {"pp": decisions["pp"].copy()})

    assert again is first
    assert equal is not first
    assert np.array_equal(equal.product, first.product)
    assert np.array_equal(other.product, decisions["tp"] * decisions["pp"][::-1])


def test_a_table_that_is_full_begins_anew(monkeypatch):
    """The answers stay the same."""
    monkeypatch.setattr(tables, "MOST_COMBINATIONS", 100)
    given, counter = the_facts(MODELS["dense"]), Counter()

    for first in range(1, 2000, 300):
        tp = np.arange(first, first + 300)
        assert lookup(counter, given, {"tp": tp, "pp": 2}).product.tolist() == (2 * tp).tolist()
        assert len(given.tables[counter].keys) <= 300


@pytest.mark.parametrize("shape", [(WORTH_A_TABLE,), (16, 32), (4, 8, 16)])
def test_lookup_keeps_the_shape_of_the_decisions(shape):
    """Axes of strategies stay in front of a quantity's own."""
    rng, counter = np.random.default_rng(2), Counter()
    decisions = {"tp": rng.choice([1, 2, 8], shape), "pp": rng.choice([1, 2, 4], shape)}

    answer = lookup(counter, the_facts(MODELS["dense"]), decisions)

    assert np.array_equal(answer.product, decisions["tp"] * decisions["pp"])
    assert answer.rows.shape == (*shape, 3)


def test_lookup_takes_scalars_beside_arrays():
    """A decision that all strategies share."""
    decisions = {"tp": np.tile([1, 2, 4], 200), "pp": 3}

    answer = lookup(Counter(), the_facts(MODELS["dense"]), decisions)

    assert answer.product.tolist() == (3 * decisions["tp"]).tolist()


def test_lookup_of_no_strategies():
    """An empty table is a table."""
    empty = np.zeros(0, dtype=np.int64)

    assert lookup(Counter(), the_facts(MODELS["dense"]), {"tp": empty, "pp": empty}).product.shape == (0,)


def test_lookup_broadcasts_like_tabulate():
    """Decisions on axes of their own are an outer product."""
    decisions = {"tp": np.array([1, 2, 4])[:, None], "pp": np.array([1, 2, 3, 4])[None, :]}

    assert lookup(Counter(), the_facts(MODELS["dense"]), decisions).product.shape == (3, 4)


@in_one_case("quantity", QUANTITIES, ids=lambda quantity: quantity.__name__)
@in_one_case("model", MODELS.values(), ids=MODELS)
def test_lookup_equals_tabulate(quantity, model):
    """Bit by bit, on random strategies."""
    given, decisions = the_facts(model), random_strategies(model, 40, seed=3)

    seen, expected = lookup(quantity, given, decisions), tabulate(quantity, given, decisions)

    if isinstance(expected, np.ndarray):
        assert np.array_equal(seen, expected)
    elif quantity is stages:
        assert np.array_equal(seen.layers, expected.layers)
        assert_same(seen, expected)
    else:
        assert_same(seen, expected)
