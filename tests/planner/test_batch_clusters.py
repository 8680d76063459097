"""The same on clusters that were there before: Dask's and Ray's, on this machine, started by the tests."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner.batch.results import ResultsFile, read_results
from planner.batch.run import Tally, plan_many, run_batch, run_jobs
from tests.cases import in_one_case
from tests.planner import batch_work

ROOT = Path(__file__).parents[2]

HOLD_RAY = """
import sys, ray
ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9},
    "search": {"stages": "even", "pin": {"cp": 1, "pp": 1, "recompute": "none"}},
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
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def ray():
    """Address of a Ray cluster of one core."""
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


@pytest.fixture
def little_patience(monkeypatch):
    """Dask waits a second, not five, for whoever does not answer."""
    pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    monkeypatch.setattr("planner.batch.executors.dask.CONNECT_SECONDS", 1)


@pytest.fixture(params=["dask", "ray"])
def cluster(request):
    """Options that mean a cluster of either kind."""
    return {"backend": request.param, "scheduler": request.getfixturevalue(request.param)}


@pytest.fixture(scope="module")
def planned_here():
    """Three jobs, one of them wrong, and their results on this machine."""
    jobs = [JOB, {**JOB, "model": "llama3-9b"}, {**JOB, "top": 2}]
    return jobs, plans_by_key(jobs, processes=1)


def plans_by_key(jobs, **options):
    """Status and plans of each job."""
    return {result.key: (result.status, result.plans) for result in plan_many(jobs, **options)}


def test_a_cluster_plans_what_this_machine_plans(cluster, planned_here):
    """The same figures, whoever computes them; a wrong job is its own line."""
    jobs, here = planned_here

    assert plans_by_key(jobs, **cluster) == here
    assert sorted(status for status, _ in here.values()) == ["optimal", "optimal", "wrong_input"]


@pytest.mark.slow
def test_poison_and_time_limits_touch_only_their_jobs_on_a_cluster(cluster, tmp_path):
    """The cluster's own workers live on, after another batch, too: the jobs are in processes beside them."""
    jobs = list(batch_work.jobs(5, "poison", "stuck", "stumbles once", "raises"))

    results = {
        result.name: result for result in run_jobs(batch_work.pool(tmp_path, timeout_seconds=2.0, **cluster), jobs)
    }

    assert {name: str(result.status) for name, result in results.items() if not name.startswith("job")} == {
        "poison": "worker_died",
        "stuck": "timed_out",
        "stumbles once": "optimal",
        "raises": "failed",
    }
    assert [str(results[f"job {number}"].status) for number in range(5)] == ["optimal"] * 5
    assert [len(batch_work.attempts(tmp_path, job)) for job in jobs] == [2, 1, 2, 1] + [1] * 5


@pytest.mark.usefixtures("little_patience")
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


def test_somebody_else_who_answers_is_no_scheduler(capfd):
    """A web server at that address: one message, and nothing else on stderr."""
    pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_as_the_web_does, args=(server,), daemon=True).start()
        with pytest.raises(SpecError, match="does not answer"):
            plan_many([JOB], backend="dask", scheduler=f"tcp://127.0.0.1:{server.getsockname()[1]}")

    gc.collect()
    assert "Traceback" not in capfd.readouterr().err


def answer_as_the_web_does(server: socket.socket) -> None:
    """Whoever connects is told that this was a bad request."""
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20)
                connection.recv(2**16)


@pytest.mark.usefixtures("little_patience")
def test_a_scheduler_without_workers_is_named():
    """Nobody would ever do the jobs."""
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        pytest.raises(SpecError, match="has no workers after 1 s"),
    ):
        plan_many([JOB], backend="dask", scheduler=cluster.scheduler_address)


@pytest.mark.usefixtures("little_patience")
def test_a_scheduler_that_goes_ends_the_batch_and_nothing_is_lost(tmp_path):
    """One message; what was done is in the file, and the rest is done elsewhere."""
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    jobs, out = list(batch_work.jobs(20)), tmp_path / "results.jsonl"
    marks = tmp_path / "marks"
    marks.mkdir()

    def run_until_it_goes(cluster):
        there = batch_work.pool(marks, seconds=0.2, backend="dask", scheduler=cluster.scheduler_address)
        with ResultsFile(out) as results:
            for tally in run_batch(jobs, results, tally=Tally(num_jobs=20), plan=partial(run_jobs, there)):
                if tally.num_now == 5:
                    threading.Thread(target=cluster.close).start()

    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster,
        pytest.raises(SpecError, match="gave a job up: the connection is lost"),
    ):
        run_until_it_goes(cluster)

    here = batch_work.pool(marks, processes=1)
    with ResultsFile(out) as results:
        *_, tally = run_batch(jobs, results, tally=Tally(num_jobs=20), plan=partial(run_jobs, here))

    assert tally.num_before >= 5
    assert sorted(line["key"] for line in read_results(out)) == [job.key for job in jobs]


@pytest.mark.usefixtures("little_patience")
@in_one_case("address", ["here", "tcp://", "http://host:port", "127.0.0.1:99999999"])
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

    assert f"pip install '.[{backend}]'" in str(refused.value)
