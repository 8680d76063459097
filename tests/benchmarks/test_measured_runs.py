"""What is known about the published runs themselves."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from benchmarks.accuracy.fit import FOLDER
from planner.runs.table import Run, read

ROUNDING_SECONDS = 2e-6
"""The times have six digits behind the point, or six digits in all."""


@pytest.fixture(scope="module")
def vtrain_on_one_node() -> list[Run]:
    """What the source calls measured on one node."""
    runs = [one for one in read(FOLDER / "runs.csv") if isinstance(one, Run)]
    return [run for run in runs if run.id.startswith("vtrain-single") and run.step_seconds is not None]


def test_vtrain_on_one_node_is_composed(vtrain_on_one_node: list[Run]) -> None:
    """Each further micro-batch adds the same: nobody measures that; profiled parts were added."""
    groups: defaultdict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
    for run in vtrain_on_one_node:
        replicas = run.num_devices // (run.tp * run.pp)
        num_microbatches = run.global_batch_size // (replicas * run.mbs)
        groups[run.model, run.tp, run.pp, replicas, run.mbs][num_microbatches] = run.step_seconds
    checked = 0
    for seconds in groups.values():
        points = sorted(seconds.items())
        slopes = [(after - before) / (more - fewer) for (fewer, before), (more, after) in pairwise(points)]
        for one, other in pairwise(slopes):
            assert one == pytest.approx(other, abs=ROUNDING_SECONDS)
            checked += 1
    assert checked > 50
