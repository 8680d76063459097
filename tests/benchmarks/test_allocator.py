"""The simulated allocator against sums by hand, and the catalog's shares against it and against measured layouts."""

from __future__ import annotations

import pytest

from benchmarks.allocator.__main__ import kind_of, measured_shares
from benchmarks.allocator.allocator import MIB, Allocator
from benchmarks.allocator.steps import Rank, deepep_bytes, hybridep_bytes, jobs, nccl_bytes
from costmodel.catalog.releases import ALLOCATORS, allocator


def played(*events, expandable=False, capacity=float("inf")) -> Allocator:
    """An allocator after tensors came (name, bytes) and went (name)."""
    found = Allocator(expandable=expandable, capacity=capacity)
    for event in events:
        if isinstance(event, tuple):
            found.allocate(*event)
        else:
            found.free(event)
    return found


@pytest.mark.parametrize(
    ("nbytes", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
    ],
)
def test_a_segment_is_as_large_as_its_request_says(nbytes, segment):
    """Up to 1 MiB two of them, below 10 MiB twenty, from there on the next even number (kSmallBuffer and so on)."""
    assert played(("a", nbytes)).reserved == segment


def test_sizes_are_rounded_to_blocks():
    """513 bytes take two blocks of 512."""
    assert played(("a", 513)).allocated == 1024


def test_a_large_block_is_split_only_above_a_mebibyte():
    """Of 12 freed MiB 11 leave 1, which stays with it; 10 leave 2, which another tensor of 2 gets."""
    whole, split = (played(("a", 12 * MIB), "a", ("b", nbytes * MIB), ("c", 2 * MIB)) for nbytes in (11, 10))

    assert (whole.allocated, whole.reserved) == (14 * MIB, 32 * MIB)
    assert (split.allocated, split.reserved) == (12 * MIB, 12 * MIB)


def test_the_smallest_block_that_is_large_enough_is_taken():
    """Of free 40 and 30 MiB, 28 come out of the 30, so that 40 are left for 40."""
    found = played(("a", 40 * MIB), ("b", 30 * MIB), "a", "b", ("c", 28 * MIB), ("d", 40 * MIB))

    assert found.reserved == 70 * MIB


def test_segments_do_not_grow_together():
    """Two freed segments of 20 MiB are no 40: 80 are reserved. Expandable ones are: 40."""
    events = (("a", 20 * MIB), ("b", 20 * MIB), "a", "b", ("c", 40 * MIB))

    assert [played(*events, expandable=grows).reserved for grows in (False, True)] == [80 * MIB, 40 * MIB]


def test_free_segments_go_before_memory_runs_out():
    """With 45 MiB the two are given back for the 40; with a tensor in one of them that one cannot be."""
    events = (("a", 20 * MIB), ("b", 20 * MIB), "a", "b")

    found, roomy = (played(*events, ("c", 40 * MIB), capacity=size * MIB) for size in (45, 80))

    assert (found.reserved, found.retries, roomy.retries) == (40 * MIB, 1, 0)
    with pytest.raises(MemoryError, match="beyond 20971520 reserved, 2097152 allocated"):
        played(*events, ("x", 2 * MIB), ("c", 40 * MIB), capacity=45 * MIB)


def test_expandable_segments_retry_in_every_step_below_what_they_hold():
    """Of FSDP's gathers: in room none, in less than is held some in the last step, though it runs."""
    job = next(job for job in jobs() if job.sharded == "tensors")
    room = Allocator(expandable=True)
    assert Rank(job, room).run() == 0

    tight = Allocator(expandable=True, capacity=(room.most_allocated + room.most_reserved) / 2)
    assert Rank(job, tight).run() > 0


def test_a_stream_keeps_its_blocks():
    """What a stream of gathers freed is not for that of compute."""
    found = played(("a", 20 * MIB), "a")
    found.allocate("b", 20 * MIB, stream="gather")

    assert found.reserved == 40 * MIB


def test_everything_goes_and_nothing_is_lost():
    """After steps only the states are left, and blocks never cover more than is reserved."""
    job = next(iter(jobs()))
    for expandable in (False, True):
        found = Allocator(expandable=expandable)
        Rank(job, found).run(steps=1)
        weights = [*job.matrices * job.layers, *[job.vocabulary * job.hidden] * 2]
        assert found.allocated == pytest.approx(sum(weights) * (2 + 4 + 12 / job.ranks), rel=1e-6)
        assert found.allocated <= found.most_allocated <= found.most_reserved


def test_the_catalog_s_shares_are_those_of_a_job():
    """Of the first one, whole weights: between the low and the high share, fewer with expandable segments."""
    job = next(iter(jobs()))
    shares = {}
    for name in ALLOCATORS:
        found = Allocator(expandable=name == "expandable")
        Rank(job, found).run()
        shares[name] = found.most_reserved / found.most_allocated - 1
        known = allocator(name).reserved.whole
        assert known.low - 0.01 <= shares[name] <= known.high + 0.01
    assert kind_of(job) == "whole"
    assert shares["expandable"] < shares["segments"]


def test_measured_layouts_lie_within_the_simulated_shares():
    """Nine layouts on B200 whose reserved and allocated peaks are known: eight, of which 80 % are seven."""
    measured, known = measured_shares(), allocator("segments").reserved.whole

    assert len(measured) == 9
    assert sum(known.low <= share <= known.high for share in measured.values()) >= 7


def test_buffers_of_communication():
    """A ring: 24 channels of 4 MiB + 4,915,200 + 524,288 bytes; DeepEP's 10 channels, 8 peers, 256 tokens of 14,336."""
    assert nccl_bytes(1) == 24 * (4 * MIB + 4_915_200 + 524_288)
    assert deepep_bytes(hidden=7168, ep=8) == 10 * 8 * 256 * 14336
    assert hybridep_bytes(hidden=7168, tokens=4096, ep=64) == 2 * 4096 * 64 * 14336
