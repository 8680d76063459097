"""What a report says of the framework: which one, whether the job named it, whether runs of it are known there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from costmodel.facts.cluster import Cluster
from planner.jobs.problem import Problem

ASSUMED = "assumed: the job names none (cluster.framework; planner catalog frameworks)"
"""What a report says of a framework that the job does not name: where to write another, and what lists them."""


def is_assumed(problem: Problem) -> bool:
    """Whether the job names no framework."""
    return problem.machine is not None and problem.machine.section.framework is None


def is_extrapolated(cluster: Cluster) -> bool:
    """Whether no run of the framework was measured on devices of the architecture."""
    framework, architecture = cluster.framework, cluster.device.architecture
    return framework is not None and architecture is not None and architecture not in framework.measured_on


def framework_text(problem: Problem) -> str:
    """The framework in a line."""
    cluster = problem.facts.cluster
    if cluster.framework is None:
        return "unknown"
    texts = [cluster.framework.name]
    if is_assumed(problem):
        texts.append(ASSUMED)
    if is_extrapolated(cluster):
        texts.append(
            f"extrapolated: no run of it on {cluster.device.architecture} is known, constants are the architecture's"
        )
    return "; ".join(texts)


def framework_document(problem: Problem) -> dict[str, Any]:
    """The framework by name, and what is assumed of it; the hint says what to write for another."""
    cluster, assumed = problem.facts.cluster, is_assumed(problem)
    return {
        "framework": cluster.framework.name if cluster.framework else None,
        "framework_is_assumed": assumed,
        "framework_hint": ASSUMED if assumed else None,
        "framework_is_extrapolated": is_extrapolated(cluster),
    }


def settings_document(cluster: Cluster) -> dict[str, Any]:
    """Every setting that the job or its framework decides."""
    settings = {one.name: getattr(cluster.settings, one.name) for one in fields(cluster.settings)}
    return {name: value for name, value in settings.items() if value is not None}
