"""Workers that die, hang and stumble: the job in hand pays, nobody else, and nothing is lost or said twice."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner.batch.job_result import JobOutcome, JobStatus
from planner.batch.jobs import KEY_BYTES, BatchJob
from planner.batch.results import ResultsFile, read_results
from planner.batch.run import Tally, plan_many, run_batch, run_jobs
from tests.cases import in_one_case
from tests.planner import batch_work

ROOT = Path(__file__).parents[2]

NUM_KILLS = 3
MAX_GROWTH_BYTES = 8 * 2**20


def by_name(results):
    """Results by the name of their job."""
    return {result.name: result for result in results}


# --- one job pays ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_poison_and_time_limits_touch_only_their_jobs(tmp_path):
    """A death is tried again in a fresh worker, once; a late job's worker is killed and gone; neighbours run once."""
    jobs = list(batch_work.jobs(10, "poison", "stuck", "stumbles once"))

    results = by_name(run_jobs(batch_work.pool(tmp_path, processes=2, timeout_seconds=1.0), jobs))

    marks = [batch_work.attempts(tmp_path, job) for job in jobs]
    assert [(results[job.name].status, results[job.name].outcome.attempts) for job in jobs] == [
        (JobStatus.WORKER_DIED, 2),
        (JobStatus.TIMED_OUT, 1),
        (JobStatus.OPTIMAL, 2),
        *[(JobStatus.OPTIMAL, 1)] * 10,
    ]
    assert [len(set(pids)) for pids in marks] == [len(pids) for pids in marks] == [2, 1, 2, *[1] * 10]
    assert results["stuck"].message == "It was stopped after 1 s."
    assert has_ended(marks[1][0])


@pytest.mark.slow
def test_workers_that_are_stopped_at_any_moment_are_gone(tmp_path):
    """Before they have the job, while they begin and in the middle; no thread stumbles, no thread or process stays."""
    before, threads = set(children(os.getpid())), set(threading.enumerate())
    stumbled = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", stumbled.append)
        for timeout in (1e-6, 1e-3, 1e-2):
            pool = batch_work.pool(tmp_path, processes=1, timeout_seconds=timeout)
            [result] = run_jobs(pool, batch_work.jobs(0, "stuck"))
            assert result.status == JobStatus.TIMED_OUT
            assert set(threading.enumerate()) == threads

    assert stumbled == []
    assert all(has_ended(pid) for pid in set(children(os.getpid())) - before if not is_tracker(pid))


def is_tracker(pid: int) -> bool:
    """Whether a process is the one that cleans up behind all workers; it lives as long as this one."""
    with suppress(OSError):
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_an_exception_is_an_answer(tmp_path, monkeypatch):
    """A fault of the planner in one job is that job's line; a worker's libraries have one thread."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")

    results = by_name(run_jobs(batch_work.pool(tmp_path, processes=1), batch_work.jobs(2, "raises", "threads")))

    assert results["raises"].status == JobStatus.FAILED
    assert "ValueError: this stand-in raises" in results["raises"].message
    assert results["threads"].message == "1"
    assert results["job 0"].status == JobStatus.OPTIMAL


def has_ended(pid: int, *, seconds: float = 10.0) -> bool:
    """Whether a process ends soon."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


# --- nothing lost, nothing twice ------------------------------------------------------------------------------


@pytest.mark.slow
def test_kills_lose_and_duplicate_nothing(tmp_path):
    """Workers are killed at random while 100 jobs run; each has one line, and one that says it died is tried again."""
    marks, out, jobs = tmp_path / "marks", tmp_path / "results.jsonl", list(batch_work.jobs(100))
    marks.mkdir()
    killed = killed_at_random(marks, random.Random(0))

    for _ in range(3):
        with ResultsFile(out, retry_lost=True) as results:
            plan = lambda fresh: run_jobs(batch_work.pool(marks, processes=2, seconds=0.02), fresh)  # noqa: E731
            for _ in run_batch(jobs, results, tally=Tally(num_jobs=len(jobs)), plan=plan):
                pass

    lines = list(read_results(out))
    assert len(killed) == NUM_KILLS
    assert sorted(line["key"] for line in lines) == [job.key for job in jobs]
    assert {line["status"] for line in lines} == {"optimal"}


def killed_at_random(marks: Path, chooser: random.Random) -> list[int]:
    """Kill one of the processes that began with the last jobs, now and then; the list grows with each."""
    killed: list[int] = []

    def work() -> None:
        end = time.monotonic() + 50
        while len(killed) < NUM_KILLS and time.monotonic() < end:
            time.sleep(chooser.uniform(0.05, 0.3))
            recent = sorted(marks.iterdir(), key=lambda path: path.stat().st_mtime_ns)[-3:]
            pids = {int(path.read_text().split()[-1]) for path in recent if path.read_text().strip()} - set(killed)
            if pids:
                pid = chooser.choice(sorted(pids))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    threading.Thread(target=work, daemon=True).start()
    return killed


@pytest.mark.slow
def test_a_batch_that_is_killed_goes_on(tmp_path):
    """After ``kill -9`` of the whole batch its workers end, its lock is free, and the rest is planned once."""
    out, job = tmp_path / "results.jsonl", tmp_path / "job.yaml"
    job.write_text(
        "model: llama3-8b\n"
        "cluster: {device: h100-80gb-sxm, num_devices: 8}\n"
        "training: {global_batch_size: 64, sequence_length: 4096, tokens: 1e9}\n"
        "search: {stages: even, pin: {mbs: 1, cp: 1}}\n"
    )
    command = [sys.executable, "-m", "planner", "batch", str(job), "-o", str(out), "--processes", "1"]
    command += ["training.global_batch_size=8..64", "cluster.num_devices=8,16"]
    first = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    while not out.exists() or out.read_bytes().count(b"\n") < 3:
        time.sleep(0.02)
    workers = children(first.pid)
    first.kill()
    first.wait()
    before = out.read_bytes().count(b"\n")

    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert all(has_ended(pid) for pid in workers)
    assert 3 <= before < 8
    assert second.returncode == 0, second.stderr
    assert f"8 of 8 jobs done, {before} of them before" in second.stderr
    assert len({line["key"] for line in read_results(out)}) == len(out.read_text().splitlines()) == 8


def children(pid: int) -> list[int]:
    """Living processes that a process has started, as Linux lists them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            if int(parent) == pid and state != "Z":
                found.append(int(path.parent.name))
    return found


def heeds_interrupts() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so do its children; this one must not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_batch_leaves_a_valid_file(number, code, tmp_path):
    """The command says how to go on, and nobody stays behind, no semaphore either."""
    out = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "planner", "batch", "benchmarks/jobs/llama3-8b-8xh100.yaml", "-o", str(out)]
    command += ["training.global_batch_size=8..8192", "search.stages=even,layers", "search.pin={mbs: 1, cp: 1}"]
    command += ["--processes", "1"]
    batch = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=heeds_interrupts)
    while not out.exists() or not out.read_bytes():
        time.sleep(0.02)
    workers = children(batch.pid)
    batch.send_signal(number)
    _, err = batch.communicate(timeout=60)

    assert batch.returncode == code
    assert "leaked" not in err
    assert "interrupted:" in err
    assert "The same command goes on with the rest." in err
    assert "Traceback" not in err
    assert all(has_ended(pid) for pid in workers)
    assert all(json.loads(line) for line in out.read_text().splitlines())


# --- memory ---------------------------------------------------------------------------------------------------


class AtOnce:
    """A pool that has the outcome before it is asked."""

    capacity = 4

    def submit(self, job: BatchJob) -> Future[JobOutcome]:
        """An answer that is there."""
        future: Future[JobOutcome] = Future()
        future.set_result(batch_work.planned(job))
        return future

    def close(self) -> None:
        """Nobody to stop."""


@pytest.mark.slow
def test_thousands_of_results_stream_with_flat_memory(tmp_path):
    """From the 2,000th to the last of 11,000 nothing stays but the index of what is done, some 150 bytes per job."""
    out, resident = tmp_path / "results.jsonl", {}
    plan = lambda jobs: run_jobs(AtOnce(), jobs)  # noqa: E731
    with ResultsFile(out) as results:
        for step in run_batch(batch_work.jobs(11_000), results, tally=Tally(num_jobs=11_000), plan=plan):
            if step.num_now in (2_000, 11_000):
                resident[step.num_now] = resident_bytes()

    assert resident[11_000] - resident[2_000] < MAX_GROWTH_BYTES
    assert sum(1 for _ in read_results(out)) == 11_000


def resident_bytes() -> int:
    """Memory that this process holds, as Linux counts it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# --- options --------------------------------------------------------------------------------------------------


@in_one_case(
    ("options", "message"),
    [
        ({"processes": 0}, "processes: must be from 1 to 1024, got 0."),
        ({"timeout_seconds": 0}, "timeout: must be above 0 and at most 1,000,000 s, got 0."),
        ({"timeout_seconds": float("nan")}, "timeout: must be above 0 and at most 1,000,000 s, got nan."),
        ({"timeout_seconds": float("inf")}, "timeout: must be above 0 and at most 1,000,000 s, got inf."),
        ({"backend": "slurm"}, "backend: there is no 'slurm'."),
        ({"scheduler": "tcp://here:1"}, "scheduler: local processes have none."),
        ({"backend": "dask"}, "scheduler: is missing."),
    ],
)
def test_wrong_options_are_refused_at_once(options, message):
    """Before any worker starts."""
    with pytest.raises(SpecError) as refused:
        plan_many([], **options)

    assert message in str(refused.value)


# --- jobs of a library ----------------------------------------------------------------------------------------

SAID = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9},
    "search": {"stages": "even"},
}


def test_results_of_mappings_say_which_job_they_are_of():
    """They all have the same name; what cannot be read comes first, with its own place."""
    jobs = [SAID, {"model": "nothing"}, {"model": object()}, 5, BatchJob(document={}, name="mine")]

    found = {result.index: result for result in plan_many(jobs, processes=1)}

    assert [found[place].status for place in range(5)] == ["optimal", *["wrong_input"] * 4]
    assert [found[place].name for place in (0, 1, 4)] == ["job", "job", "mine"]
    assert "expected the path of a job file or a job as a mapping, got 5" in found[3].message


@pytest.mark.parametrize(
    ("one", "name"),
    [({"model": object()}, "job"), ("nowhere.yaml", "nowhere"), (Path("nowhere.yaml"), "nowhere")],
)
def test_a_single_job_stands_for_itself(one, name):
    """A path is not taken letter by letter, nor a mapping entry by entry."""
    [result] = plan_many(one, processes=1)

    assert (result.index, result.name) == (0, name)


def test_what_is_no_job_is_refused():
    """At once, in words."""
    with pytest.raises(SpecError, match="jobs: expected job files, or jobs as mappings, got 5"):
        plan_many(5)


def test_a_job_of_ones_own_needs_no_key():
    """It is made of what the job says: the same for the same, another for another."""
    one, same, other = (BatchJob(name=name, document=SAID) for name in ("a", "a", "b"))

    assert len(bytes.fromhex(one.key)) == KEY_BYTES
    assert (one.key == same.key, one.key == other.key) == (True, False)
    with pytest.raises(SpecError, match="model: expected text, a number"):
        BatchJob(document={"model": object()})
