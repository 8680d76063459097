"""The measured runs: their parts as published, and what ran on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from benchmarks.accuracy.metrics import grouped, read_table
from benchmarks.inputs import read_rows
from costmodel.errors import SpecError
from planner.jobs.run_jobs import References, Run
from planner.measure.runs.predictions import Case, case

COMPONENTS = Path(__file__).parent / "data" / "components.csv"

COLUMNS = ("folder", "gpu", "model", "config", "component", "measured_us", "predicted_us")

STEP = "1F1B_max_optimizer"
"""The whole step among the components."""

MACHINES = {"perlmutter": "Perlmutter", "vista": "Vista"}

PREFIX = "gm25-"
"""Prefix of the ids of these runs in the table of measured runs."""

ONLY_COMPONENTS = {"perlmutter/llama_13B_4_8_2_16_4/31674706": ("vista/llama_13B_64_1/136645", "llemma_7B_4_2_2_4_4")}
"""
Runs that the table of measured runs lacks: one of the same job and layout, and one of the same machine.

Its batch is not published with it; that of the same job gives the 16 micro-batches that its step takes.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """
    One published run with its parts.

    Parameters
    ----------
    folder
        Its folder in the source.
    gpu
        Its device in the tables of samples.
    case
        Job and device of the run.
    measured, paper
        Seconds of each component as measured, and as the paper predicts it.
    repeats
        Measured seconds per step of other runs of the same layout.
    """

    folder: str
    gpu: str
    case: Case
    measured: Mapping[str, float]
    paper: Mapping[str, float]
    repeats: tuple[float, ...] = ()

    @property
    def machine(self) -> str:
        """Perlmutter or Vista."""
        return MACHINES[self.folder.partition("/")[0]]

    @property
    def label(self) -> str:
        """Machine, model and layout."""
        strategy = self.case.strategy
        layout = f"pp {int(strategy.pp)} tp {int(strategy.tp)} dp {int(strategy.dp)}"
        return f"{self.machine} {self.case.run.model.removeprefix('gm25-')} {layout}"

    @property
    def hidden_size(self) -> int:
        """Hidden size of its model."""
        return int(self.case.facts.model.hidden_size)

    @property
    def partitions_activations(self) -> bool:
        """
        True if tensor-parallel ranks share the layers' inputs.

        As GPT-NeoX's configurations of LLaMA's models say (``partition_activations``), and that of its own 20B does
        not (recalled).
        """
        return self.case.run.model != "gpt-neox-20b"


def measured_runs(path: Path = COMPONENTS) -> tuple[list[MeasuredRun], References]:
    """
    Every run that the file of components has, in its order, and what their cases refer to.

    Raises
    ------
    SpecError
        If the file lacks columns, a time is no number, or nothing is known of a run.
    """
    rows, known = read_table()
    own = [row for row in rows if isinstance(row, Run) and row.id.startswith(PREFIX)]
    found = []
    for folder, components in grouped(read_rows(path, COLUMNS), itemgetter("folder")).items():
        one = case(_row(folder, own), known)
        repeats = (row for row in own if _layout(row) == _layout(one.run) and row.id != one.run.id)
        found.append(
            MeasuredRun(
                folder=folder,
                gpu=components[0]["gpu"],
                case=one,
                measured={row["component"]: _seconds(row, "measured_us", path) for row in components},
                paper={row["component"]: _seconds(row, "predicted_us", path) for row in components},
                repeats=tuple(row.step_seconds for row in repeats if row.step_seconds),
            )
        )
    return found, known


def _seconds(row: Mapping[str, str], column: str, path: Path) -> float:
    try:
        return float(row[column]) * 1e-6
    except ValueError:
        where = f"{path}, {row['folder']}, {row['component']}, {column}"
        raise SpecError(where, f"{row[column]!r} is no number.") from None


def _row(folder: str, rows: list[Run]) -> Run:
    if folder in ONLY_COMPONENTS:
        job, machine = ONLY_COMPONENTS[folder]
        same, near = _row(job, rows), next(row for row in rows if machine in row.id)
        device = {name: entry for name, entry in near.entries["cluster"].items() if name != "num_devices"}
        cluster = {**device, "num_devices": same.num_devices}
        return replace(same, id=PREFIX + folder, entries={**same.entries, "cluster": cluster}, step_seconds=None)
    matching = (row for row in rows if row.id == PREFIX + "-".join(folder.split("/")))
    if (row := next(matching, None)) is None:
        raise SpecError("components", f"nothing is known of the run {folder}.")
    return row


def _layout(run: Run) -> tuple[object, ...]:
    return run.model, run.device, str(run.get("strategy"))
