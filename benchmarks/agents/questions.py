"""
Questions of training engineers: the calls by which an agent answered each, and the answer by another way.

The oracle asks the planner's verbs, its catalog or the exporter's own reader, not the server. ``{whole}`` among the
arguments stands for the reference in the answer before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from planner import compare, compare_two, estimate, explain, from_megatron_lm, import_job, load, plan, read_any
from planner.jobs.cluster import device_text
from planner.jobs.line import write_line
from planner.jobs.run_jobs import references
from planner.measure.calibrate.calibrate import calibrate
from planner.verbs.any_job import AnyJob

Call: TypeAlias = tuple[str, Mapping[str, Any]]

DENSE = {
    "model": "llama3-70b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 512},
    "training": {"global_batch_size": 1024, "sequence_length": "8k", "tokens": "15T"},
}
SMALL = "benchmarks/jobs/llama3-8b-8xh100.yaml"
EXPERTS = "benchmarks/jobs/mixtral-8x7b-64xa100.yaml"
LARGE = "benchmarks/jobs/llama3-405b-2048xh100.yaml"
SCRIPT = "tests/data/launches/dense.sh"
H100 = ("cluster.device=h100-80gb-sxm", "training.tokens=1T")
RUNS = "benchmarks/agents/runs.csv"
WORDS = "TP8 PP4 MBS1"
TOO_SMALL = {**DENSE, "cluster": {"device": "h100-80gb-sxm", "num_devices": 8}}
NARROW = "search.allow.recompute=[none]"


@dataclass(frozen=True, kw_only=True)
class Question:
    """
    One question.

    Parameters
    ----------
    text
        The question in words.
    calls
        Tools and arguments, in order; the last one's answer holds the answer.
    pick
        The answer in the structured content of the last call.
    oracle
        The answer by another way, from the folder that the server serves.
    """

    text: str
    calls: tuple[Call, ...]
    pick: Callable[[Any], object]
    oracle: Callable[[str], object]


def _at(folder: str, name: str) -> str:
    return f"{folder}/{name}"


def _script(folder: str) -> Any:
    return import_job(_at(folder, SCRIPT), H100)


def _best_line(folder: str) -> str:
    best = plan(load(DENSE)).plans[0]
    return write_line(best.facts, best.strategy, {})


def _lacking(folder: str) -> float | None:
    conflict = plan(load(TOO_SMALL)).outcome.conflict
    return conflict.shortage_bytes if conflict else None


def _seconds_lost(folder: str) -> float:
    job = load(_at(folder, SMALL))
    fastest = plan(job).fastest
    assert fastest is not None
    return estimate(job, {"tp": 8}).plan.step_seconds - fastest.step_seconds


def _calibrated(folder: str) -> str:
    runs = Path(_at(folder, RUNS))
    return device_text(calibrate(runs, references(None, runs.parent), name="ours").device)


def _side_of(job: Mapping[str, Any]) -> Any:
    problem = load(job)
    return AnyJob(name=problem.name, problem=problem).side()


def _degrees(arguments: str) -> dict[str, object]:
    """Read exported arguments back with the planner's importer."""
    job = from_megatron_lm(arguments, ["cluster.device=h100-80gb-sxm", "cluster.num_devices=512"]).document
    return {name: job["strategy"][name] for name in ("tp", "pp", "mbs")}


OF_PLANS = (
    Question(
        text="Which layout for Llama-3-70B on 512 H100?",
        calls=(("plan", {"job": DENSE}),),
        pick=lambda found: found["plans"][0]["line"],
        oracle=_best_line,
    ),
    Question(
        text="How many days does that training take?",
        calls=(("plan", {"job": DENSE}), ("read", {"reference": "{whole}", "pointer": "/plans/0/training_run/days"})),
        pick=lambda found: found["value"],
        oracle=lambda folder: plan(load(DENSE)).plans[0].schedule.days,
    ),
    Question(
        text="Is nothing faster than the plan for Mixtral in this file?",
        calls=(("plan", {"job": EXPERTS}),),
        pick=lambda found: found["status"],
        oracle=lambda folder: plan(load(_at(folder, EXPERTS))).outcome.status.value,
    ),
    Question(
        text="How much memory is used at the peak with TP4 held?",
        calls=(("plan", {"job": DENSE, "changes": ["TP4"], "top": 1}),),
        pick=lambda found: found["plans"][0]["peak_memory_bytes"],
        oracle=lambda folder: plan(load(DENSE, ["search.pin.tp=4"])).plans[0].estimate.device_bytes,
    ),
    Question(
        text="How much faster are 1,024 GPUs?",
        calls=(("plan", {"job": DENSE, "changes": ["cluster.num_devices=1024"]}),),
        pick=lambda found: found["plans"][0]["step_time_seconds"],
        oracle=lambda folder: plan(load(DENSE, ["cluster.num_devices=1024"])).plans[0].step_seconds,
    ),
    Question(
        text="Does it fit on one node?",
        calls=(("plan", {"job": TOO_SMALL}),),
        pick=lambda found: (found["status"], found["plans"]),
        oracle=lambda folder: (plan(load(TOO_SMALL)).outcome.status.value, []),
    ),
    Question(
        text="How much memory does it lack on one node?",
        calls=(("plan", {"job": TOO_SMALL}), ("read", {"reference": "{whole}", "pointer": "/conflict/shortage_bytes"})),
        pick=lambda found: found["value"],
        oracle=_lacking,
    ),
    Question(
        text="Best three plans of the 405B job: how much slower is the third?",
        calls=(("plan", {"job": LARGE, "top": 3}),),
        pick=lambda found: found["plans"][2]["slower_fraction"],
        oracle=lambda folder: _slower(plan(load(_at(folder, LARGE), ["top=3"]))),
    ),
)


def _slower(report: Any) -> float:
    first, *_, last = report.plans
    return float(last.step_seconds / first.step_seconds - 1)


OF_STRATEGIES = (
    Question(
        text="How long is a step with TP8 PP4, micro-batch 1?",
        calls=(("estimate", {"job": DENSE, "changes": WORDS.split()}),),
        pick=lambda found: found["plan"]["step_time_seconds"],
        oracle=lambda folder: estimate(load(DENSE), WORDS).plan.step_seconds,
    ),
    Question(
        text="May tensor parallelism be 128?",
        calls=(("estimate", {"job": DENSE, "changes": ["TP128", "PP4"]}),),
        pick=lambda found: found["allowed"],
        oracle=lambda folder: False,  # 128 ranks cannot share 64 attention heads
    ),
    Question(
        text="What holds the 8B job back most?",
        calls=(("explain", {"job": SMALL}),),
        pick=lambda found: found["bindings"][0]["constraint"],
        oracle=lambda folder: explain(load(_at(folder, SMALL))).bindings[0].what,
    ),
    Question(
        text="Why not TP8 for the 8B job?",
        calls=(("explain", {"job": SMALL, "changes": ["TP8"]}),),
        pick=lambda found: found["slower_seconds"],
        oracle=_seconds_lost,
    ),
    Question(
        text="Does the 8B job need recomputation with 16k tokens?",
        calls=(("plan", {"job": SMALL, "changes": ["training.sequence_length=16k", NARROW]}),),
        pick=lambda found: found["status"],
        oracle=lambda folder: (
            plan(load(_at(folder, SMALL), ["training.sequence_length=16k", NARROW])).outcome.status.value
        ),
    ),
)

SIZES = [64, 128, 256, 512]
MOST_DAYS = 60


def _fewest(folder: str) -> int:
    """Plan each size; entries are those that an advice assumes of a whole training."""
    assumed = ("training.tokens=1T", "reliability.init_seconds=520", "training.evaluation_interval_steps=1000")
    days = {size: plan(load(DENSE, [*assumed, f"cluster.num_devices={size}"])).plans[0].schedule.days for size in SIZES}
    return min(size for size in SIZES if days[size] <= MOST_DAYS)


OF_CLUSTERS = (
    Question(
        text="What is the fewest H100 that train 70B on 1T tokens in 60 days?",
        calls=(("advise", {"job": DENSE, "changes": ["training.tokens=1T"], "sizes": SIZES, "days": MOST_DAYS}),),
        pick=lambda found: found["points"][found["answer"] - 1]["num_devices"],
        oracle=_fewest,
    ),
)

OF_FILES = (
    Question(
        text="Which tensor and pipeline parallelism does our script use today?",
        calls=(("import", {"file": SCRIPT, "changes": [*H100]}),),
        pick=lambda found: (found["job"]["strategy"]["tp"], found["job"]["strategy"]["pp"]),
        oracle=lambda folder: (2, 2),  # TP=2 and --pipeline-model-parallel-size 2 of the script
    ),
    Question(
        text="What would the best plan save against our script?",
        calls=(("compare", {"job": SCRIPT, "changes": [*H100]}),),
        pick=lambda found: found["saved_fraction"],
        oracle=lambda folder: compare(load(_script(folder).document)).saved_fraction,
    ),
    Question(
        text="Is 405B on 2,048 GPUs better than 70B with the same tokens, in GPU-hours?",
        calls=(("compare", {"job": LARGE, "other": DENSE}),),
        pick=lambda found: found["saved_gpu_hours"],
        oracle=lambda folder: compare_two(read_any(_at(folder, LARGE)).side(), _side_of(DENSE)).saved_gpu_hours,
    ),
    Question(
        text="Which Megatron-LM flags start the plan?",
        calls=(("plan", {"job": DENSE}), ("export", {"report": "{whole}", "target": "megatron-lm"})),
        pick=lambda found: _degrees(next(iter(found["files"].values()))),
        oracle=lambda folder: {
            name: plan(load(DENSE)).plans[0].strategy.decisions()[name] for name in ("tp", "pp", "mbs")
        },
    ),
    Question(
        text="Does the Slurm file ask for all 64 nodes?",
        calls=(
            ("plan", {"job": DENSE}),
            ("export", {"report": "{whole}", "target": "megatron-lm", "launch": "slurm"}),
        ),
        pick=lambda found: any("--nodes=64" in text for text in found["files"].values()),
        oracle=lambda folder: True,  # 512 GPUs, 8 of each node
    ),
    Question(
        text="Can Llama-3-8B be exported to torchtitan on H100?",
        calls=(("support", {"model": "llama3-8b", "device": "h100-80gb-sxm"}),),
        pick=lambda found: dict(zip(found["tables"][0]["header"], found["tables"][0]["rows"][0], strict=True))[
            "torchtitan"
        ],
        oracle=lambda folder: "yes",  # docs/support.md; torchtitan has a llama3 of its own
    ),
    Question(
        text="Which device file follows from our measured runs?",
        calls=(("calibrate", {"runs": RUNS, "name": "ours"}),),
        pick=lambda found: found["device_file"],
        oracle=_calibrated,
    ),
)


QUESTIONS = (*OF_PLANS, *OF_STRATEGIES, *OF_CLUSTERS, *OF_FILES)
