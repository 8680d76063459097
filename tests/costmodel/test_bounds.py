"""Lower bounds of a step: no features, no overlaps, no sets of modules and no device undercut them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from costmodel.facts.model import Model
from costmodel.step.step import Cost, cost, least_seconds, lower_bound_seconds
from costmodel.strategy import MODULES, Recompute
from costmodel.tables import Facts
from tests.builders_cluster import GB, a_strategy
from tests.costmodel.strategies import (
    DENSE,
    FEATURE_OVERLAPS,
    GRAPHS,
    MODELS,
    PAIRS,
    PROFILES,
    all_features,
    models,
    models_by_profiles,
    random_degrees,
    random_strategies,
    the_facts,
    with_device,
    with_networks,
)

NUM_DEGREES, OF_A_MODE = 3, 2 ** len(FEATURE_OVERLAPS)
"""Random degrees of a table, and combinations of features that differ in their overlaps alone: the innermost ones."""


class Table(NamedTuple):
    """All 9,216 combinations of features on random degrees, and the 288 of them without overlaps: modes."""

    given: Facts
    degrees: dict[str, Any]
    outer: dict[str, Any]
    modes: dict[str, Any]
    costs: Cost

    @property
    def loosest_seconds(self) -> Any:
        """The bound of the degrees, whatever their features."""
        return lower_bound_seconds(self.given, self.degrees | dict.fromkeys(all_features()[0], 0))

    def by_mode(self, name: str) -> Any:
        """A figure of all combinations: degrees, modes, overlaps."""
        whole = np.broadcast_to(getattr(self.costs, name), (NUM_DEGREES, len(all_features())))
        return whole.reshape(NUM_DEGREES, -1, OF_A_MODE)


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def table(request: pytest.FixtureRequest) -> Table:
    """A table of a model under a profile, evaluated once for all bounds."""
    model, profile = request.param
    given = the_facts(MODELS[model], **PROFILES[profile])
    degrees = random_degrees(MODELS[model], NUM_DEGREES, seed=31)
    features = {name: np.array([one[name] for one in all_features()])[None, :] for name in all_features()[0]}
    outer = {name: values[:, None] for name, values in degrees.items()} | features
    modes = outer | {name: values[:, ::OF_A_MODE] for name, values in features.items()}
    return Table(given, degrees, outer, modes, cost(given, outer))


@pytest.mark.sampled(1)
def test_no_features_undercut_the_lower_bound(table: Table):
    """The bound of each of the degrees is at most the fastest of its 9,216 combinations."""
    seconds = table.by_mode("step_seconds")

    assert seconds.shape == (NUM_DEGREES, 288, OF_A_MODE)
    assert (table.loosest_seconds <= seconds.min(axis=(1, 2)) * (1 + 1e-12)).all()


@pytest.mark.slow
@models
def test_no_graphs_undercut_the_lower_bound_of_a_host_that_waits(model: Model):
    """A graph of a whole iteration spares its collectives their launches, too: of 5 ms each, those of 12 degrees."""
    given, degrees = (
        the_facts(model, launch_overhead_seconds=5e-3, launch_blocking=True),
        random_degrees(model, 12, seed=37),
    )
    features = dict.fromkeys(all_features()[0], 0)
    graphs = np.array(GRAPHS)[:, None]

    seconds = cost(given, degrees | features | {"cuda_graphs": graphs}).step_seconds

    assert (lower_bound_seconds(given, degrees | features) <= seconds.min(axis=0) * (1 + 1e-12)).all()


@pytest.mark.sampled(1)
def test_no_overlaps_undercut_the_bound_of_a_mode(table: Table):
    """The same combinations: for each of the 288 without their overlaps the fastest of 32; overlaps are not asked."""
    least, lightest = least_seconds(table.given, table.modes), cost(table.given, table.modes)

    assert all((table.modes[name] == 0).all() for name in FEATURE_OVERLAPS)
    every = least_seconds(table.given, table.outer).reshape(*least.shape, OF_A_MODE)
    np.testing.assert_allclose(every, np.broadcast_to(least[..., None], every.shape), rtol=1e-12)
    assert (least <= table.by_mode("step_seconds").min(axis=2) * (1 + 1e-12)).all()
    for name in ("device_bytes", "host_bytes"):
        assert (getattr(lightest, name)[..., None] <= table.by_mode(name) * (1 + 1e-12)).all(), name
    assert (table.loosest_seconds[:, None] <= least * (1 + 1e-12)).all()


@pytest.mark.sampled(1)
def test_no_dispatcher_and_no_graphs_undercut_the_bound_that_leaves_them_open(table: Table):
    """The bound of each mode of memory, and that with either of both given, against all 9,216 combinations."""
    given, modes = table.given, table.modes
    among = {name: np.unique(modes[name]).tolist() for name in ("token_dispatcher", "cuda_graphs")}

    exact, every = least_seconds(given, modes), least_seconds(given, modes, among=among)
    of_graphs, of_dispatchers = (least_seconds(given, modes, among={name: among[name]}) for name in sorted(among))

    assert all(len(values) > 1 for values in among.values())
    assert (every <= np.minimum(of_graphs, of_dispatchers) * (1 + 1e-12)).all()
    assert (np.maximum(of_graphs, of_dispatchers) <= exact * (1 + 1e-12)).all()
    assert (exact <= table.by_mode("step_seconds").min(axis=2) * (1 + 1e-12)).all()
    assert np.array_equal(every, least_seconds(given, modes | dict.fromkeys(among, np.int64(1)), among=among))


@pytest.mark.sampled(1)
def test_a_bound_above_the_limit_may_be_lower_and_below_the_limit_is_the_same(table: Table):
    """The limit is the bound of the fastest tenth; the rest has no data-parallel communication, or all of it."""
    exact = least_seconds(table.given, table.modes)
    at_most = np.quantile(exact[np.isfinite(exact)], 0.1)
    limited = least_seconds(table.given, table.modes, at_most=np.full(exact.shape, at_most))

    below = exact <= at_most
    np.testing.assert_allclose(limited[below], exact[below], rtol=1e-12)
    assert (limited <= exact * (1 + 1e-12)).all()
    assert (limited[~below] > at_most * (1 - 1e-12)).all()


@models
def test_steps_up_to_a_limit_are_those_without_one(model: Model):
    """Half of 300 random strategies are slower than a limit: those keep a bound above it."""
    given, strategies = the_facts(model), random_strategies(model, 300, seed=39)
    seconds = cost(given, strategies).step_seconds
    limit = np.float64(np.median(seconds[np.isfinite(seconds)]))

    limited = cost(given, strategies, at_most=limit)

    within = seconds <= limit
    assert np.array_equal(limited.step_seconds[within], seconds[within])
    assert (limited.step_seconds[~within] > limit).all()
    assert (limited.step_seconds <= seconds * (1 + 1e-12)).all()


APART = [name for name in MODULES if name != "every_other_matmul"]
"""Modules that are no parts of each other, but for those of experts."""


def random_sets(num: int, *, seed: int) -> np.ndarray:
    """Sets of modules, as decisions."""
    chosen = np.random.default_rng(seed).random((num, len(APART))) < 0.5
    return np.array([int(Recompute.of(*np.array(APART)[each])) if each.any() else 0 for each in chosen])


@pytest.mark.sampled(3)
@models_by_profiles
def test_no_part_of_a_set_undercuts_the_bound_of_the_set(model: Model, profile: dict[str, Any]):
    """300 random strategies with random sets of modules, all of which are part of all modules."""
    given, strategies = the_facts(model, **profile), random_strategies(model, 300, seed=35)
    none = strategies | {"recompute": np.int64(Recompute.NONE), "activation_offload": np.False_}

    bound = least_seconds(given, none, most_recompute=Recompute.of(*APART), may_offload=True)
    seconds = cost(given, strategies | {"recompute": random_sets(300, seed=36)}).step_seconds

    assert (bound <= seconds * (1 + 1e-12)).all()
    assert (bound <= least_seconds(given, none)).all()


@models
def test_the_lower_bound_ignores_features(model: Model):
    """It is a function of the degrees."""
    given, degrees = the_facts(model), random_degrees(model, 50, seed=32)
    zero, one = (lower_bound_seconds(given, degrees | dict.fromkeys(all_features()[0], value)) for value in (0, 1))

    assert zero.tolist() == one.tolist()


def test_the_lower_bound_takes_scalars_beside_arrays():
    """Decisions broadcast, whichever of them are arrays."""
    given, degrees = the_facts(DENSE), a_strategy(dp=8).decisions() | {"pp": np.array([1, 2, 7])}

    bound = lower_bound_seconds(given, degrees)

    assert bound.shape == (3,)
    assert bound == pytest.approx([float(lower_bound_seconds(given, degrees | {"pp": pp})) for pp in (1, 2, 7)])


SPEED = st.floats(min_value=0.01, max_value=100)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@for_all(
    inside=SPEED,
    outside=SPEED,
    flops=SPEED,
    memory=SPEED,
    host=SPEED,
    slowdowns=st.tuples(st.floats(1, 10), st.floats(1, 10), st.floats(0, 1)),
    law=st.none() | st.builds(dict, unhidden=st.floats(0, 1), slowdown=st.floats(0, 3), window=st.floats(0, 1)),
    model=st.sampled_from(list(MODELS.values())),
    seed=st.integers(0, 10**6),
)
def test_no_device_undercuts_the_lower_bound(inside, outside, flops, memory, host, slowdowns, law, model, seed):
    """Devices and networks faster or slower by up to a hundred, any coefficients, random features."""
    communication, compute, contention = slowdowns
    given = the_facts(
        model,
        overlap_slowdown_communication=communication,
        overlap_slowdown_compute=compute,
        tp_contention=contention,
        dp_overlap=law,
    )
    given = with_networks(given, inside=inside, outside=outside)
    given = with_device(
        given,
        peak_flops={"bf16": flops * 1e15},
        memory_bandwidth=memory * 3000 * GB,
        host_to_device_bandwidth=host * 32 * GB,
        device_to_host_bandwidth=host * 32 * GB,
    )
    strategies = random_strategies(model, 40, seed=seed)

    seconds = cost(given, strategies).step_seconds * (1 + 1e-12)
    assert (lower_bound_seconds(given, strategies) <= seconds).all()
    assert (least_seconds(given, strategies) <= seconds).all()
    none = strategies | {"recompute": np.int64(Recompute.NONE), "activation_offload": np.False_}
    of_sets = least_seconds(given, none, most_recompute=Recompute.of(*APART), may_offload=True)
    assert (
        of_sets <= cost(given, strategies | {"recompute": random_sets(40, seed=seed)}).step_seconds * (1 + 1e-12)
    ).all()
