"""A report as plain data for programs: quantities are named with their units, JSON holds neither NaN nor infinity."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from costmodel.facts.device import EquippedDevice
from costmodel.memory.rank import seen_bytes
from costmodel.strategy import Decision
from costmodel.tables import microbatches
from planner.plan import EstimateReport, PlanReport
from planner.report.framework import framework_document, settings_document
from planner.report.stages import layout_document
from planner.uncertainty.intervals import COVERAGE

if TYPE_CHECKING:
    from constraints.conflict import Conflict
    from costmodel.step.estimate import Estimate
    from costmodel.strategy import Strategy
    from costmodel.tables import Facts
    from planner.jobs.problem import Problem
    from planner.plan import Conventions, Plan
    from planner.search.branch_and_bound import Outcome

Plain: TypeAlias = dict[str, Any]

FORMAT_VERSION = 1
"""Grows when an entry changes its name, unit or meaning; new entries do not count."""


def document(report: PlanReport | EstimateReport) -> Plain:
    """The whole report; what is infinite or undefined is None."""
    setting = {
        "format_version": FORMAT_VERSION,
        "kind": "plan" if isinstance(report, PlanReport) else "estimate",
        **setting_document(report),
    }
    if isinstance(report, EstimateReport):
        whole = {
            **setting,
            "allowed": not report.broken_rules,
            "broken_rules": list(report.broken_rules),
            "assumed": {name: _spelled(value) for name, value in report.assumed.items()},
            **plan_document(report.plan),
        }
    else:
        whole = {**setting, **_outcome(report), "plans": _plans(report.plans)}
    plain: Plain = finite(whole)
    return plain


def _plans(plans: tuple[Plan, ...]) -> list[Plain]:
    return [
        {
            "number": number,
            "slower_fraction": plan.slower_fraction(plans[0]),
            "within_noise_of_best": plan.is_within_noise(plans[0]),
            "difference_seconds": plan.step_seconds - plans[0].step_seconds,
            "difference_by_part": plan.difference(plans[0]),
            **plan_document(plan),
        }
        for number, plan in enumerate(plans, start=1)
    ]


def plan_document(plan: Plan) -> Plain:
    """One plan."""
    schedule = plan.schedule
    return {
        "num_devices": plan.cluster.num_devices,
        "num_nodes": plan.cluster.num_nodes,
        "step_time_seconds": plan.step_seconds,
        "closed_form_step_time_seconds": plan.estimate.closed_form_seconds,
        "step_time_interval_seconds": [plan.interval.low_seconds, plan.interval.high_seconds],
        "step_time_interval_probability": COVERAGE,
        "step_time_interval_basis": plan.interval.basis,
        "tokens_per_second_per_gpu": plan.tokens_per_second_per_device,
        "model_tflops_per_gpu": plan.model_flops_per_second_per_device / 1e12,
        "hardware_tflops_per_gpu": plan.hardware_flops_per_second_per_device / 1e12,
        "mfu": plan.mfu,
        "hfu": plan.hfu,
        **_memory(plan.estimate, plan.cluster.device),
        "strategy": strategy_document(plan.strategy, num_microbatches=plan.estimate.num_microbatches),
        "breakdown": [asdict(part) for part in plan.estimate.breakdown],
        "checkpoint": {
            "interval_steps": schedule.interval_steps,
            "interval_seconds": schedule.interval_seconds,
            "unrounded_interval_steps": schedule.k_real,
            "seconds": plan.checkpoint_seconds,
        },
        "training_run": {
            "num_steps": schedule.num_steps,
            "effective_seconds": schedule.effective_seconds,
            "interruption_seconds": schedule.interruption_seconds,
            "total_seconds": schedule.total_seconds,
            "num_failures": schedule.failures,
            "ettr": schedule.ettr,
            "days": schedule.days,
            "gpu_hours": schedule.gpu_hours,
        },
    }


def strategy_document(strategy: Strategy, *, num_microbatches: int) -> Plain:
    """Every decision by name, as job files spell its value, and the micro-batches that follow."""
    decisions = {name: _spelled(value) for name, value in strategy.decisions().items()}
    return {**decisions, "layout": layout_document(strategy.layout), "num_microbatches": num_microbatches}


def _spelled(value: object) -> object:
    return value.text if isinstance(value, Decision) else value


def _memory(estimate: Estimate, device: EquippedDevice) -> Plain:
    memory_bytes, host_memory_bytes = device.memory_bytes, device.host_memory_bytes
    return {
        "peak_memory_bytes": estimate.device_bytes,
        "allocated_bytes": seen_bytes(device, estimate.device_bytes, "allocated"),
        "reserved_bytes": seen_bytes(device, estimate.device_bytes, "reserved"),
        "headroom_bytes": memory_bytes - estimate.device_bytes,
        "host_memory_bytes": estimate.host_bytes,
        "host_headroom_bytes": host_memory_bytes - estimate.host_bytes,
        "ranks": [
            {
                "rank": rank.rank,
                "num_layers": rank.num_layers,
                "microbatch_seconds": rank.microbatch_seconds,
                "bytes": dict(rank.bytes_by_part),
                "peak_memory_bytes": rank.device_bytes,
                "headroom_bytes": memory_bytes - rank.device_bytes,
                "host_memory_bytes": rank.host_bytes,
            }
            for rank in estimate.ranks
        ],
    }


# --- the setting -------------------------------------------------------------------------------------------


def setting_document(report: PlanReport | EstimateReport) -> Plain:
    """What was asked."""
    problem = report.problem
    return {
        "job": {
            "name": problem.name,
            "objective": problem.objective,
            "top": problem.top,
            "variants": problem.variants,
            "memory_headroom_bytes": problem.search.memory_headroom_bytes,
            "framework_rules": problem.search.framework_rules,
            "max_devices": problem.search.max_devices,
            "max_bubble_fraction": problem.search.max_bubble_fraction,
            "sources": [str(path) for path in problem.sources],
            "document": dict(problem.document),
        },
        "model": asdict(report.model),
        "cluster": _cluster(problem),
        "training": _training(problem.facts),
        "reliability": _reliability(problem),
        "conventions": _conventions(report.conventions),
    }


def _cluster(problem: Problem) -> Plain:
    cluster, device = problem.facts.cluster, problem.facts.cluster.device
    return {
        "device": device.name,
        "num_devices": cluster.num_devices,
        "num_nodes": cluster.num_nodes,
        "devices_per_node": device.devices_per_node,
        "scale_up_size": cluster.scale_up_size,
        "memory_bytes": device.memory_bytes,
        "host_memory_bytes_per_device": device.host_memory_bytes,
        **framework_document(problem),
        "settings": settings_document(cluster),
    }


def _training(facts: Facts) -> Plain:
    workload = facts.workload
    return {
        "global_batch_size": workload.global_batch_size,
        "sequence_length": workload.sequence_length,
        "tokens_per_step": workload.global_batch_size * workload.sequence_length,
        "tokens": workload.tokens,
        "precision": workload.precision.name,
    }


def _reliability(problem: Problem) -> Plain:
    facts, reliability = problem.facts, problem.reliability
    return {
        **asdict(reliability),
        "failures_per_day": reliability.failures_per_node_day * facts.cluster.num_nodes,
        "recovery": [asdict(level) for level in problem.recovery],
    }


def _conventions(conventions: Conventions) -> Plain:
    return {
        "peak_dtype": conventions.peak_dtype,
        "peak_tflops_per_gpu": conventions.peak_flops / 1e12,
        "attention": conventions.attention,
        "mfu": "model FLOPs (forward and backward pass, multi-token prediction included) over the dense peak",
        "hfu": "model FLOPs and recomputed forward FLOPs over the dense peak",
        "operator_times": dict(conventions.operator_times),
    }


# --- the outcome -------------------------------------------------------------------------------------------


def _outcome(report: PlanReport) -> Plain:
    outcome = report.outcome
    return {
        "status": str(outcome.status),
        "lower_bound_seconds": outcome.lower_bound_seconds,
        "gap": outcome.gap,
        "rounding_bound_seconds": outcome.rounding_bound_seconds,
        "search": _effort(outcome),
        "candidates": _listed(report),
        "conflict": conflict_document(report, outcome.conflict) if outcome.conflict else None,
    }


def _effort(outcome: Outcome) -> Plain:
    effort = outcome.effort
    return {
        "num_raw_strategies": effort.raw_size,
        "num_strategies": effort.size,
        "num_rows": effort.num_rows,
        "num_rows_tabulated": effort.num_rows_tabulated,
        "num_strategies_tabulated": effort.pruned.tabulated,
        "num_excluded": {
            "lower_bound": effort.num_bounded + effort.pruned.bounded,
            "rules_of_time": effort.pruned.timeless,
            "overlaps": effort.pruned.folded,
            "cut": effort.pruned.cut,
            "dominance": effort.pruned.dominated,
            "memory": effort.pruned.unfit + effort.num_unfit,
        },
        "num_pipelines": effort.stages.pipelines,
        "num_pipelines_costed": effort.stages.costed,
        "num_pipelines_solved": effort.stages.solved,
        "num_candidates": effort.num_candidates,
        "num_solves": effort.num_solves,
        "build_seconds": effort.build_seconds,
        "solve_seconds": effort.solve_seconds,
    }


def _listed(report: PlanReport) -> Plain | None:
    listed = report.listed
    if listed is None:
        return None
    return {
        "source": listed.source,
        "num_rows": listed.num_rows,
        "num_impossible": listed.num_impossible,
        "impossible": [{"place": place, "rules": list(rules)} for place, rules in listed.impossible],
    }


def conflict_document(report: PlanReport, conflict: Conflict) -> Plain:
    """Why nothing fits."""
    facts, closest, size = report.problem.facts, report.closest, conflict.size
    device = facts.cluster.device
    room = device.memory_bytes - report.problem.search.memory_headroom_bytes
    return {
        "least_bubble_fraction": conflict.least_bubble_fraction,
        "exclusive_rules": [list(rules) for rules in conflict.exclusive],
        "repairs": [list(rules) for rules in conflict.repairs],
        "release": list(conflict.release),
        "releases": [list(rules) for rules in conflict.releases],
        "shortage_bytes": conflict.shortage_bytes,
        "host_shortage_bytes": conflict.host_shortage_bytes,
        "needed_memory_bytes": conflict.needed_bytes,
        "needed_host_memory_bytes": conflict.needed_host_bytes,
        "needed_headroom_bytes": conflict.headroom_bytes,
        "smallest_cluster": {
            "num_devices": size.num_devices,
            "strategy": _sized(facts, size.strategy),
            "num_devices_tried": size.num_tried,
            "num_devices_enough": size.num_enough,
            "num_devices_within": size.num_within,
            "time_ran_out": size.is_cut,
        }
        if size
        else None,
        "left_out": list(conflict.left_out),
        "closest": {
            "strategy": strategy_document(closest.strategy, num_microbatches=closest.num_microbatches),
            **_memory(closest, device),
            "missing_bytes_by_rank": [max(0.0, rank.device_bytes - room) for rank in closest.ranks],
        }
        if closest
        else None,
    }


def _sized(facts: Facts, strategy: Strategy | None) -> Plain | None:
    if strategy is None:
        return None
    return strategy_document(strategy, num_microbatches=int(microbatches(facts, strategy.decisions())))


def finite(value: Any) -> Any:
    """The same value with None for what JSON cannot write."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
