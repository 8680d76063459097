"""Rows and sections on devices that stay idle, and on near-by batches that keep all of them busy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.report.section import Section
from planner.report.wording import count, seconds

if TYPE_CHECKING:
    from planner.report.records.devices import IdleDevicesRecord
    from planner.report.records.plan import PlanRecord
    from planner.report.records.reports import PlanReportRecord, ReportRecord
    from planner.report.records.setting import SettingRecord


def device_rows(
    setting: SettingRecord, best: PlanRecord | None, idle: IdleDevicesRecord | None
) -> Iterator[tuple[str, str]]:
    """Build the row on the devices that the best plan uses, and why others idle; none where it uses all."""
    all_devices, most = setting.cluster.num_devices, setting.job.max_devices
    if best is None or (most is None and best.num_devices >= all_devices):
        return
    used = f"{best.num_devices:,} of {all_devices:,} GPUs on {count(best.num_nodes, 'node')}"
    if most is not None:
        used += f"; the job allows {most:,}"
    elif idle is not None and idle.num_idle_devices:
        used += f"; {count(setting.cluster.num_nodes - best.num_nodes, 'node')} left idle: {_why_idle(best, idle)}"
    yield "uses", used


def _why_idle(best: PlanRecord, idle: IdleDevicesRecord) -> str:
    if idle.all_devices is None:
        return "no strategy for all GPUs satisfies the rules"
    step = idle.all_devices.step_time_seconds
    return (
        f"with all {idle.all_devices.num_devices:,} GPUs a step takes {seconds(step)} s, "
        f"{step / best.step_time_seconds - 1:.1%} longer ({idle.all_devices.strategy.line})"
    )


def device_notes(plans: Sequence[PlanRecord], num_devices: int) -> Iterator[str]:
    """Return the note that figures per GPU count only GPUs in use; none where all are in use."""
    if any(plan.num_devices < num_devices for plan in plans):
        yield "Tokens/s/GPU, MFU, HFU, GPU-hours and failures count the GPUs that a strategy uses, not those left idle."


def idle_proof_rows(whole: PlanReportRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the smaller numbers of nodes that were searched, and on the proof for them."""
    idle = whole.idle
    if idle is None or not whole.plans:
        return
    nodes = f"{idle.fewest_nodes_searched:,} to {count(idle.most_nodes_searched, 'node')}"
    if not idle.is_proven:
        yield "fewer GPUs", "time ran out before it was proven that no plan on fewer whole nodes is faster"
    elif not idle.most_nodes_searched:
        yield "fewer GPUs", "proven: on fewer whole nodes no step can be as short, by what the layers take"
    elif idle.num_idle_devices:
        yield (
            "fewer GPUs",
            f"searched with the plans on all: {nodes}; on fewer no step can be as short. The proof is of all of them",
        )
    else:
        yield "fewer GPUs", f"proven: no plan on {nodes} is faster; on fewer none can be, by what the layers take"


LEAST_GAIN = 0.03
"""Gain in tokens per second from which on a near-by batch belongs to the first screen."""


def nearby_rows(whole: ReportRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the near-by batch that gains most, if it gains more than ``LEAST_GAIN``."""
    best = max(whole.nearby_batches, key=lambda one: one.gain_fraction, default=None)
    if best is not None and best.gain_fraction > LEAST_GAIN:
        yield (
            "near-by batch",
            f"{best.global_batch_size:,} sequences ({best.change_fraction:+.1%}) on all {best.num_devices:,} GPUs: "
            f"{seconds(best.step_time_seconds)} s, {best.gain_fraction:+.1%} tokens/s",
        )


def nearby_sections(whole: ReportRecord) -> Iterator[Section]:
    """Build the section on near-by batches with which all devices train faster."""
    nearby = whole.nearby_batches
    if not nearby:
        return
    rows = [
        (
            f"{one.global_batch_size:,}",
            f"{one.change_fraction:+.1%}",
            f"{one.num_devices:,}",
            seconds(one.step_time_seconds),
            f"{one.tokens_per_second:,.0f}",
            f"{one.gain_fraction:+.1%}",
            f"{one.mfu:.1%}",
        )
        for one in nearby
    ]
    yield Section(
        title="Near-by batch sizes",
        header=("sequences", "change", "GPUs", "step, s", "tokens/s", "gain", "MFU"),
        rows=tuple(rows),
        notes=(
            f"Instead of training.global_batch_size={whole.training.global_batch_size}, with all GPUs; gain: more "
            "tokens per second than the fastest plan trains. The few sizes within 5% that share most with the number "
            "of GPUs were searched.",
        ),
    )
