"""The checkpoint interval: the paper's point, and every other interval as the oracle."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.errors import SpecError
from costmodel.facts.reliability import Checkpoint, Reliability
from costmodel.facts.workload import Workload
from costmodel.reliability import scale_reliability
from planner.jobs.checkpoints import CheckpointSchedule, schedule_checkpoints, schedule_every
from tests.builders_cluster import a_cluster, a_workload


def a_training(num_steps: int) -> Workload:
    """A workload of so many steps."""
    return a_workload(global_batch_size=1, sequence_length=1, tokens=num_steps)


def test_section_541():
    """32 nodes, 0.01 failures per node and day, 28 s steps, 2 s checkpoints, 60 s repairs: K* = 37, ETTR 99.59 %."""
    reliability = Reliability(failures_per_node_day=0.01, mttr_seconds=60, checkpoint_seconds=2)

    schedule = schedule_checkpoints(a_cluster(256), a_training(10**6), reliability, step_seconds=28)

    assert schedule.interval_steps == 37
    assert schedule.interval_seconds == 37 * 28
    assert math.floor(schedule.ettr * 10_000) == 9959


def test_table_5_row_1():
    """MoFa, Table 5, LLaMA2-70B on 128 GPUs with K = 10; 26,947,190.75 s are 311.9 days and 958,122 GPU hours."""
    reliability = Reliability(failures_per_node_day=0.005, mttr_seconds=134.41, checkpoint_seconds=4.19)
    workload = a_workload(global_batch_size=256, sequence_length=4096, tokens=1e12)

    schedule = schedule_every(a_cluster(128), workload, reliability, step_seconds=27.83, interval_steps=10)

    assert schedule.num_steps == 953_675
    assert schedule.total_seconds == pytest.approx(26_947_190.75, abs=1.5)
    assert schedule.effective_seconds + schedule.interruption_seconds == pytest.approx(schedule.total_seconds)
    assert schedule.days == pytest.approx(311.89, abs=0.005)
    assert schedule.gpu_hours == pytest.approx(958_122, abs=1)


@given(
    num_nodes=st.integers(1, 64),
    num_steps=st.integers(1, 300),
    step_seconds=st.floats(0.01, 1000),
    failures_per_node_day=st.one_of(st.just(0.0), st.floats(1e-6, 50)),
    mttr_seconds=st.floats(0, 1000),
    checkpoint_seconds=st.one_of(st.just(0.0), st.floats(1e-3, 1000)),
    init_seconds=st.floats(0, 1e5),
)
def test_no_other_interval_is_better(
    num_nodes, num_steps, step_seconds, failures_per_node_day, mttr_seconds, checkpoint_seconds, init_seconds
):
    """The chosen interval has the smallest total time of all intervals from 1 to the number of steps."""
    rate = num_nodes * failures_per_node_day / 86_400
    fixed = num_steps * step_seconds + init_seconds
    totals = {
        interval: (fixed + num_steps / interval * checkpoint_seconds) / progress
        for interval in range(1, num_steps + 1)
        if (progress := 1 - rate * (mttr_seconds + interval * step_seconds / 2)) > 1e-9
    }
    assume(1 in totals)

    schedule = schedule_checkpoints(
        a_cluster(8 * num_nodes),
        a_training(num_steps),
        Reliability(
            failures_per_node_day=failures_per_node_day,
            mttr_seconds=mttr_seconds,
            checkpoint_seconds=checkpoint_seconds,
            init_seconds=init_seconds,
        ),
        step_seconds=step_seconds,
    )

    assert schedule.total_seconds == pytest.approx(min(totals.values()), rel=1e-12)
    assert totals[schedule.interval_steps] == pytest.approx(min(totals.values()), rel=1e-12)


def test_without_failures_one_checkpoint_at_the_end():
    """100 steps of 2 s and one checkpoint of 5 s; free checkpoints are saved at every step."""
    never = Reliability(failures_per_node_day=0, mttr_seconds=60, checkpoint_seconds=5)

    schedule = schedule_checkpoints(a_cluster(), a_training(100), never, step_seconds=2)

    assert (schedule.interval_steps, schedule.continuous_interval_steps) == (100, math.inf)
    assert schedule.total_seconds == 205
    assert schedule.failures == 0
    free = Reliability(failures_per_node_day=0.1, mttr_seconds=60, checkpoint_seconds=0)
    assert schedule_checkpoints(a_cluster(), a_training(100), free, step_seconds=2).interval_steps == 1


def test_failures_that_outrun_progress_are_said_with_their_numbers():
    """8 nodes x 100 failures a day x (100 + 10 / 2) s are 84,000 s of the day's 86,400; twice as many are too many."""
    bearable = Reliability(failures_per_node_day=100, mttr_seconds=100, checkpoint_seconds=1)
    hopeless = Reliability(failures_per_node_day=200, mttr_seconds=100, checkpoint_seconds=1)

    assert schedule_checkpoints(a_cluster(64), a_training(100), bearable, step_seconds=10).ettr < 0.03
    with pytest.raises(
        SpecError, match=r"failures outrun progress: 1600 failures a day on 8 nodes, 105 s lost to each"
    ):
        schedule_checkpoints(a_cluster(64), a_training(100), hopeless, step_seconds=10)


def test_an_asynchronous_checkpoint_is_written_before_the_next_one_starts():
    """Free checkpoints would be saved at every 2 s step; 9 s of writing allow every fifth."""
    background = Reliability(failures_per_node_day=0.1, mttr_seconds=60, checkpoint_seconds=0, write_seconds=9)

    schedule = schedule_checkpoints(a_cluster(), a_training(100), background, step_seconds=2)

    assert schedule.interval_steps == 5


def test_storage_is_not_written_for_more_than_its_share():
    """Of 9 s of writing at most 5 % of the time: every 90th step of 2 s, of training that would save after each."""
    given = Reliability(failures_per_node_day=0.1, mttr_seconds=60, checkpoint_seconds=0, storage_seconds=9)

    schedule = schedule_checkpoints(
        a_cluster(), a_training(1000), replace(given, max_write_fraction=0.05), step_seconds=2
    )

    assert schedule.interval_steps == 90
    assert schedule.write_fraction == pytest.approx(0.05)
    assert schedule.num_checkpoints == 11


FAILING = Reliability(failures_per_node_day=10, mttr_seconds=30, checkpoint_seconds=0, max_write_fraction=0.05)


def test_storage_that_no_schedule_keeps_up_with_is_refused_with_the_least_that_does():
    """On 64 nodes that fail 10 times a day each; with the bandwidth that the message names there is a schedule."""
    cluster, training = a_cluster(512), a_training(100_000)
    saved = Checkpoint(nbytes=1e12, is_asynchronous=True, storage_bandwidth=1e9)

    def scheduled(bandwidth: float) -> CheckpointSchedule:
        faster = replace(FAILING, checkpoint=replace(saved, storage_bandwidth=bandwidth))
        return schedule_checkpoints(cluster, training, scale_reliability(cluster, faster), step_seconds=2)

    with pytest.raises(SpecError, match=r"storage_bandwidth.*no schedule keeps up.*takes storage 1000 s") as refused:
        scheduled(1e9)
    least = float(re.search(r"some (\S+) bytes per second", str(refused.value))[1])

    assert scheduled(1.01 * least).write_fraction <= 0.05
    with pytest.raises(SpecError, match="no schedule keeps up"):
        scheduled(0.97 * least)


def test_seconds_that_no_schedule_keeps_up_with_are_named():
    """100 s lost to each checkpoint, of which a job says no more."""
    cluster = a_cluster(512)
    given = replace(FAILING, checkpoint=Checkpoint(nbytes=1e12, lost_seconds=100))

    with pytest.raises(SpecError, match=r"reliability\.checkpoint_seconds: no schedule keeps up"):
        schedule_checkpoints(cluster, a_training(100_000), scale_reliability(cluster, given), step_seconds=2)
