"""Real inputs of the repository, from which wrong ones are made."""

from __future__ import annotations

import gzip
import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.traces.changed import CALLS
from benchmarks.traces.synthetic import Recipe, make
from benchmarks.traces.synthetic.drawn import SteadyDurations
from costmodel import catalog
from planner.cli import main
from planner.jobs.cluster import device_text
from planner.measure.traces.writing import write_trace

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"

FILES = {path.name: path.read_bytes() for path in sorted(Path(__file__).with_name("files").iterdir())}
"""Small inputs: a job, its model, its strategies, its runs cut down, its variants, and samples."""

MAX_RUNS = 4
"""Rows of a table of runs: a fit of more takes seconds."""


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """
    Real inputs by their kinds.

    Parameters
    ----------
    jobs, configs, scripts, launches
        Job files; ``config.json`` files; shell scripts; what else starts a training, with the endings of the files.
    runs, samples, plan, results, device, trace
        Tables of runs and samples, a JSON report, lines of a batch, a device file, a trace.
    """

    jobs: tuple[bytes, ...]
    configs: tuple[bytes, ...]
    scripts: tuple[bytes, ...]
    launches: tuple[tuple[str, bytes], ...]
    runs: bytes
    samples: bytes
    plan: bytes
    results: bytes
    device: bytes
    trace: bytes


@cache
def seeds() -> Seeds:
    """The repository's own files, and what the planner writes for a tiny job."""
    launches = sorted(path for path in (DATA / "launches").iterdir() if path.is_file())
    examples = (path.read_bytes() for path in sorted((ROOT / "benchmarks" / "jobs").glob("*.yaml")))
    rows = (ROOT / "benchmarks" / "measured_runs" / "runs.csv").read_text(encoding="utf-8").splitlines()[: MAX_RUNS + 1]
    plan, results = _written()
    return Seeds(
        jobs=(
            *[FILES["job.yaml"]] * 2,
            *(each for each in examples if b"model: deepseek" not in each and b"405b" not in each),
        ),
        configs=(FILES["config.json"], *(path.read_bytes() for path in sorted((DATA / "hf_configs").glob("*.json")))),
        scripts=tuple(path.read_bytes() for path in launches if path.suffix == ".sh"),
        launches=tuple((path.suffix, path.read_bytes()) for path in launches if path.suffix != ".sh"),
        runs="\n".join(rows).encode(),
        samples=FILES["samples.csv"],
        plan=plan,
        results=results,
        device=device_text(catalog.device_entry("h100-80gb-sxm")).encode(),
        trace=_trace(),
    )


def _written() -> tuple[bytes, bytes]:
    """A report of a tiny job, and a line of a batch with it."""
    with TemporaryDirectory() as name, redirect_stdout(io.StringIO()):
        folder = Path(name)
        (folder / "job.yaml").write_bytes(FILES["job.yaml"])
        main(["plan", str(folder / "job.yaml"), "--format", "json", "-o", str(folder / "plan.json")])
        plan = (folder / "plan.json").read_bytes()
    whole = json.loads(plan)
    line = {
        "kind": "batch_result",
        "format_version": 1,
        "key": "00" * 16,
        "name": "tiny",
        "source": "job.yaml",
        "overrides": {"top": 2},
        "status": "optimal",
        "plans": [{**each, **each["training_run"]} for each in whole["plans"]],
    }
    return plan, (json.dumps(line) + "\n").encode() * 2


def _trace() -> bytes:
    durations = SteadyDurations(seed=4, calls=CALLS)
    recipe = Recipe(duration=durations, num_layers=1, num_microbatches=2, annotations=True, operators=True, num_steps=1)
    with TemporaryDirectory() as name:
        path = Path(name) / "rank0.json.gz"
        write_trace(make(recipe).traces[0], path)
        return gzip.decompress(path.read_bytes())
