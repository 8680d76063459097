"""Real inputs of the repository, from which wrong ones are made."""

from __future__ import annotations

import csv
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
from planner.measure.sample.table import COLUMNS
from planner.measure.traces.writing import write_trace

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"

MODEL = b"""{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": false}
"""

JOB = b"""\
model: {name: tiny, hidden_size: 256, num_layers: 4, num_heads: 4, ffn_hidden_size: 512, vocab_size: 1000}
cluster: {device: h100-80gb-sxm, num_devices: 8, framework: megatron-lm-0.14, internode_bandwidth: 50GB/s}
training: {global_batch_size: 32, sequence_length: 2k, tokens: 1B, precision: bf16}
settings: {gradient_dtype: fp32}
reliability: {failures_per_node_day: 0.01, mttr_seconds: 5min, storage_bandwidth: 10GB/s}
search: {stages: even, pin: {tp: 2}, allow: {recompute: [none, full]}, limits: ["tp <= 4"], time_limit_seconds: 2}
strategy: {tp: 2, pp: 1, mbs: 1, recompute: none}
costs: {price_per_device_hour: 2.5, currency: USD}
objective: step_time
top: 2
"""

CANDIDATES = b"tp,pp,mbs,recompute\n1,1,1,none\n2,1,1,full\n4,2,1,selective\n"

SMALL_RUNS = b"""\
runs:
  - name: two layers
    job: {model.num_layers: 2}
    strategy: {pp: 1}
    step_seconds: 0.02
    peak_memory_gib: 3.2
    memory_kind: allocated
"""

OVERRIDES = b"name,training.global_batch_size,search.pin.tp\none,32,1\ntwo,64,2\n"

MACHINE = {"spread": "0.01", "repeats": "9", "device": "X", "driver": "1", "software": "torch", "dtype": "bf16"}
SAMPLED = (
    {"operator": "matmul", "m": "1024", "n": "1024", "k": "1024", "seconds": "2e-05"},
    {"operator": "matmul", "m": "4096", "n": "4096", "k": "4096", "seconds": "0.0004"},
    {"operator": "copy", "nbytes": "67108864", "seconds": "8e-05"},
    {"operator": "launch", "n": "100", "seconds": "3e-06"},
)
"""Rows of a table of samples."""

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
        jobs=(JOB, JOB, *(each for each in examples if b"model: deepseek" not in each and b"405b" not in each)),
        configs=(MODEL, *(path.read_bytes() for path in sorted((DATA / "hf_configs").glob("*.json")))),
        scripts=tuple(path.read_bytes() for path in launches if path.suffix == ".sh"),
        launches=tuple((path.suffix, path.read_bytes()) for path in launches if path.suffix != ".sh"),
        runs="\n".join(rows).encode(),
        samples=_table(),
        plan=plan,
        results=results,
        device=device_text(catalog.device_entry("h100-80gb-sxm")).encode(),
        trace=_trace(),
    )


def _written() -> tuple[bytes, bytes]:
    """A report of a tiny job, and a line of a batch with it."""
    with TemporaryDirectory() as name, redirect_stdout(io.StringIO()):
        folder = Path(name)
        (folder / "job.yaml").write_bytes(JOB)
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


def _table() -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"pass": "forward", **MACHINE, **row} for row in SAMPLED)
    return out.getvalue().encode()


def _trace() -> bytes:
    durations = SteadyDurations(seed=4, calls=CALLS)
    recipe = Recipe(duration=durations, num_layers=1, num_microbatches=2, annotations=True, operators=True, num_steps=1)
    with TemporaryDirectory() as name:
        path = Path(name) / "rank0.json.gz"
        write_trace(make(recipe).traces[0], path)
        return gzip.decompress(path.read_bytes())
