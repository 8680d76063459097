"""Sections on the job with the answer in a line, and on the conventions of the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from costmodel.facts.workload import Precision
from planner.jobs.setting_choices import text_of
from planner.report.devices import device_rows
from planner.report.framework import framework_text, targets_text
from planner.report.section import Section
from planner.report.strategies import completion_rows
from planner.report.wording import amount, count, gib, tflops

if TYPE_CHECKING:
    from planner.jobs.conventions import ModelSummary
    from planner.jobs.problem import Problem
    from planner.report.records.devices import IdleDevicesRecord
    from planner.report.records.plan import PlanRecord
    from planner.report.records.reports import ReportRecord
    from planner.report.records.setting import SettingRecord, TrainingRecord


def setting_section(
    setting: SettingRecord,
    *answer: tuple[str, str],
    best: PlanRecord | None,
    lines: Sequence[tuple[str, str]] = (),
    idle: IdleDevicesRecord | None = None,
) -> Section:
    """
    Build the section on the job, with the answer in a line.

    Parameters
    ----------
    setting
        The first entries of its report.
    answer
        Rows that stand below the name of the job.
    best
        The best plan.
    lines
        Rows that come first: each strategy in one line, and the completed decisions of a given one.
    idle
        The search for plans that leave devices idle.
    """
    rows = [*lines, ("job", setting.job.name), *answer, *_job_rows(setting)]
    rows += device_rows(setting, best, idle)
    if best and best.settings:
        rows.append(
            (
                "settings",
                f"{text_of(best.settings)} (of several that the job gives; where a plan has no use for one, the first)",
            )
        )
    return Section(title=title_of(setting), rows=tuple(rows))


def line_rows(whole: ReportRecord) -> list[tuple[str, str]]:
    """Build the rows with the first plan in one line, and with the completed decisions of a given one."""
    rows = [("line", plan.line) for plan in whole.plans[:1]]
    return [*rows, *(completion_rows(whole.report) if whole.kind == "estimate" else ())]


def title_of(setting: SettingRecord) -> str:
    """Return the title: the model, and the devices that train it."""
    return f"{setting.model.name} on {setting.cluster.num_devices:,} x {setting.cluster.device}"


def _job_rows(setting: SettingRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on model, cluster, framework and training."""
    cluster, training, conventions = setting.cluster, setting.training, setting.conventions
    yield "model", _model_text(setting.model)
    spares = f", {count(cluster.num_spare_nodes, 'more node')} kept as spares" if cluster.num_spare_nodes else ""
    yield (
        "cluster",
        f"{count(cluster.num_nodes, 'node')} of {count(cluster.devices_per_node, 'GPU')}{spares}, scale-up "
        f"({cluster.scale_up_network}) domains of {cluster.scale_up_size}; {gib(cluster.memory_bytes)} GiB per GPU, "
        f"{tflops(conventions.peak_tflops_per_gpu)} TFLOP/s dense {conventions.peak_dtype}",
    )
    if cluster.device_note:
        yield "device", cluster.device_note
    yield "framework", framework_text(setting.problem)
    if setting.job.target is None and setting.targets:
        yield "targets", targets_text(setting.targets)
    yield (
        "training",
        f"{training.global_batch_size:,} x {training.sequence_length:,} = {amount(training.tokens_per_step)} "
        f"tokens per step, {amount(training.tokens)} tokens in all; {training.precision}",
    )
    yield from ambiguity_rows(setting)


def ambiguity_rows(setting: SettingRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on numbers of the job that could be read in another way."""
    if said := _units_text(setting.problem):
        yield "units", said
    if said := batch_text(setting.training):
        yield "batch", said


def batch_text(training: TrainingRecord) -> str:
    """Return the warning about a batch that is probably given in tokens; empty for others."""
    if training.tokens_per_step <= 2 * LARGEST_BATCH_TOKENS:
        return ""
    sequences = max(1, round(training.global_batch_size / training.sequence_length))
    return (
        f"{amount(training.tokens_per_step)} tokens per step are more than published trainings have, at most some "
        f"{amount(LARGEST_BATCH_TOKENS)}; the global batch size counts sequences: "
        f"{training.global_batch_size:,} tokens were {sequences:,}"
    )


LARGEST_BATCH_TOKENS = 15_360 * 4_096
"""Tokens of the largest batch that is published: DeepSeek-V3, arXiv 2412.19437, section 4.2."""


def _units_text(problem: Problem) -> str:
    """List the numbers of a training that its job writes with units; empty where there are none."""
    given = problem.document.get("training") or {}
    read = {name: getattr(problem.facts.workload, name) for name in given if isinstance(given[name], str)}
    said = [f"{name} {given[name]} is {value:,.0f}" for name, value in read.items() if not isinstance(value, Precision)]
    is_binary = "sequence_length" in read
    return "; ".join(said) + (" (k is 1,024 in sequence lengths, 1,000 elsewhere)" if said and is_binary else "")


def _model_text(model: ModelSummary) -> str:
    has_idle = model.active_parameters < model.parameters
    active = f", {amount(model.active_parameters)} active per token" if has_idle else ""
    mtp = f"; {amount(model.mtp_parameters)} more for multi-token prediction" if model.mtp_parameters else ""
    part = "; the text part of a multimodal model, other parts are not counted" if model.is_text_part else ""
    return f"{amount(model.parameters)} parameters{active}{mtp}; {count(model.num_layers, 'layer')}{part}"


def conventions_section(setting: SettingRecord) -> Section:
    """Build the section on conventions: peak, attention FLOPs, and the source of operator times."""
    conventions = setting.conventions
    counted = {"causal": "attention FLOPs of the causal half only", "full": "all attention FLOPs, masked ones included"}
    mtp = ", those of multi-token prediction included" if setting.model.mtp_parameters else ""
    origins = ", ".join(dict.fromkeys(conventions.operator_times.values()))
    return Section(
        title="Conventions",
        rows=(
            (
                "MFU",
                f"model FLOPs over {tflops(conventions.peak_tflops_per_gpu)} TFLOP/s, the dense "
                f"{conventions.peak_dtype} "
                f"peak; {counted[conventions.attention]}{mtp}; HFU adds recomputed FLOPs",
            ),
            ("ETTR", "effective training time ratio: time of productive steps over total time"),
            ("operator times", origins),
        ),
    )
