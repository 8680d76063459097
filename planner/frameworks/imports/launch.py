"""Command of a script that starts the training, with its arguments and number of devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown
from planner.frameworks.imports.bridge.library import recipe_named
from planner.frameworks.imports.bridge.overrides import is_override
from planner.frameworks.imports.documents import read_rows, read_words
from planner.frameworks.imports.refused import refuse_options, refuse_program
from planner.frameworks.shell.script import WHERE, Command, Script
from planner.frameworks.shell.words import restore_variables, unknown_names

DATA = read_words("launch")

STARTER = re.compile("|".join(DATA.starting))
"""Names of programs that start a Python program; all but the first may belong to a batch system or cluster."""


MOST_SUBCOMMANDS = 4

LONE = "no launcher is told another number"
"""Source of the number of devices of a program that Python or torchrun starts once."""


class Devices(NamedTuple):
    """
    Number of devices that a launcher uses.

    Parameters
    ----------
    number
        Devices of all nodes; None: unknown.
    source
        Words of the script that set it, or the variables on which it depends.
    """

    number: int | None = None
    source: str = ""


@record(frozen=True, slots=True)
class Launch:
    """
    Training that a script starts.

    Parameters
    ----------
    kind
        Framework of the arguments: ``megatron``, ``bridge``, ``torchtitan``, ``deepspeed`` or ``accelerate``.
    program
        Program that is started.
    words
        Words after the program.
    before
        Words in front of the program: launchers with their options.
    devices
        Number of devices that the launchers use.
    environment
        Known environment variables.
    notes
        Notes on the launch, a sentence each.
    """

    kind: str
    program: str
    words: tuple[str, ...]
    before: tuple[str, ...]
    devices: Devices
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()


def find_launch(script: Script, text: str) -> Launch | None:
    """
    Find the first training that a script starts; None: it starts none.

    Raises
    ------
    SpecError
        If it trains a model that is no decoder of text, with the reason.
    """
    launches: list[Launch] = []
    refusals: list[SpecError] = []
    for command in script.commands:
        try:
            launches += _launches(command, text)
        except SpecError as error:  # programs before a training, such as the preparation of its data, may be refused
            refusals.append(error)
    if not launches and refusals:
        raise refusals[0]
    if not launches:
        return None
    first, others = launches[0], {one.words for one in launches} - {launches[0].words}
    note = f"The script starts {len(others) + 1} trainings: the first one is read, {shown(first.program)}."
    return replace(first, notes=(*first.notes, note)) if others else first


def _launches(command: Command, text: str) -> Iterator[Launch]:
    place = _program_place(command.words)
    if place is None:
        if Path(command.words[0]).name in DATA.tools:
            for word in command.words[:MOST_SUBCOMMANDS]:
                refuse_program(restore_variables(word), f"{WHERE}, line {command.line}")
            refuse_options(command.words)
        return
    words, before = command.words[place + 1 :], command.words[:place]
    program = restore_variables(command.words[place])
    kind, notes = _kind(program, words, before, command.line)
    if kind:
        yield Launch(kind, program, words, before, _devices(before, text), command.environment, notes)


def _program_place(words: Sequence[str]) -> int | None:
    """Return the position of the program that a launcher starts: a Python file, or a module that is no launcher."""
    if Path(words[0]).name in DATA.setting_up:
        return None
    is_started = False
    for place, (before, word) in enumerate(pairwise(["", *words])):
        is_started = is_started or bool(unknown_names(before)) or STARTER.fullmatch(Path(before).name) is not None
        is_file = word.endswith(".py") and before not in ("-o", "--output")
        is_module = "." in word if before == "--module" else before == "-m" and not word.startswith("torch.distributed")
        is_nemo = Path(word).name == "nemo" and words[place + 1 : place + 2] == ("llm",)
        if (is_started or place == 0) and (is_file or is_module or is_nemo):
            return place
    return None


def _kind(program: str, words: Sequence[str], before: Sequence[str], line: int) -> tuple[str, tuple[str, ...]]:
    """
    Return the framework of a program's arguments and notes on it, or refuse the program.

    ``programs.csv`` has programs by the end of their path, with their framework or the reason why they are refused.
    After them it has frameworks by an option of a program that is not in the table.
    """
    path = program if program.endswith(".py") else program.replace("/", ".")
    for row in read_rows("programs.csv"):
        if path.endswith(row["program"]) or f"/{row['program']}/" in f"/{path}/":
            if row["kind"] == "refused":
                raise SpecError(f"{WHERE}, line {line}", f"{program[:80]} {row['why']}.")
            return row["kind"], (row["why"],) if row["why"] else ()
    refuse_program(path, f"{WHERE}, line {line}")
    if any(map(is_override, words)) or recipe_named(Path(program).stem) is not None:
        return "bridge", ()
    names = {word.split("=", 1)[0] for word in words}
    for row in read_rows("programs.csv"):
        if row["program"] in names:
            return row["kind"], (f"{program[:80]} is not known here: its options are read as those of {row['kind']}.",)
    return ("accelerate", ()) if "accelerate" in {Path(word).name for word in before} else ("", ())


# --- devices -----------------------------------------------------------------------------------------------


def _devices(before: Sequence[str], text: str) -> Devices:
    """Return the devices from options of torchrun, DeepSpeed, Accelerate or Slurm, else from ``#SBATCH`` lines."""
    given = {**_directives(text), **_options(before)}
    total, per_node, nodes = (_first(given, names) for names in (DATA.devices, DATA.devices_per_node, DATA.nodes))
    if per_node is None and "--standalone" not in before:
        lone = before and all(re.fullmatch(r"(.*/)?(python[\d.]*|torchrun)|-[a-zA-Z]+", word) for word in before)
        return _number(total, "") if total else Devices(1, LONE) if lone and not given else Devices()
    launcher = any(re.fullmatch(r"(.*/)?(torchrun|deepspeed)|torch\.distributed.*", word) for word in before)
    one, many = _number(per_node, "a node"), _number(nodes or ("1" if launcher else None), "nodes")
    if one.number is None or many.number is None:
        return Devices(None, " and ".join(part.source for part in (one, many) if part.number is None and part.source))
    return Devices(one.number * many.number, f"{one.number} on each of {many.number} nodes")


def _first(given: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((given[name] for name in names if name in given), None)


def _number(text: str | None, what: str) -> Devices:
    if text is None:
        return Devices(None, "")
    if text.isdecimal() and 0 < int(text) < 10**7:
        return Devices(int(text), f"{text} {what}".strip())
    return Devices(None, restore_variables(text) if unknown_names(text) else shown(text))


def _options(words: Sequence[str]) -> dict[str, str]:
    known = {*DATA.devices_per_node, *DATA.nodes, *DATA.devices}
    parts = ((*word.partition("="), following) for word, following in pairwise([*words, ""]))
    return {name: value if equals else following for name, equals, value, following in parts if name in known}


def _directives(text: str) -> dict[str, str]:
    """Read ``#SBATCH`` lines with plain numbers; placeholders are ignored."""
    lines = " ".join(re.findall(r"^#SBATCH[ \t]+(.*)$", text, re.MULTILINE))
    generic = re.search(r"--gres[= ]gpu:(?:[\w-]+:)?(\d+)", lines)
    of_node = {"--gpus-per-node": generic[1]} if generic else {}
    return of_node | {name: value for name, value in _options(lines.split()).items() if value.isdecimal()}


def slurm_variables(text: str) -> dict[str, str]:
    r"""
    Return the variables that Slurm sets for a job with the ``#SBATCH`` lines of a script.

    >>> slurm_variables("#SBATCH -N 4 --gres=gpu:8")
    {'SLURM_NNODES': '4', 'SLURM_JOB_NUM_NODES': '4', 'SLURM_GPUS_ON_NODE': '8', 'SLURM_GPUS_PER_NODE': '8'}
    """
    given = _directives(text)
    found = {name: _first(given, options) for name, options in DATA.slurm.items()}
    return {name: value for name, value in found.items() if value is not None}
