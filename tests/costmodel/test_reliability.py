"""MoFa's section 3.4 against its Table 5 and section 5.4."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import catalog, reliability
from costmodel.facts.device import Cluster
from costmodel.facts.reliability import Checkpoint, RecoveryLevel, Reliability
from costmodel.facts.workload import Workload
from tests.builders_cluster import GB, a_cluster, a_workload

TABLE_5 = Path(__file__).parents[2] / "benchmarks" / "paper" / "table5.csv"


def the_rows() -> list[dict[str, str]]:
    """The six rows of Table 5."""
    with TABLE_5.open() as lines:
        return list(csv.DictReader(lines))


def the_facts(row: dict[str, str], *, mttr_seconds: float) -> tuple[Cluster, Workload, Reliability]:
    """
    What the row says.

    Its steps are those of 1e12 tokens in sequences of 4,096, whatever the text says, and its times those of failures in
    percent: 0.50 is one failure in 200 node-days (5.4.1 varies 0.0025 to 0.0150).
    """
    return (
        a_cluster(int(row["n_gpu"]), devices_per_node=int(row["gpus_per_node"])),
        a_workload(global_batch_size=int(row["gbs"]), sequence_length=4096, tokens=1e12),
        Reliability(
            failures_per_node_day=float(row["fail_per_node_day"]) / 100,
            mttr_seconds=mttr_seconds,
            checkpoint_seconds=float(row["T_ckpt_s"]),
        ),
    )


def the_decisions(row: dict[str, str]) -> dict[str, float]:
    """Interval, steps and step time of the row."""
    return {
        "interval_steps": int(row["K_steps"]),
        "num_steps": int(row["N_steps"]),
        "step_seconds": float(row["T_step_model_s"]),
    }


@pytest.fixture(params=the_rows(), ids=lambda row: f"{row['model']}-{row['n_gpu']}")
def row(request):
    """One row of Table 5."""
    return request.param


def test_table_5_steps(row):
    """Equation (37): exact."""
    _, workload, _ = the_facts(row, mttr_seconds=0.0)

    assert reliability.num_steps(workload) == int(row["N_steps"])


def test_table_5_total_time_with_the_printed_repair_time(row):
    """Equations (38) and (39): the print rounding of MTTR leaves up to 1.5 s of up to 3.9e8 s."""
    cluster, _, failures = the_facts(row, mttr_seconds=float(row["MTTR_s"]))

    total = reliability.total_seconds(cluster, failures, **the_decisions(row))

    assert total == pytest.approx(float(row["T_total_s"]), rel=0, abs=1.5)


def test_table_5_total_time_with_the_fitted_repair_time(row):
    """Equations (38) and (39): MTTR = 121.1018 + 0.1039877 n, which the residual digits give, leaves 0.03 s."""
    cluster, _, failures = the_facts(row, mttr_seconds=121.1018 + 0.1039877 * int(row["n_gpu"]))

    total = reliability.total_seconds(cluster, failures, **the_decisions(row))

    assert total == pytest.approx(float(row["T_total_s"]), rel=0, abs=0.03)


def test_table_5_ettr(row):
    """Equation (40): the paper truncates to two digits of a percent."""
    cluster, _, failures = the_facts(row, mttr_seconds=float(row["MTTR_s"]))

    decisions = the_decisions(row)
    total = reliability.total_seconds(cluster, failures, **decisions)
    effective = reliability.effective_seconds(num_steps=decisions["num_steps"], step_seconds=decisions["step_seconds"])

    ettr = reliability.ettr_fraction(effective_seconds=effective, interruption_seconds=total - effective)

    assert math.floor(ettr * 10_000) == round(float(row["ETTR_pct"]) * 100)


def test_mean_time_to_repair():
    """Section 3.4: 0.3 x 141 + 0.6 x 262 + 0.1 x 307 = 42.3 + 157.2 + 30.7 = 230.2 s."""
    levels = [
        RecoveryLevel(name="process", probability=0.3, seconds=141),
        RecoveryLevel(name="pod", probability=0.6, seconds=262),
        RecoveryLevel(name="job", probability=0.1, seconds=307),
    ]

    assert reliability.mttr_seconds(levels) == pytest.approx(230.2)


def test_optimal_interval_of_section_541():
    """5.4.1: 37 steps; Young's first-order rule sqrt(2 T_ckpt / q) / T_step = sqrt(4 x 270,000) / 28 is 37.1."""
    failures = Reliability(failures_per_node_day=0.01, mttr_seconds=60, checkpoint_seconds=2)
    cluster = a_cluster(256)

    best = reliability.optimal_interval_steps(cluster, failures, num_steps=10**6, step_seconds=28)

    assert 37 < best < 37.2
    assert best == pytest.approx(math.sqrt(4 * 270_000) / 28, rel=0.01)


def test_optimal_interval_without_failures():
    """Nothing fails, so no checkpoint is worth its time."""
    never = Reliability(failures_per_node_day=0, mttr_seconds=60, checkpoint_seconds=2)

    assert reliability.optimal_interval_steps(a_cluster(), never, num_steps=100, step_seconds=1) == math.inf


@given(
    interval_steps=st.integers(1, 100),
    num_steps=st.integers(1, 10**6),
    step_seconds=st.floats(0.01, 100),
    mttr_seconds=st.floats(0, 1000),
    checkpoint_seconds=st.floats(0, 100),
    init_seconds=st.floats(0, 1000),
)
def test_times_add_up(interval_steps, num_steps, step_seconds, mttr_seconds, checkpoint_seconds, init_seconds):
    """Effective time and interruptions of equations (37) to (39) are the total time of their closed form."""
    decisions = {"interval_steps": interval_steps, "num_steps": num_steps, "step_seconds": step_seconds}
    failures = Reliability(
        failures_per_node_day=0.5,
        mttr_seconds=mttr_seconds,
        checkpoint_seconds=checkpoint_seconds,
        init_seconds=init_seconds,
    )

    total = reliability.total_seconds(a_cluster(64), failures, **decisions)
    effective = reliability.effective_seconds(num_steps=num_steps, step_seconds=step_seconds)
    happened = reliability.num_failures(a_cluster(64), failures, total_seconds=total)
    lost = reliability.interruption_seconds(failures, failures=happened, **decisions)

    assert effective + lost == pytest.approx(total)


def saving(num_devices: int, **how: Any) -> Reliability:
    """What checkpoints of 896 GB, 14 GB for each of 64 devices, cost on some devices of 32 GB/s to the host."""
    given = Reliability(failures_per_node_day=0.01, mttr_seconds=60, checkpoint_seconds=0)
    whole = replace(given, checkpoint=Checkpoint(nbytes=64 * 14 * GB, **how))
    return reliability.scale_reliability(a_cluster(num_devices), whole)


def test_evaluations_and_waits_for_data_are_interruptions():
    """
    100 steps of 10 s: evaluations of 3 forward passes every 10 steps take 100 s, waits of 0.1 s 10 s, the start 40 s.

    Nothing fails: 1,000 + 150 s in all, of which 1,000 are effective.
    """
    whole = Reliability(
        failures_per_node_day=0,
        mttr_seconds=0,
        checkpoint_seconds=0,
        init_seconds=40,
        evaluation_fraction=reliability.evaluation_fraction(evaluation_steps=3, interval_steps=10),
        loading_seconds=0.1,
    )
    numbers = {"interval_steps": 10, "num_steps": 100, "step_seconds": 10.0}

    assert reliability.total_seconds(a_cluster(8), whole, **numbers) == pytest.approx(1150)
    assert reliability.interruption_seconds(whole, failures=0, **numbers) == pytest.approx(150)


def test_the_best_interval_counts_evaluations():
    """With evaluations of a tenth of the steps the best of all intervals is still the formula's, rounded."""
    whole = Reliability(
        failures_per_node_day=0.02, mttr_seconds=230, checkpoint_seconds=30, init_seconds=500, evaluation_fraction=0.1
    )
    cluster, numbers = a_cluster(1024), {"num_steps": 10_000, "step_seconds": 10.0}
    best = min(range(1, 500), key=lambda k: reliability.total_seconds(cluster, whole, interval_steps=k, **numbers))

    assert abs(reliability.optimal_interval_steps(cluster, whole, **numbers) - best) <= 1


def test_checkpoint_waits_for_disk_only_when_synchronous():
    """14 GB each, 0.4375 s to the host, 7 s to disks of its own: training waits for both, or for the copy alone."""
    waiting = saving(64, disk_write_bandwidth=2 * GB)
    copying = saving(64, disk_write_bandwidth=2 * GB, is_asynchronous=True)

    assert (waiting.checkpoint_seconds, waiting.write_seconds) == pytest.approx((7.4375, 0))
    assert (copying.checkpoint_seconds, copying.write_seconds) == pytest.approx((0.4375, 7.4375))
    assert waiting.storage_seconds == copying.storage_seconds == pytest.approx(7)


def test_all_devices_share_the_storage():
    """896 GB at 64 GB/s are 14 s, however many devices write them; the copy is shorter where more of them take part."""
    few, many = (saving(num, storage_bandwidth=64 * GB, is_asynchronous=True) for num in (64, 128))

    assert few.storage_seconds == many.storage_seconds == pytest.approx(14)
    assert few.checkpoint_seconds == pytest.approx(2 * many.checkpoint_seconds)


def test_storage_grows_with_the_cluster_unless_it_is_told():
    """2 TB/s for 16,384 devices (Llama 3), and no less than the eight disks of one node at 2 GB/s."""
    saved = Checkpoint(nbytes=1.0)
    by_size = [reliability.storage_bandwidth(a_cluster(num), saved) / GB for num in (1, 8, 64, 1024, 16_384)]

    assert by_size == pytest.approx([2, 16, 16, 125, 2000])
    assert reliability.storage_bandwidth(a_cluster(64), replace(saved, disk_write_bandwidth=GB)) == 64 * GB
    assert reliability.storage_bandwidth(a_cluster(64), replace(saved, storage_bandwidth=5 * GB)) == 5 * GB


def test_measured_seconds_stay_as_they_are():
    """10 s are lost on any number of devices; with a bandwidth of storage it is known what goes on beside them."""
    alone, beside = saving(64, lost_seconds=10), saving(128, lost_seconds=10, storage_bandwidth=28 * GB)

    assert (alone.checkpoint_seconds, alone.write_seconds, alone.storage_seconds) == (10, 0, 10)
    assert (beside.checkpoint_seconds, beside.write_seconds, beside.storage_seconds) == pytest.approx((10, 32, 32))


def test_storage_is_written_for_a_share_of_the_time():
    """Of intervals of K steps of 3 s and 2 s of waiting 8 s are at most a tenth from 26 steps on; 90 s need 30."""
    one = Reliability(failures_per_node_day=0, mttr_seconds=0, checkpoint_seconds=2, storage_seconds=8)
    shared = replace(one, max_write_fraction=0.1)

    assert reliability.shortest_interval_steps(one, step_seconds=3) == 2
    assert reliability.shortest_interval_steps(shared, step_seconds=3) == 26
    assert reliability.shortest_interval_steps(replace(shared, write_seconds=90), step_seconds=3) == 30
    assert 8 / (26 * 3 + 2) == 0.1


def test_failures_leave_nothing_of_the_longest_interval():
    """Where half an interval and the repair take as long as one failure is from the next."""
    given = Reliability(failures_per_node_day=10, mttr_seconds=60, checkpoint_seconds=2)
    longest = reliability.longest_interval_seconds(a_cluster(64), given)

    assert reliability.progress_fraction(a_cluster(64), given, interval_steps=1, step_seconds=longest) == pytest.approx(
        0
    )
    assert longest == 2 * (86_400 / 80 - 60)
    assert reliability.longest_interval_seconds(a_cluster(), replace(given, failures_per_node_day=0)) == math.inf


@pytest.mark.parametrize("recipe", ["fp8", "mxfp8", "nvfp4"])
def test_checkpoints_hold_no_narrow_copies(recipe):
    """Weights in 16 bits, master weights and two moments in FP32; what matmuls read is cast from them again."""
    workload = replace(a_workload(), precision=catalog.precision(recipe))

    assert reliability.checkpoint_bytes(workload, num_parameters=1.0) == 2 + 4 + 4 + 4
