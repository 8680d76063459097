"""``planner init``: makes a job file with comments from one line."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import SpecError
from planner.cli.arguments import (
    add_force,
    add_one_line,
    add_output_file,
    all_overrides,
    describe,
    read_job,
)
from planner.cli.output import check_output, progress, require_new, write

if TYPE_CHECKING:
    from planner.jobs.document import Plain
    from planner.jobs.problem import Problem


def add_init_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Writes the job that 'planner plan' would plan with the same arguments, each entry with a comment, other "
        "entries commented out. Writes to stdout, or to a file that does not exist yet."
    )
    describe(parser, description)
    parser.add_argument("job", metavar="MODEL", help="what is trained")
    parser.add_argument("assignments", metavar="CLUSTER key=value", nargs="*", help="on what; an entry of the job")
    add_one_line(parser)
    add_force(parser)
    add_output_file(parser)


def run_init(arguments: argparse.Namespace) -> int:
    """Check the job and write it."""
    output: Path | None = arguments.output
    if all("=" in word for word in arguments.assignments):
        fix = f"such as: {arguments.job} 512xh100 --batch 1024 --sequence 8k --tokens 15T."
        raise SpecError("CLUSTER", "is missing.", f"After a model a cluster and three numbers are needed, {fix}")
    with progress(f"reading {arguments.job}"):
        from planner.jobs.commented import rebase_paths, write_commented
        from planner.jobs.problem import load
        from planner.schema.job import editor_comment

        document, overrides = read_job(arguments, arguments.assignments)
        problem = load(document, all_overrides(overrides, arguments))
        check_output(output, problem.sources)
        require_new(output, force=arguments.force)
        entries = document.entries if output is None else rebase_paths(document.entries, output.parent)
        cluster = next(word for word in arguments.assignments if "=" not in word)
        title = f"{problem.facts.model.name} on {shlex.quote(cluster)}, for planner plan."
        text = write_commented(entries, title, _defaults(problem))
        text = text if output is None else f"{editor_comment()}\n{text}"
    write(text, output)
    return 0


def _defaults(problem: Problem) -> dict[str, dict[str, Plain]]:
    """Return the values that hold for entries whose default depends on the device or the framework."""
    from costmodel import GIB_BYTES
    from planner.jobs.cluster import device_of

    cluster, workload = problem.facts.cluster, problem.facts.workload
    device = device_of(problem.machine.device) if problem.machine else cluster.device  # with nominal bandwidths
    within, *beyond = device.networks
    of_cluster: dict[str, Plain] = {
        "devices_per_node": cluster.device.devices_per_node,
        "scale_up_size": cluster.scale_up_size,
        "memory_gib": device.memory_bytes / GIB_BYTES,
        "host_memory_gib": device.host_memory_bytes / GIB_BYTES,
        "scale_up_bandwidth": within.bandwidth,
    }
    if len({level.bandwidth for level in beyond}) == 1:
        of_cluster["internode_bandwidth"] = beyond[0].bandwidth
    if cluster.framework is not None:
        of_cluster["framework"] = cluster.framework.name
    of_reliability: dict[str, Plain] = {"mttr_seconds": problem.reliability.mttr_seconds}
    return {
        "cluster": of_cluster,
        "training": {"precision": workload.precision.name},
        "reliability": of_reliability,
    }
