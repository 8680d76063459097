"""The framework of a report: its name, its origin, and a note where no measured run of it is known."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel import catalog
from costmodel.catalog.releases import stands_in
from costmodel.facts.cluster import Cluster
from costmodel.facts.device import Device
from planner.jobs.problem import Problem

ASSUMED = "assumed, as the job names none (set cluster.framework; planner catalog frameworks lists them)"
"""The note on a framework that the job does not name: the entry that names one, and the command that lists them."""


def is_assumed(problem: Problem) -> bool:
    """True if the job names no framework."""
    return problem.machine is not None and problem.machine.section.framework is None


def is_extrapolated(cluster: Cluster) -> bool:
    """True if no run of the framework was measured on devices of the architecture."""
    framework, architecture = cluster.framework, cluster.device.architecture
    return framework is not None and architecture is not None and architecture not in framework.measured_on


def nearest_relative(cluster: Cluster) -> str | None:
    """Return the note that another release stands in for the unknown one that a job names; None: it is known."""
    if cluster.framework is None or not cluster.unknown_release:
        return None
    return stands_in(cluster.unknown_release, cluster.framework.name)


def framework_text(problem: Problem) -> str:
    """Describe the framework in a line."""
    cluster = problem.facts.cluster
    if cluster.framework is None:
        return "unknown"
    texts = [cluster.framework.name]
    if nearest := nearest_relative(cluster):
        texts.append(nearest)
    if problem.search.target is not None:
        texts.append(f"for search.target {problem.search.target}")
    if is_assumed(problem):
        texts.append(ASSUMED)
    if is_extrapolated(cluster):
        texts.append(
            f"extrapolated: no measured run of it on {cluster.device.architecture} is known, constants are those of "
            f"{_constants_of(cluster.device)}"
        )
    return "; ".join(texts)


def _constants_of(device: Device) -> str:
    """Return the architecture that a device's constants are fitted to."""
    relative = catalog.calibration_of_fit(device)
    return "that architecture" if relative in ("", device.architecture) else relative


def targets_text(targets: Mapping[str, str | None]) -> str:
    """List the targets that can run the best plan, in a line."""
    able = [name for name, reason in targets.items() if reason is None]
    others = "" if len(able) == len(targets) else f"; --target plans for {'another' if able else 'one'}"
    return f"{', '.join(able) or 'none'}{others}"
