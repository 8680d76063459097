"""Small runs projected to larger ones: which pairs there are, and that fits saw neither of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.accuracy.fit import timed_cases
from benchmarks.accuracy.metrics import read_table
from benchmarks.traces.projected import SOURCES, Pair, _anchor, _lines, _pair, read_constants, siblings
from benchmarks.traces.projected_recorded import is_plain, is_small
from benchmarks.traces.recorded.configurations import traced_configurations
from planner.jobs.run_jobs import References
from planner.measure.project.anchor import Anchor
from planner.measure.runs.predictions import Case


@pytest.fixture(scope="module")
def table() -> tuple[list[Case], References]:
    """The published runs with a step time, and what they refer to."""
    rows, known = read_table()
    return timed_cases(rows, known), known


class TestPairs:
    """Each small run with each larger sibling."""

    @pytest.mark.slow
    def test_siblings_share_what_they_must_and_are_larger(self, table: tuple[Sequence[Case], References]) -> None:
        """Source, model, device and precision are the same; layers and devices are no fewer, and not both equal."""
        pairs = list(siblings(table[0]))

        assert {small.run.source.split()[0] for small, _ in pairs} == {"NVIDIA", "llm-foundry", "vTrain"}
        for small, large in pairs:
            same = [(one.run.source, one.run.model, one.run.device) for one in (small, large)]
            assert same[0] == same[1]
            assert small.facts.workload.precision == large.facts.workload.precision
            assert small.facts.model.num_layers <= large.facts.model.num_layers
            assert small.run.num_devices <= large.run.num_devices
            assert small.facts.model.num_layers < large.facts.model.num_layers or (
                small.run.num_devices < large.run.num_devices
            )

    @pytest.mark.slow
    def test_a_proxy_of_seven_layers_projects_126(self, table: tuple[Sequence[Case], References]) -> None:
        """Llama 3.1 405B on 576 devices from 7 layers on 32: closer than half of the error without."""
        timed, known = table
        one = {case.run.id: case for case in timed}
        small, large = one["dgxc-24.11.1-0019"], one["dgxc-24.11.1-0022"]
        theirs = known.refit(read_constants()["NVIDIA dgxc"])

        found = _anchor(small, large, theirs)

        assert isinstance(found, Anchor)
        pair = _pair(small, large, found, theirs)
        assert pair.error < pair.model_error / 2

    def test_every_source_has_constants_of_its_own(self) -> None:
        """They were fitted without it."""
        assert set(read_constants()) == set(SOURCES)


class TestReport:
    """What is printed."""

    def test_means_are_of_the_pairs(self) -> None:
        """Errors of 10 % and 20 % without the small run, 1 % and 3 % with it."""
        pairs = [a_pair(model=1.1, projected=1.01), a_pair(model=0.8, projected=0.97)]

        last = [line for line in _lines(pairs) if line.startswith("all")]

        assert last[0].split() == ["all", "2", "15.0%", "2.0%", "100%"]


def a_pair(*, model: float, projected: float) -> Pair:
    """A larger run of one second."""
    return Pair(
        source="NVIDIA dgxc",
        name="tiny",
        sizes="1 layer -> 2",
        is_alike=True,
        measured=1.0,
        model=model,
        projected=projected,
        measured_fraction=0.9,
        is_inside=True,
    )


class TestRecorded:
    """Small transformers on this machine."""

    def test_at_least_eight_targets_have_a_small_run(self) -> None:
        """Two ranks with four and eight layers, both data-parallel and pipelines, each from one process with two."""
        everything = traced_configurations()
        targets = [
            one
            for one in everything
            if one.num_ranks > 1 and one.num_layers > 2 and is_plain(one) and any(is_small(a, one) for a in everything)
        ]

        assert len(targets) >= 8
        assert {one.num_layers for one in targets} >= {4, 8}
        assert {one.pp for one in targets} == {1, 2}
