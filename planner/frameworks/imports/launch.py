"""Which command of a script starts the training, on how many devices, with which words."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.bridge.library import recipe_named
from planner.frameworks.imports.bridge.overrides import is_override
from planner.frameworks.imports.refused import refuse_options, refuse_program
from planner.frameworks.shell.script import WHERE, Command, Script
from planner.frameworks.shell.text import known_part, unknown_names, written

PROGRAMS = Path(__file__).parent / "programs.csv"
"""Programs by the end of their path: what they train, or why they are refused."""

DEVICES_PER_NODE = ("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--ntasks-per-node", "--gpus-per-node")
NODES = ("--nnodes", "--num_nodes", "--nodes", "-N")
DEVICES = ("--num_processes", "--ntasks", "-n", "-np")

TOOLS = ("trl", "swift", "megatron", "llamafactory-cli", "axolotl", "tune", "xtuner", "automodel", "nemo_rl", "ilab")
"""Commands that start trainings by the words behind them, which no import reads."""

STARTER = re.compile(
    r"(python|pypy)[\d.]*|\w*run|run_\w+|deepspeed|accelerate|mpiexec[\w.]*|ft_launcher|\w*launch\w*|pdsh|nemo|ds|bash|sh"
)
"""Names of what starts a Python program; of these all but the first may be a queue's or a cluster's."""

SETTING_UP = {
    *("awk", "cat", "chmod", "chown", "cp", "diff", "echo", "egrep", "find", "git", "grep", "head", "install", "kill"),
    *("killall", "ln", "ls", "mkdir", "mv", "nano", "patch", "pgrep", "pip", "pip3", "pkill", "printf", "ps", "rm"),
    *("rsync", "scp", "sed", "tail", "tar", "tee", "test", "touch", "vi", "vim", "wget", "which", "export"),
}
"""Commands that may name a program, and a launcher, and start neither."""

MOST_SUBCOMMANDS = 4

KINDS_BY_OPTION = (
    ("--job.config_file", "torchtitan"),
    ("--job.config-file", "torchtitan"),
    ("--deepspeed", "deepspeed"),
    ("--fsdp", "accelerate"),
    ("--deepspeed_config", "deepspeed"),
    ("--num-layers", "megatron"),
    ("--tensor-model-parallel-size", "megatron"),
    ("--hybrid-layer-pattern", "megatron"),
)
"""What an option says of a program that is not in the list."""


LONE = "no launcher is told another number"
"""What is said of a program that Python or torchrun starts once."""


class Devices(NamedTuple):
    """
    How many devices a launcher uses.

    Parameters
    ----------
    number
        All of them; None: not known.
    source
        How the script says it, or by what it leaves it open.
    """

    number: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """
    A training as a script starts it.

    Parameters
    ----------
    kind
        Whose arguments the words are: ``megatron``, ``bridge``, ``torchtitan``, ``deepspeed`` or ``accelerate``.
    program
        What runs.
    words
        What stands behind it.
    before
        What stands in front of it: launchers with their options.
    devices
        How many devices they use.
    environment
        Variables that are known.
    notes
        What is to be said of it.
    """

    kind: str
    program: str
    words: tuple[str, ...]
    before: tuple[str, ...]
    devices: Devices
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()


@cache
def _programs() -> tuple[dict[str, str], ...]:
    with PROGRAMS.open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


def find_launch(script: Script, text: str) -> Launch | None:
    """
    The first training that a script starts; None: it starts none.

    Raises
    ------
    SpecError
        If it is one of a model that is no decoder of text, with the reason.
    """
    launches: list[Launch] = []
    refusals: list[SpecError] = []
    for command in script.commands:
        try:
            launches += _launches(command, text)
        except SpecError as error:  # what comes before a training, such as the preparation of its data
            refusals.append(error)
    if not launches and refusals:
        raise refusals[0]
    if not launches:
        return None
    first, others = launches[0], {one.words for one in launches} - {launches[0].words}
    if not others:
        return first
    note = f"The script starts {len(others) + 1} trainings: the first one is read, {shown(first.program)}."
    return Launch(
        first.kind, first.program, first.words, first.before, first.devices, first.environment, (*first.notes, note)
    )


def _launches(command: Command, text: str) -> Iterator[Launch]:
    place = _program_place(command.words)
    if place is None:
        if Path(command.words[0]).name in TOOLS:
            for word in command.words[:MOST_SUBCOMMANDS]:
                refuse_program(written(word), f"{WHERE}, line {command.line}")
            refuse_options(command.words)
        return
    words, before = command.words[place + 1 :], command.words[:place]
    program = written(command.words[place])
    kind, notes = _kind(program, words, before, command.line)
    if kind:
        yield Launch(kind, program, words, before, _devices(before, text), command.environment, notes)


def _program_place(words: Sequence[str]) -> int | None:
    """Where the program stands that a launcher starts: a Python file, or a module that is no launcher."""
    if Path(words[0]).name in SETTING_UP:
        return None
    starts = False
    for place, word in enumerate(words):
        if place and not starts:
            last = words[place - 1]
            starts = bool(unknown_names(last)) or STARTER.fullmatch(Path(last).name) is not None
            if not starts:
                continue
        if Path(word).name == "nemo" and words[place + 1 : place + 2] == ("llm",):
            return place
        if word.endswith(".py") and (place == 0 or words[place - 1] not in ("-o", "--output")):
            return place
        if place and words[place - 1] == "--module" and "." in word:
            return place
        if place and words[place - 1] == "-m" and not word.startswith("torch.distributed"):
            return place
    return None


def _kind(program: str, words: Sequence[str], before: Sequence[str], line: int) -> tuple[str, tuple[str, ...]]:
    path = program if program.endswith(".py") else program.replace("/", ".")
    for row in _programs():
        if path.endswith(row["program"]) or f"/{row['program']}/" in f"/{path}/":
            if row["kind"] == "refused":
                raise SpecError(f"{WHERE}, line {line}", f"{program[:80]} {row['why']}.")
            return row["kind"], (row["why"],) if row["why"] else ()
    refuse_program(path, f"{WHERE}, line {line}")
    if any(map(is_override, words)) or recipe_named(Path(program).stem) is not None:
        return "bridge", ()
    names = {word.split("=", 1)[0] for word in words}
    for option, kind in KINDS_BY_OPTION:
        if option in names:
            return kind, (f"{program[:80]} is not known here: its options are read as those of {kind}.",)
    return ("accelerate", ()) if "accelerate" in {Path(word).name for word in before} else ("", ())


# --- devices -----------------------------------------------------------------------------------------------


def _devices(before: Sequence[str], text: str) -> Devices:
    """What torchrun, DeepSpeed, Accelerate or Slurm are told, else what the script asks Slurm for."""
    given = {**_directives(text), **_options(before)}
    total = next((given[name] for name in DEVICES if name in given), None)
    per_node = next((given[name] for name in DEVICES_PER_NODE if name in given), None)
    nodes = next((given[name] for name in NODES if name in given), None)
    if per_node is None and "--standalone" not in before:
        lone = before and all(re.fullmatch(r"(.*/)?(python[\d.]*|torchrun)|-[a-zA-Z]+", word) for word in before)
        return _number(total, "") if total else Devices(1, LONE) if lone and not given else Devices()
    launcher = any(
        Path(word).name in ("torchrun", "deepspeed") or word.startswith("torch.distributed") for word in before
    )
    one, many = _number(per_node, "a node"), _number(nodes or ("1" if launcher else None), "nodes")
    if one.number is None or many.number is None:
        return Devices(None, " and ".join(part.source for part in (one, many) if part.number is None and part.source))
    return Devices(one.number * many.number, f"{one.number} on each of {many.number} nodes")


def _number(text: str | None, what: str) -> Devices:
    if text is None:
        return Devices(None, "")
    if text.isdecimal() and 0 < int(text) < 10**7:
        return Devices(int(text), f"{text} {what}".strip())
    names = unknown_names(text)
    return Devices(None, " and ".join(f"${name}" for name in names) or shown(known_part(text)))


def _options(words: Sequence[str]) -> dict[str, str]:
    wanted = (*DEVICES_PER_NODE, *NODES, *DEVICES)
    found = {}
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in wanted:
            found[name] = value if equals else words[place + 1] if place + 1 < len(words) else ""
    return found


def _directives(text: str) -> dict[str, str]:
    """``#SBATCH`` lines with plain numbers; placeholders say nothing."""
    lines = " ".join(re.findall(r"^#SBATCH[ \t]+(.*)$", text, re.MULTILINE))
    generic = re.search(r"--gres[= ]gpu:(?:[\w-]+:)?(\d+)", lines)
    of_node = {"--gpus-per-node": generic[1]} if generic else {}
    return of_node | {name: value for name, value in _options(lines.split()).items() if value.isdecimal()}


def slurm_variables(text: str) -> dict[str, str]:
    r"""
    What Slurm sets for a job that a script's ``#SBATCH`` lines describe.

    >>> slurm_variables("#SBATCH -N 4 --gres=gpu:8")
    {'SLURM_NNODES': '4', 'SLURM_JOB_NUM_NODES': '4', 'SLURM_GPUS_ON_NODE': '8', 'SLURM_GPUS_PER_NODE': '8'}
    """
    given = _directives(text)
    nodes = given.get("--nodes", given.get("-N"))
    found = {name: nodes for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")}
    found |= {name: given.get("--gpus-per-node") for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")}
    found |= {"SLURM_NTASKS_PER_NODE": given.get("--ntasks-per-node"), "SLURM_NTASKS": given.get("--ntasks")}
    return {name: value for name, value in found.items() if value is not None}
