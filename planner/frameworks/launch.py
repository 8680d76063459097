"""
Launch files of an exported plan: a script for torchrun, a batch script for Slurm, a TrainJob for Kubernetes.

Values to fill in by hand are marked ``TODO``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from math import lcm
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

import yaml

from costmodel.errors import SpecError, did_you_mean
from costmodel.record import record
from costmodel.validation import shown
from planner.frameworks import LAUNCHERS, TARGETS
from planner.frameworks.target import Export, Program, subject
from planner.jobs.document import BlockDumper

if TYPE_CHECKING:
    from planner.results import Plan

PORT = 29500

"""Port of the first node: torchrun's own default."""

RESOURCES = {
    "AMD": "amd.com/gpu",
    "AWS": "aws.amazon.com/neuron",
    "Google": "google.com/tpu",
    "Huawei": "huawei.com/Ascend910",
    "Intel": "habana.ai/gaudi",
}

"""Resource name of a device in Kubernetes' device plugins, by its maker."""

RESOURCE = "nvidia.com/gpu"

"""Resource name of NVIDIA's devices, and of devices whose maker is not known."""

Lines: TypeAlias = list[str]


def launched(plan: Plan, export: Export, launcher: str) -> Export:
    """
    Add the launch file to an export.

    Parameters
    ----------
    plan
        The plan.
    export
        The plan's files, without a launch file.
    launcher
        A name of ``LAUNCHERS``.

    Returns
    -------
    Export
        A copy with the launch file as the last one, and a note for each value to fill in.

    Raises
    ------
    SpecError
        If there is no such launcher, or if the plan's devices do not fill its nodes equally.
    """
    if launcher not in LAUNCHERS:
        raise SpecError("launch", f"{shown(launcher)} is unknown.", did_you_mean(launcher, LAUNCHERS))
    text = WRITERS[launcher](Start.build(plan, export))
    todo = [program_of(export).todo, *(line.partition("TODO: ")[2] for line in text.splitlines())]
    notes = tuple(f"TODO: {what}." for what in dict.fromkeys(todo) if what)
    return replace(export, files={**export.files, LAUNCHERS[launcher]: text}, notes=(*export.notes, *notes))


def program_of(export: Export) -> Program:
    """Return the program that every process of an export runs."""
    program: Program = export.program or import_module(TARGETS[export.target.lower()]).PROGRAM
    return program


@record(frozen=True, kw_only=True, slots=True)
class Start:
    """
    Contents of a launch file.

    Parameters
    ----------
    plan, export
        The plan, and its files.
    program
        Program of every process.
    num_nodes, devices_per_node
        Number of nodes, and of processes on each.
    """

    plan: Plan
    export: Export
    program: Program
    num_nodes: int
    devices_per_node: int

    @classmethod
    def build(cls, plan: Plan, export: Export) -> Start:
        """
        Build the contents for a plan.

        Raises
        ------
        SpecError
            If the plan's devices do not fill its nodes equally.
        """
        devices, each = plan.strategy.num_devices, plan.cluster.device.devices_per_node
        if devices > each and devices % each:
            raise SpecError("launch", f"{devices} devices do not fill nodes of {each} equally, as launchers need.")
        return cls(
            plan=plan,
            export=export,
            program=program_of(export),
            num_nodes=max(1, devices // each),
            devices_per_node=min(devices, each),
        )

    @property
    def resource(self) -> str:
        """Resource name of the plan's devices in a device plugin of Kubernetes."""
        return RESOURCES.get(self.plan.cluster.device.silicon.maker, RESOURCE)

    @property
    def title(self) -> str:
        """Title of the launch file, in a line."""
        return f"{subject(self.plan)}; {self.export.target}"

    @property
    def name(self) -> str:
        """Model name in the form that Slurm and Kubernetes accept."""
        words = re.sub(r"[^a-z0-9]+", "-", self.plan.facts.model.name.lower()).strip("-")
        return (words or "pretraining")[:50].strip("-")

    def command(self, rendezvous: Mapping[str, Lines], before: str = "") -> Lines:
        """
        Return the lines that start the processes of a node.

        Parameters
        ----------
        rendezvous
            Rendezvous options of the nodes, by the program's launcher.
        before
            Prefix of the command, such as ``srun``.
        """
        file = next(iter(self.export.files))  # the main one, which the target makes of the plan
        values = {"file": file, "module": file.partition(".")[0], "mbs": str(self.plan.strategy.mbs)}
        words = " ".join(shlex.quote(word.format(**values)) for word in self.program.words)
        start = {"torchrun": "torchrun", "accelerate": f"accelerate launch --config_file {shlex.quote(file)}"}
        options = ['"${options[@]}"'] if self.program.has_options else []
        # Set first: shells and shellcheck do not see variables that eval sets.
        read = ["options=()", f'eval "options=($(cat {shlex.quote(file)}))"'] if self.program.has_options else []
        parts = [f"{before}{start[self.program.launcher]}", *rendezvous[self.program.launcher], words, *options]
        return [*read, " \\\n    ".join(parts)]

    @property
    def exports(self) -> Lines:
        """Return the lines of a shell that set the environment."""
        return [f"export {name}={shlex.quote(value)}" for name, value in self.export.environment.items()]

    def meeting(self, job: str) -> dict[str, Lines]:
        """
        Return the rendezvous options of nodes that meet at a port of ``HEAD_NODE``.

        Parameters
        ----------
        job
            Identifier of the job.
        """
        if self.num_nodes == 1:
            return {"torchrun": ["--standalone", f"--nproc-per-node={self.devices_per_node}"], "accelerate": []}
        return {
            "torchrun": [
                f"--nnodes={self.num_nodes} --nproc-per-node={self.devices_per_node}",
                f'--rdzv-backend=c10d --rdzv-endpoint="$HEAD_NODE:{PORT}" --rdzv-id="{job}"',
            ],
            "accelerate": [f'--main_process_ip="$HEAD_NODE" --main_process_port={PORT}'],
        }


# --- the three ---------------------------------------------------------------------------------------------
def _torchrun(start: Start) -> str:
    several = start.num_nodes > 1
    where = f"each of the {start.num_nodes} nodes" if several else "the node"
    lines = [
        "#!/usr/bin/env bash",
        f"# {start.title}.",
        f"# Run it on {where}, in the folder of the files that it names.",
        "set -euo pipefail",
        *([': "${HEAD_NODE:?the host name of one of the nodes, the same on all of them}"'] if several else []),
        "",
        *start.exports,
        *start.command(start.meeting("${JOB_ID:-1}")),
    ]
    return _join_lines(lines)


def _slurm(start: Start) -> str:
    directives = [
        f"--job-name={start.name}",
        f"--nodes={start.num_nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={start.devices_per_node}",
        "--exclusive",
        "--mem=0",
        *_segment(start),
    ]
    # Not head, which leaves before all is written: with pipefail that ends the job.
    head = ['HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)'] if start.num_nodes > 1 else []
    lines = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH {one}" for one in directives),
        "# TODO: add --partition, --account and --time as your site wants them",
        f"# {start.title}.",
        "# Submit it in the folder of the files that it names; ranks follow the order of the host names.",
        "set -euo pipefail",
        "",
        *head,
        *start.exports,
        # One task per node, which must not be bound to one core.
        *start.command(start.meeting("$SLURM_JOB_ID"), before="srun --kill-on-bad-exit=1 --cpu-bind=none "),
    ]
    return _join_lines(lines)


def _segment(start: Start) -> Lines:
    """
    Return ``--segment``, the nodes that Slurm keeps in one scale-up domain, where a domain has several nodes.

    A segment holds whole groups of tp and cp, and of ep, where these fit into a domain: ep 64 on domains of 72 GPUs
    takes 64 GPUs of each.
    """
    cluster, strategy = start.plan.cluster, start.plan.strategy
    node = cluster.device.devices_per_node
    sizes = [n for n in range(1, cluster.scale_up_size // node + 1) if start.num_nodes % n == 0]
    groups = (strategy.tp * strategy.cp, strategy.ep * strategy.etp)
    inner = lcm(*(one for one in groups if one <= cluster.scale_up_size))
    whole = [n for n in sizes if n * node % inner == 0]
    size = max(whole or sizes, default=1)
    return [f"--segment={size}"] if size > 1 else []


def _kubernetes(start: Start) -> str:
    """Write a TrainJob; Kubeflow sets the rendezvous (PET_*), and the script writes the files of the export."""
    meeting: dict[str, Lines] = {
        "torchrun": [],
        "accelerate": [
            '--machine_rank="$PET_NODE_RANK"',
            '--main_process_ip="$PET_MASTER_ADDR" --main_process_port="$PET_MASTER_PORT"',
        ],
    }
    files = [
        f"cat >{shlex.quote(name)} <<'END_OF_FILE'\n{text.rstrip()}\nEND_OF_FILE"
        for name, text in start.export.files.items()
    ]
    environment = [{"name": name, "value": value} for name, value in start.export.environment.items()]
    script = _join_lines(["set -euo pipefail", *files, *start.command(meeting)])
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": start.name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": "TODO",
                "numNodes": start.num_nodes,
                "numProcPerNode": start.devices_per_node,
                "command": ["bash", "-c"],
                "args": [script],
                **({"env": environment} if environment else {}),
                "resourcesPerNode": {"limits": {start.resource: start.devices_per_node}},
            },
        },
    }
    return (
        f"# {start.title}.\n"
        "# TODO: spec.trainer.image: an image with the program and its packages\n"
        f"{yaml.dump(job, Dumper=BlockDumper, sort_keys=False, width=1000)}"
    )


def _join_lines(lines: Lines) -> str:
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[Start], str]] = {"torchrun": _torchrun, "slurm": _slurm, "kubernetes": _kubernetes}

"""Writer of each launcher's file."""


def write_files(folder: Path, files: Mapping[str, str], *, force: bool) -> tuple[Path, ...]:
    """
    Write the files of an export.

    They are written to temporary files next to their places, and moved there when all are complete.

    Parameters
    ----------
    folder
        The folder, created if it does not exist.
    files
        Texts by file name.
    force
        True to overwrite files that exist.

    Returns
    -------
    tuple of Path
        Paths of the written files.

    Raises
    ------
    SpecError
        If the folder is a file, or if a file exists already.
    OSError
        If a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise SpecError(str(folder), "is a file, expected a folder to write to.")
    paths = tuple(folder / name for name in files)
    for path in paths:
        if path.is_dir():
            raise SpecError(str(path), "is a directory, expected a file to write to.")
        if path.exists() and not force:
            raise SpecError(str(path), "exists already; nothing was written.", "Name another folder, or add --force.")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".export-") as drafts:
        for name, text in files.items():
            for parent in (folder, Path(drafts)):
                (parent / name).parent.mkdir(parents=True, exist_ok=True)
            Path(drafts, name).write_text(text, encoding="utf-8")
        for name, path in zip(files, paths, strict=True):
            Path(drafts, name).replace(path)
    return paths
