"""The same on clusters that were there before: Dask's and Ray's, on this machine, started by the tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner.batch.answer import JobStatus
from planner.batch.run import finished, plan_many
from tests.planner import batch_work

ROOT = Path(__file__).parents[2]

HOLD_RAY = """
import sys, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9},
    "search": {"stages": "even"},
}


@pytest.fixture(scope="module", autouse=True)
def ray_without_tokens():
    """Ray else writes a token into the home folder, for which a driver asks only where its environment says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@pytest.fixture(scope="module")
def dask():
    """Address of a Dask cluster of one worker with two threads, below a nanny as most are."""
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def ray():
    """Address of a Ray cluster of two cores."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_RAY],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    address = next((line.strip() for line in holder.stdout if ":" in line), None)
    yield address
    holder.communicate("")


@pytest.fixture(params=["dask", "ray"])
def cluster(request):
    """Options that mean a cluster of either kind."""
    return {"backend": request.param, "scheduler": request.getfixturevalue(request.param)}


def test_a_cluster_plans_what_this_machine_plans(cluster):
    """The same figures, whoever computes them; a wrong job is its own line."""
    jobs = [JOB, {**JOB, "model": "llama3-9b"}, {**JOB, "top": 2}]

    here, there = (
        sorted(plan_many(jobs, **options), key=lambda result: result.key) for options in ({"processes": 1}, cluster)
    )

    assert [result.plans for result in there] == [result.plans for result in here]
    assert sorted(result.status for result in there) == ["optimal", "optimal", "wrong_input"]


def test_poison_and_time_limits_touch_only_their_jobs_on_a_cluster(cluster, tmp_path):
    """The cluster's own workers live on: the jobs are in processes beside them."""
    jobs = list(batch_work.jobs(10, "poison", "stuck", "stumbles once", "raises"))

    results = {
        result.name: result for result in finished(batch_work.crew(tmp_path, timeout_seconds=2.0, **cluster), jobs)
    }

    assert {name: str(result.status) for name, result in results.items() if not name.startswith("job")} == {
        "poison": "worker_died",
        "stuck": "timed_out",
        "stumbles once": "optimal",
        "raises": "failed",
    }
    assert [str(results[f"job {number}"].status) for number in range(10)] == ["optimal"] * 10
    assert [len(batch_work.attempts(tmp_path, job)) for job in jobs] == [2, 1, 2, 1] + [1] * 10


def test_a_cluster_serves_one_batch_after_the_other(cluster, tmp_path):
    """Whoever goes leaves nothing behind."""
    for _ in range(2):
        results = list(finished(batch_work.crew(tmp_path, **cluster), batch_work.jobs(5)))

        assert [result.status for result in results] == [JobStatus.OPTIMAL] * 5


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_scheduler_that_does_not_answer_is_named(backend):
    """Within seconds, and no worker is started."""
    pytest.importorskip({"dask": "distributed", "ray": "ray"}[backend], reason="not installed")
    with socket.socket() as taken:  # bound but not listening: nobody else gets this port meanwhile
        taken.bind(("127.0.0.1", 0))
        address = f"{'tcp://' if backend == 'dask' else ''}127.0.0.1:{taken.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(SpecError) as refused:
            plan_many([JOB], backend=backend, scheduler=address)

    assert f"scheduler: {address} does not answer" in str(refused.value)
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("address", ["here", "tcp://", "http://host:port", "127.0.0.1:99999999"])
def test_what_is_no_address_is_named(address):
    """One sentence for Dask and for Ray."""
    for backend, package in (("dask", "distributed"), ("ray", "ray")):
        pytest.importorskip(package, reason="not installed")
        with pytest.raises(SpecError, match=r"^scheduler: "):
            plan_many([JOB], backend=backend, scheduler=address)


@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_cluster_that_cannot_be_asked_says_what_to_install(backend, package, monkeypatch):
    """The extras are optional."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(SpecError) as refused:
        plan_many([JOB], backend=backend, scheduler="127.0.0.1:1")

    assert f"pip install 'pretraining-planner[{backend}]'" in str(refused.value)
