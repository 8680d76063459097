"""
Questions to the planner: measured runs, variants of their strategies, plans, explanations, exports and bad input.

A case is a command line with the files that it reads, so that a reference can be asked again by code that has changed.
"""

from __future__ import annotations

import copy
import io
import json
import math
import os
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from difflib import unified_diff
from itertools import permutations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from benchmarks.accuracy.jobs import job_entries
from benchmarks.accuracy.metrics import read_table
from benchmarks.inputs import read_yaml
from planner.cli import main as planner
from planner.measure.runs.predictions import Case, cases

SEED = 24
NUM_RUNS = 150
NUM_VARIANTS = 70
NUM_PLANS = 80
NUM_EXPORTS = 30
NUM_EXPLANATIONS = 15

DATA = SimpleNamespace(**read_yaml(__file__))
"""Parts of questions."""

JOB = "job.yaml"
PLAN = "plan.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """
    One command line.

    Parameters
    ----------
    name
        Subject of the question.
    arguments
        Arguments of ``planner``; files by their names in the question's folder.
    job
        Text of ``job.yaml``.
    before
        Arguments of a command that writes ``plan.json`` first; none if empty.
    """

    name: str
    arguments: tuple[str, ...]
    job: str
    before: tuple[str, ...] = ()


def questions() -> Iterator[Question]:
    """All of them, the same ones each time."""
    rows = [case for case in cases(*read_table()) if isinstance(case, Case)]
    yield from runs(rows)
    yield from variants(rows)
    yield from lowered()
    yield from plans()
    yield from explanations()
    yield from exports()
    yield from bad_input()


# --- estimates -------------------------------------------------------------------------------------------------


def runs(rows: Sequence[Case]) -> Iterator[Question]:
    """Measured runs: the first of every framework and device, the others evenly over the table."""
    first: dict[tuple[str | None, str], Case] = {}
    for case in rows:
        framework, device = case.facts.cluster.framework, case.facts.cluster.device
        first.setdefault((framework.name if framework else None, device.name), case)
    rest = [case for case in rows if case not in first.values()]
    for case in (*first.values(), *_evenly(rest, NUM_RUNS - len(first))):
        yield estimate_question(f"run {case.run.id}", job_entries(case))


def variants(rows: Sequence[Case]) -> Iterator[Question]:
    """Measured runs with one decision changed, most of them allowed, some not."""
    chance = random.Random(SEED)
    for case in _evenly(rows, NUM_VARIANTS):
        entries = copy.deepcopy(job_entries(case))
        name, value = chance.choice(DATA.changes)
        entries["strategy"][name] = value
        yield estimate_question(f"variant {case.run.id} {name}={value}", entries)


def lowered() -> Iterator[Question]:
    """Layers of every kind with what frameworks do differently: whole and single matmuls that overlap, or none."""
    for model, framework in product(DATA.unlike_models, ("", "torchtitan-0.1")):
        for strategy in ({"tp": 4, "tp_overlap": True, "mbs": 2}, {"tp": 2, "cp": 2, "cp_overlap": True}):
            cluster = {"device": "h100-80gb-sxm", "num_devices": 16} | ({"framework": framework} if framework else {})
            training = {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e9}
            entries = {"model": model, "cluster": cluster, "training": training, "strategy": strategy}
            yield estimate_question(f"lowered {model} {framework} {strategy}", entries)


def estimate_question(name: str, entries: dict[str, Any]) -> Question:
    """``planner estimate`` of a job file that holds its strategy."""
    return Question(name=name, arguments=("estimate", JOB, "--format", "json"), job=text(entries))


def _evenly(rows: Sequence[Case], count: int) -> Iterable[Case]:
    return (rows[index * len(rows) // count] for index in range(count))


# --- searches --------------------------------------------------------------------------------------------------


def a_job(chance: random.Random) -> dict[str, Any]:
    """A job of the catalog; it need not fit."""
    device = chance.choice(DATA.devices)
    size = chance.choice(DATA.sizes)
    cluster: dict[str, Any] = {"device": device, "num_devices": size}
    framework = chance.choice(DATA.frameworks.get(device, ("", "megatron-core-0.14")))
    if framework:
        cluster["framework"] = framework
    return {
        "model": chance.choice(DATA.models),
        "cluster": cluster,
        "training": {
            "tokens": 1e12,
            "global_batch_size": size * chance.choice((1, 2, 4)),
            "sequence_length": chance.choice((4096, 8192)),
            "precision": chance.choice(DATA.precisions.get(device, ("bf16", "fp8"))),
        },
        "search": {"time_limit_seconds": 300, "framework_rules": True},
        "top": chance.choice((1, 3)),
    }


def plans() -> Iterator[Question]:
    """Searches of random jobs of the catalog."""
    chance = random.Random(SEED)
    for number in range(NUM_PLANS):
        job = a_job(chance)
        if number % 8 == 7:
            job["search"]["stages"] = "free"
        yield Question(name=_title("plan", job), arguments=("plan", JOB, "--format", "json"), job=text(job))


def explanations() -> Iterator[Question]:
    """Ask for the reasons of a plan, of a job that no strategy fits, and against one decision."""
    chance = random.Random(SEED + 1)
    for number in range(NUM_EXPLANATIONS):
        job = a_job(chance)
        asked = ((), ("tp=8",), ("recompute=full",))[number % 3]
        name = _title(" ".join(("explain", *asked)), job)
        yield Question(name=name, arguments=("explain", JOB, *asked, "--format", "json"), job=text(job))


def exports() -> Iterator[Question]:
    """Plans as the files of a framework, most of which it can express."""
    chance = random.Random(SEED + 2)
    for number in range(NUM_EXPORTS):
        target = list(DATA.advice)[number % len(DATA.advice)]
        job = {**a_job(chance), **DATA.advice[target]}
        job["model"] = chance.choice(("llama3-8b", "qwen3-32b", "llama3-70b", "mixtral-8x7b"))
        job["cluster"] = {"device": "h100-80gb-sxm", "num_devices": chance.choice((64, 128))}
        job["training"] = {**job["training"], "precision": "bf16", "global_batch_size": 256}
        yield Question(
            name=_title(f"export {target}", job),
            arguments=("export", PLAN, "--target", target),
            job=text(job),
            before=("plan", JOB, "--format", "json", "-o", PLAN),
        )


def _title(verb: str, job: dict[str, Any]) -> str:
    cluster, training = job["cluster"], job["training"]
    words = (job["model"], cluster["num_devices"], cluster["device"], cluster.get("framework", ""))
    rest = (training["precision"], f"gbs {training['global_batch_size']}", f"seq {training['sequence_length']}")
    return " ".join(str(word) for word in (verb, *words, *rest) if word)


# --- bad input -------------------------------------------------------------------------------------------------


def bad_input() -> Iterator[Question]:
    """Jobs with one wrong entry, texts that are no jobs, and wrong arguments."""
    for path, value in DATA.bad_entries:
        job = copy.deepcopy(DATA.good)
        section, _, name = path.partition(".")
        if name:
            job.setdefault(section, {})[name] = value
        else:
            job[section] = value
        yield Question(name=f"bad {path}={value}", arguments=("plan", JOB, "--format", "json"), job=text(job))
    for bad in DATA.bad_texts:
        yield Question(name=f"bad text {bad[:30]!r}", arguments=("plan", JOB, "--format", "json"), job=bad)
    for arguments in DATA.bad_arguments:
        yield Question(name=f"bad arguments {' '.join(arguments)}", arguments=tuple(arguments), job=text(DATA.good))


def text(entries: dict[str, Any]) -> str:
    """A job as the text of its file."""
    return str(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True))


DIGITS = 9
"""To which two figures are the same."""

CLOCKED = frozenset({"build_seconds", "solve_seconds", "certificate"})
"""Entries that a clock measured, or that are about the time that was left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """
    Answer of a command.

    Parameters
    ----------
    code
        Exit code.
    output
        JSON where that was asked for, else the lines of the output that are not comments.
    place
        Place that the complaint names: the message up to its first colon; empty if there is none.
    """

    code: int
    output: Any
    place: str


def ask(question: Question) -> Answer:
    """Run a command line in a folder of its own, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path.cwd()
        os.chdir(folder)
        try:
            Path(JOB).write_text(question.job, encoding="utf-8")
            if question.before:
                _run(question.before)
            return _run(question.arguments)
        finally:
            os.chdir(home)


def _run(arguments: tuple[str, ...]) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = planner(arguments)
    wrong = code == 2
    complaint = err.getvalue().removeprefix("planner: ").partition(": ")[0].strip() if wrong else ""
    return Answer(code=code, output=_plain(out.getvalue()), place=complaint.splitlines()[0] if complaint else "")


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return [line for line in text.splitlines() if not line.lstrip().startswith(("#", '"""'))]


# --- differences -----------------------------------------------------------------------------------------------


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield differences of two outputs: entries, figures to nine digits, and words; sentences may be said otherwise."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            if name in CLOCKED:
                continue
            if name not in after:
                yield f"{path}.{name}: is gone"
            elif name not in before:
                yield f"{path}.{name}: is new"
            else:
                yield from differences(before[name], after[name], f"{path}.{name}")
    elif is_report(before) and is_report(after):
        gone, new = (list((one - other).elements()) for one, other in permutations((figures(before), figures(after))))
        if gone or new:
            yield f"{path}: figures {new} instead of {gone}"
    elif not path and is_file(before):
        yield from (
            f"{path}: {line}" for line in unified_diff(before, after, n=0, lineterm="") if line[:3] not in MARKS
        )
    elif is_prose(before) and is_prose(after):
        if sorted(map(sizes, before)) != sorted(map(sizes, after)) or figures(said(before)) != figures(said(after)):
            yield f"{path}: {after!r} instead of {before!r}"
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(after)} entries instead of {len(before)}"
        for number, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from differences(old, new, f"{path}.{number}")
    elif not same(before, after):
        yield f"{path}: {after!r} instead of {before!r}"


def is_report(output: Any) -> bool:
    """
    Return True if an output is a report for people: a title underlined, then sections.

    >>> is_report(["A job", "-----", "answer  1.2 s"]), is_report(["--tp", "8"]), is_report({"plans": []})
    (True, False, False)
    """
    if not isinstance(output, list) or len(output) < 2 or not isinstance(output[0], str):
        return False
    return bool(output[0]) and output[1] == "-" * len(output[0])


def is_prose(value: Any) -> bool:
    """
    Return True if a list holds sentences, or lists of them: these are in the order of their words, which may change.

    >>> is_prose([["One rule holds.", "So does another."], ["A third does."]]), is_prose(["bf16", "fp8"]), is_prose([])
    (True, False, False)
    """
    inner = isinstance(value, list) and bool(value)
    return inner and all(is_prose(one) or (isinstance(one, str) and " " in one) for one in value)


def said(value: Any) -> Iterator[str]:
    """The sentences of a list, of lists in it too."""
    for one in value:
        yield from said(one) if isinstance(one, list) else (one,)


def sizes(value: Any) -> int:
    """Number of sentences that an entry of a list holds."""
    return len(list(said(value))) if isinstance(value, list) else 1


def is_file(output: Any) -> bool:
    """
    Return True if an output is a file of a framework, of which every word counts: lines, where JSON is a mapping.

    >>> is_file(["--tensor-model-parallel-size 8"]), is_file({"plans": []}), is_file([])
    (True, False, False)
    """
    return isinstance(output, list) and bool(output) and all(isinstance(line, str) for line in output)


MARKS = ("---", "+++", "@@ ")
"""Lines of a difference that are of neither side."""


def figures(lines: Iterable[str]) -> Counter[str]:
    """
    The numbers of a report for people, without those that a clock measured; its words and lines may change.

    >>> sorted(figures(["answer  1.2 s per step, 1,024 GPUs", "time    0.3 s"]))
    ['1,024', '1.2']
    """
    return Counter(figure for line in lines if not line.startswith("time ") for figure in FIGURE.findall(line))


FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def same(before: Any, after: Any) -> bool:
    """
    Return True if two values are the same to a user.

    >>> same(1.0, 1.0 + 1e-12), same(1.0, 1.001), same("bf16", "fp16")
    (True, False, False)
    >>> same("A sentence of 4 words", "It is said otherwise, with 4."), same("peak of 4 GiB", "peak of 5 GiB")
    (True, False)
    """
    if isinstance(before, str) and isinstance(after, str):
        return before == after or (" " in before and " " in after and figures([before]) == figures([after]))
    if isinstance(before, bool) or isinstance(after, bool) or before is None or after is None:
        return before is after
    if isinstance(before, int | float) and isinstance(after, int | float):
        return math.isclose(before, after, rel_tol=10**-DIGITS, abs_tol=1e-12)
    return bool(before == after)
