"""
``python -m benchmarks.batch``: the thousand flat jobs of ``benchmarks.solver --jobs`` as one batch on two processes.

Prints the wall time, the rate, what a job costs its worker, and what is left over: the batch's own share. Exits with 1
if a job is lost, the limit is exceeded, or that share is.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from statistics import median

from benchmarks.output import conclude
from benchmarks.solver.stages import NUM_JOBS, NUM_PROCESSES, Check, random_job
from planner.batch.job_result import LOST, JobResult
from planner.batch.jobs import BatchJob, make_job
from planner.batch.results import ResultsFile
from planner.batch.run import Tally, plan_many, run_batch

MAX_SECONDS = 60.0
MAX_OVERHEAD_FRACTION = 0.1
"""Starting workers, handing over, writing, waiting for the last job: of the whole time."""


def main() -> int:
    """Run the batch and print its figures; return 1 if a check fails, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch", description=__doc__)
    parser.add_argument("--jobs", type=int, default=NUM_JOBS, help=f"how many jobs (default: {NUM_JOBS})")
    parser.add_argument("--processes", type=int, default=NUM_PROCESSES, help=f"processes (default: {NUM_PROCESSES})")
    arguments = parser.parse_args()
    seconds, results = run(arguments.jobs, arguments.processes)
    return conclude(judge(seconds, results, arguments))


def run(num_jobs: int, processes: int) -> tuple[float, list[JobResult]]:
    """Seconds of the whole batch, with a results file as ``planner batch`` writes it, and the results."""
    results: list[JobResult] = []
    jobs = (make_job(random_job("even", seed), name=str(seed)) for seed in range(num_jobs))

    def plan(fresh: Iterable[BatchJob]) -> Generator[JobResult, None, None]:  # keeps what passes
        for result in plan_many(fresh, processes=processes):
            results.append(result)
            yield result

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, ResultsFile(Path(folder) / "results.jsonl") as file:
        for _ in run_batch(jobs, file, tally=Tally(num_jobs=num_jobs), plan=plan):
            pass
    return time.perf_counter() - started, results


def judge(seconds: float, results: list[JobResult], arguments: argparse.Namespace) -> Iterator[str]:
    """Print the figures; sentences about those that are too large."""
    planning = sum(result.outcome.wall_seconds for result in results)
    cpu = [result.outcome.cpu_seconds for result in results]
    overhead = seconds - planning / arguments.processes
    own = resource.getrusage(resource.RUSAGE_SELF)
    kinds = Counter(str(result.status) for result in results)
    print(
        f"{len(results)} flat jobs, {arguments.processes} processes: {seconds:.1f} s, "
        f"{len(results) / seconds:.1f} jobs per second "
        f"({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})."
    )
    print(
        f"A job takes its worker {1e3 * planning / len(results):.1f} ms, {1e3 * sum(cpu) / len(cpu):.1f} ms of them on "
        f"the processor (median {1e3 * median(cpu):.1f} ms, longest {max(cpu):.2f} s)."
    )
    print(
        f"Beyond planning: {overhead:.1f} s, {overhead / seconds:.1%}; processor time of the parent "
        f"{own.ru_utime + own.ru_stime:.1f} s, {own.ru_maxrss / 1024:.0f} MB."
    )
    name = f"{arguments.jobs} jobs on {arguments.processes} processes"
    yield from Check(name=name, seconds=seconds, limit=MAX_SECONDS).failures
    if overhead > MAX_OVERHEAD_FRACTION * seconds:
        yield f"{name}: {overhead / seconds:.1%} beyond planning, of at most {MAX_OVERHEAD_FRACTION:.0%}."
    lost = [result.name for result in results if result.status in LOST]
    if lost or len(results) != arguments.jobs:
        yield f"{len(results)} of {arguments.jobs} results, {len(lost)} of them lost."


if __name__ == "__main__":
    sys.exit(main())
