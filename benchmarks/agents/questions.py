"""
Questions of training engineers (``questions.yaml``), and the answer to each by another way.

The oracle asks the planner's verbs, its catalog or the exporter's own reader, not the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.inputs import read_yaml
from planner import compare, compare_two, estimate, explain, from_megatron_lm, import_job, load, plan, read_any
from planner.jobs.cluster import device_text
from planner.jobs.line import write_line
from planner.jobs.run_jobs import references
from planner.measure.calibrate.calibrate import calibrate
from planner.verbs.any_job import AnyJob

DATA = read_yaml(__file__)
DENSE, TOO_SMALL = DATA["dense"], DATA["too small"]


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
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    pick: Callable[[Any], object]
    oracle: Callable[[str], object]


def _at(folder: str, name: str) -> str:
    return f"{folder}/{DATA[name]}"


def _best_line(folder: str) -> str:
    best = plan(load(DENSE)).plans[0]
    return write_line(best.facts, best.strategy, {})


def _lacking(folder: str) -> float | None:
    conflict = plan(load(TOO_SMALL)).outcome.conflict
    return conflict.shortage_bytes if conflict else None


def _slower(folder: str) -> float:
    first, *_, last = plan(load(_at(folder, "large"), ["top=3"])).plans
    return float(last.step_seconds / first.step_seconds - 1)


def _seconds_lost(folder: str) -> float:
    job = load(_at(folder, "small"))
    fastest = plan(job).fastest
    assert fastest is not None
    return estimate(job, {"tp": 8}).plan.step_seconds - fastest.step_seconds


def _fewest(folder: str) -> int:
    """Plan each size; entries are those that an advice assumes of a whole training."""
    assumed = ("training.tokens=1T", "reliability.init_seconds=520", "training.evaluation_interval_steps=1000")
    sizes: list[int] = DATA["sizes"]
    days = {size: plan(load(DENSE, [*assumed, f"cluster.num_devices={size}"])).plans[0].schedule.days for size in sizes}
    return min(size for size in sizes if days[size] <= DATA["days"])


def _saved(folder: str) -> float | None:
    return compare(load(import_job(_at(folder, "script"), DATA["script entries"]).document)).saved_fraction


def _saved_hours(folder: str) -> float | None:
    dense = load(DENSE)
    return compare_two(
        read_any(_at(folder, "large")).side(), AnyJob(name=dense.name, problem=dense).side()
    ).saved_gpu_hours


def _degrees(folder: str) -> dict[str, object]:
    decisions = plan(load(DENSE)).plans[0].strategy.decisions()
    return {name: decisions[name] for name in ("tp", "pp", "mbs")}


def _calibrated(folder: str) -> str:
    runs = Path(_at(folder, "runs"))
    return device_text(calibrate(runs, references(None, runs.parent), name="ours").device)


ORACLES: Mapping[str, Callable[[str], object]] = {
    "layout": _best_line,
    "days": lambda folder: plan(load(DENSE)).plans[0].schedule.days,
    "proof": lambda folder: plan(load(_at(folder, "experts"))).outcome.status.value,
    "memory": lambda folder: plan(load(DENSE, ["search.pin.tp=4"])).plans[0].estimate.device_bytes,
    "more devices": lambda folder: plan(load(DENSE, ["cluster.num_devices=1024"])).plans[0].step_seconds,
    "one node": lambda folder: (plan(load(TOO_SMALL)).outcome.status.value, []),
    "shortage": _lacking,
    "third": _slower,
    "step": lambda folder: estimate(load(DENSE), "TP8 PP4 MBS1").plan.step_seconds,
    "tp 128": lambda folder: False,  # 128 ranks cannot share 64 attention heads
    "bindings": lambda folder: explain(load(_at(folder, "small"))).bindings[0].what,
    "not TP8": _seconds_lost,
    "recomputation": lambda folder: plan(load(_at(folder, "small"), DATA["narrow"])).outcome.status.value,
    "fewest devices": _fewest,
    "script": lambda folder: (2, 2),  # TP=2 and --pipeline-model-parallel-size 2 of the script
    "saved": _saved,
    "two jobs": _saved_hours,
    "flags": _degrees,
    "nodes": lambda folder: True,  # 512 GPUs, 8 of each node
    "support": lambda folder: "yes",  # docs/support.md; torchtitan has a llama3 of its own
    "device file": _calibrated,
}
"""Answers by another way."""


def _read_degrees(found: Any) -> dict[str, object]:
    """Read exported arguments back with the planner's importer."""
    arguments = next(iter(found["files"].values()))
    job = from_megatron_lm(arguments, ["cluster.device=h100-80gb-sxm", "cluster.num_devices=512"]).document
    return {name: job["strategy"][name] for name in ("tp", "pp", "mbs")}


def _read_torchtitan(found: Any) -> object:
    table = found["tables"][0]
    return dict(zip(table["header"], table["rows"][0], strict=True))["torchtitan"]


PICKS: Mapping[str, Callable[[Any], object]] = {
    "fewest devices": lambda found: found["points"][found["answer"] - 1]["num_devices"],
    "flags": _read_degrees,
    "nodes": lambda found: any("--nodes=64" in text for text in found["files"].values()),
    "support": _read_torchtitan,
}
"""Answers that are more than a place in the last one's answer."""


def _at_pointer(found: Any, pointer: str) -> Any:
    """Return the part that a JSON pointer names."""
    for name in pointer.split("/")[1:]:
        found = found[int(name) if isinstance(found, list) else name]
    return found


def _pointed(pointers: str | list[str]) -> Callable[[Any], object]:
    """Return a function that picks the part at a pointer, or the parts at several."""
    if isinstance(pointers, str):
        return lambda found: _at_pointer(found, pointers)
    return lambda found: tuple(_at_pointer(found, one) for one in pointers)


def _read() -> Iterator[Question]:
    for name, entry in DATA["questions"].items():
        pick = PICKS.get(name) or _pointed(entry["pick"])
        yield Question(text=entry["text"], calls=tuple(map(tuple, entry["calls"])), pick=pick, oracle=ORACLES[name])


QUESTIONS = tuple(_read())
