"""Several plans of a report as one array job: a folder each, a few steps each, and the table of runs to measure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from costmodel.errors import SpecError
from planner.frameworks import LAUNCHERS, export
from planner.frameworks.launch import launched
from planner.frameworks.target import Export
from planner.jobs.run_jobs import COLUMNS, PLANNED
from planner.report.records import csv_table, finite
from planner.report.records.plan import StrategyRecord
from planner.verbs.plan import SavedPlan

RUNS, MODELS = "runs.csv", "models.yaml"
"""Files next to the job: runs to measure, and models without a catalog name."""

FEWEST_STEPS = 8
"""Number of steps: enough to leave out the first ones, which are slower."""

MOST_PLANS = 32

EVERY_STEP: Mapping[str, Callable[[str], str]] = {
    "megatron-lm": lambda text: f"{text.rstrip()}\n--log-interval 1\n--eval-iters 0\n",
    "megatron-bridge": lambda text: f"{text.rstrip()}\nlogger.log_interval=1\n",
    "torchtitan": lambda text: re.sub(
        r"\n    return config\n$",
        "\n    config = replace(config, metrics=replace(config.metrics, log_freq=1))\n    return config\n",
        text,
    ),
}
"""Change of the main file by which a target logs every step; other targets leave the loop to the user's program."""


def export_array(
    plans: Mapping[int, SavedPlan], target: str, version: str | None, launcher: str, num_steps: int
) -> Export:
    """
    Export several plans as one job that measures them.

    Parameters
    ----------
    plans
        Plans of one report, by number.
    target, version
        As for :func:`planner.frameworks.export`.
    launcher
        ``slurm``: an array of batch jobs; ``kubernetes``: a file of several TrainJobs.
    num_steps
        Steps of each run.

    Returns
    -------
    Export
        Files of each plan in a folder of its own, the job, the table of runs, and models that have no name.

    Raises
    ------
    SpecError
        If a target cannot run a plan or does not log steps, or if the plans need different numbers of nodes.
    """
    _require_possible(plans, target, launcher, num_steps)
    exports = {number: _export_one(saved, target, version, launcher, num_steps) for number, saved in plans.items()}
    scripts = {number: one.files[LAUNCHERS[launcher]] for number, one in exports.items()}
    files = {
        f"{folder_of(number)}/{name}": text
        for number, one in exports.items()
        for name, text in one.files.items()
        if launcher == "slurm" or name != LAUNCHERS[launcher]
    }
    job = {"array.sbatch": _slurm_array(scripts)} if launcher == "slurm" else {"plans.yaml": _train_jobs(scripts)}
    table, models = runs_table(plans)
    notes = [note for one in exports.values() for note in one.notes]
    if launcher == "kubernetes":
        notes.append(f"Keep the log of each job as {folder_of(1)}.log and so on, next to {RUNS}.")
    notes.append(f"Measured: planner calibrate {RUNS} --logs . -o my-cluster.yaml, in this folder.")
    named = {MODELS: yaml.safe_dump(models, sort_keys=False)} if models else {}
    first = next(iter(exports.values()))
    return replace(first, files={**files, **job, RUNS: table, **named}, notes=tuple(dict.fromkeys(notes)))


def folder_of(number: int) -> str:
    """Return the folder of a plan, which is the id of its run, and the beginning of its log's name."""
    return f"plan-{number}"


def _require_possible(plans: Mapping[int, SavedPlan], target: str, launcher: str, num_steps: int) -> None:
    if target not in EVERY_STEP:
        problem = f"the steps of {target} are logged by the user's own program."
        raise SpecError("--array", problem, f"Measure plans with {', '.join(EVERY_STEP)}.")
    if launcher not in ("slurm", "kubernetes"):
        raise SpecError("--array", "needs a launcher that queues jobs.", "Add --launch slurm or --launch kubernetes.")
    if num_steps < FEWEST_STEPS:
        raise SpecError("--steps", f"must be at least {FEWEST_STEPS}: the first ones are slower, got {num_steps}.")
    if len(plans) > MOST_PLANS:
        raise SpecError("--number", f"at most {MOST_PLANS} plans are exported at once, got {len(plans)}.")
    sizes = {number: saved.plan.strategy.num_devices for number, saved in plans.items()}
    if launcher == "slurm" and len({*sizes.values()}) > 1:
        problem = f"the plans use different numbers of devices: {', '.join(f'{n}: {s:,}' for n, s in sizes.items())}."
        raise SpecError("--array", problem, "Tasks of an array have equally many nodes: export them apart.")


def _export_one(saved: SavedPlan, target: str, version: str | None, launcher: str, num_steps: int) -> Export:
    """Export a plan that trains some steps and saves no checkpoint."""
    schedule = replace(saved.plan.schedule, num_steps=num_steps, interval_steps=num_steps + 1)
    plan = replace(saved.plan, schedule=schedule)
    made = export(plan, target, version)
    name = next(iter(made.files))
    made = replace(made, files={**made.files, name: EVERY_STEP[target](made.files[name])})
    return launched(plan, made, launcher)


def _slurm_array(scripts: Mapping[int, str]) -> str:
    """Write an array whose tasks run the batch scripts of the plans, each in its folder."""
    lines = next(iter(scripts.values())).splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH ") and "--segment" not in line]
    segments = {line for text in scripts.values() for line in text.splitlines() if "--segment" in line}
    if len(segments) == 1:
        directives += segments
    todo = [line for line in lines if line.startswith("# TODO")]
    numbers = ",".join(map(str, scripts))
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *directives,
            f"#SBATCH --array={numbers}",
            f"#SBATCH --output={folder_of(0)[:-1]}%a.log",
            *todo,
            "# Plans of one report, a few steps each; submit it in this folder, and read the logs here.",
            "set -euo pipefail",
            "",
            f'cd "{folder_of(0)[:-1]}$SLURM_ARRAY_TASK_ID"',
            f"exec bash {LAUNCHERS['slurm']}",
            "",
        ]
    )


def _train_jobs(scripts: Mapping[int, str]) -> str:
    """Write the TrainJobs of the plans into one file, each with the plan in its name."""
    return "---\n".join(
        re.sub(r"^(metadata:\n  name: \S+)$", rf"\1-{folder_of(number)}", text, count=1, flags=re.MULTILINE)
        for number, text in scripts.items()
    )


# --- the table of runs -------------------------------------------------------------------------------------


def runs_table(plans: Mapping[int, SavedPlan]) -> tuple[str, dict[str, Any]]:
    """Return the table of runs to measure as CSV, and the models that its rows name and no catalog has."""
    models: dict[str, Any] = {}
    rows = [dict(_cells(number, saved, models)) for number, saved in plans.items()]
    columns = [*COLUMNS[:1], "kind", "step_seconds", "peak_memory_gib", "memory_kind"]
    columns += [name for name in dict.fromkeys(name for row in rows for name in row) if name not in columns]
    return csv_table(columns, rows), models


def _cells(number: int, saved: SavedPlan, models: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the columns of a plan's row, and add its model if it has no name of the catalog."""
    plan, document = saved.plan, saved.problem.document
    yield "id", folder_of(number)
    yield "kind", PLANNED
    model = document["model"]
    if isinstance(model, Mapping):
        models[plan.facts.model.name] = dict(model)
        model = plan.facts.model.name
    yield "model", str(model)
    known: dict[str, Any] = {"num_devices": plan.strategy.num_devices}
    if plan.cluster.framework is not None and "framework" not in document["cluster"]:
        known["framework"] = plan.cluster.framework.name
    sections = {"cluster": {**document["cluster"], **known}, "training": document["training"]}
    sections["settings"] = {**(document.get("settings") or {}), **plan.problem.settings}
    for section, entries in sections.items():
        for name, value in entries.items():
            if value is not None:
                yield f"{section}.{name}", _cell(value)
    record = StrategyRecord.build(plan.problem, plan.strategy)
    derived = {"num_microbatches": True, "layout": not record.has_own_stages}
    derived["token_dispatcher"] = not plan.facts.model.has_experts
    for decision, text in finite(record).items():
        if text is not None and not derived.get(decision):
            yield f"strategy.{decision}", _cell(text)


def _cell(value: object) -> str:
    """Write a value as the cell of a table; mappings and lists as YAML in one line."""
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
