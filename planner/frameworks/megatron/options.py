"""Options of Megatron-LM with their values, and the writing and reading of arguments."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import yaml

from costmodel import catalog
from costmodel.errors import SpecError, did_you_mean
from costmodel.record import record
from costmodel.validation import shown
from planner.frameworks.shell.words import argument_words

TABLE = Path(__file__).parent / "options.csv"
"""Table of the options of Megatron-LM main d98e8a64 (2026-08-22), as its own parser lists them."""

MEANINGS = Path(__file__).parent / "meanings.csv"
"""
Table of the options that imports and exports know.

``import``: ``read``, or ``free`` where an option changes the cost of a step by less than the model error.
``bridge``: fields of ``ConfigContainer`` (Megatron-Bridge 0.3.1, ``megatron/bridge/training/config.py``), or ``none``
where no field is needed. There query groups are a number, positions end with the sequence, and precision is one
object; the recipe of the model sets the activation function.
"""

WHERE = "arguments"

INFERENCE_SCOPE = "full_iteration_inference"
"""Scope of CUDA graphs that captures no training step (transformer_layer.py:499 of 0.17.1)."""

MEANT = {"int": "a whole number", "float": "a number"}
"""Names of types in messages."""

Arguments: TypeAlias = dict[str, Any]
"""Values by the first spelling of their option; True where it takes none, a list where it takes several."""

NUMBERS: dict[str, Callable[[str], int | float]] = {"int": int, "float": float}


@record(frozen=True, slots=True)
class Option:
    """
    Option of Megatron-LM.

    Parameters
    ----------
    name
        Its first spelling.
    type
        ``int``, ``float``, or anything else for text.
    choices
        Values that it may have; empty: any.
    nargs
        ``0``: a switch; empty: one value; ``+`` and ``*``: several; a number: so many.
    group
        Heading under which ``--help`` lists it.
    in_import, bridge
        Columns of ``MEANINGS``; None: no fields, as no export writes the option.
    """

    name: str
    type: str
    choices: tuple[str, ...]
    nargs: str
    group: str
    in_import: str
    bridge: tuple[str, ...] | None

    def value(self, words: Sequence[str]) -> Any:
        """
        Convert the words after it to its value.

        Raises
        ------
        SpecError
            If there are too many or too few, or if one is of the wrong kind.
        """
        least, most = {"0": (0, 0), "": (1, 1), "+": (1, None), "*": (0, None)}.get(self.nargs) or (
            int(self.nargs),
        ) * 2
        if len(words) < least or (most is not None and len(words) > most):
            takes = {"0": "no value", "": "one value", "+": "one value or more"}.get(self.nargs, f"{self.nargs} values")
            raise SpecError(f"{WHERE}.{self.name}", f"takes {takes}, got {shown(' '.join(words))}.")
        values = [self._one(word) for word in words]
        return True if self.nargs == "0" else values if self.nargs else values[0]

    def _one(self, word: str) -> Any:
        read = NUMBERS.get(self.type, str)
        try:
            value = read(word)
        except ValueError:
            expected = MEANT.get(self.type, self.type)
            raise SpecError(f"{WHERE}.{self.name}", f"expected {expected}, got {shown(word)}.") from None
        if value != value:
            raise SpecError(f"{WHERE}.{self.name}", f"expected a number, got {shown(word)}.")
        if self.choices and word not in self.choices:
            problem = f"expected one of {', '.join(self.choices)}, got {shown(word)}."
            raise SpecError(f"{WHERE}.{self.name}", problem)
        return value


@cache
def options() -> Mapping[str, Option]:
    """Return every option by each of its spellings."""
    meanings = {row["option"]: row for row in read_table(MEANINGS)}
    known: dict[str, Option] = {}
    for row in read_table(TABLE):
        spellings = row["flags"].split()
        meaning = meanings.get(spellings[0], {"import": "", "bridge": ""})
        option = Option(
            name=spellings[0],
            type=row["type"],
            choices=tuple(row["choices"].split()),
            nargs=row["nargs"],
            group=row["group"],
            in_import=meaning["import"],
            bridge=() if meaning["bridge"] == "none" else tuple(meaning["bridge"].split()) or None,
        )
        known |= dict.fromkeys(spellings, option)
    return known


@lru_cache(maxsize=64)
def read_table(path: Path) -> tuple[Mapping[str, str], ...]:
    """Read the rows of a table, cells by column; they are shared and must not be changed."""
    with path.open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


@lru_cache(maxsize=8)
def read_word_lists(path: Path) -> Mapping[str, SimpleNamespace]:
    """Read lists and pairs of words by module, each by attribute; they must not be changed."""
    whole = yaml.load(path.read_text(encoding="utf-8"), Loader=catalog.LOADER)
    return {module: SimpleNamespace(**_freeze(words)) for module, words in whole.items()}


def _freeze(part: Any) -> Any:
    """Return nested data with tuples in place of lists."""
    if isinstance(part, dict):
        return {name: _freeze(one) for name, one in part.items()}
    return tuple(map(_freeze, part)) if isinstance(part, list) else part


WORDS = read_word_lists(Path(__file__).with_name("words.yaml"))
"""Lists and pairs of words that the modules of this room look for."""


# --- writing -----------------------------------------------------------------------------------------------


def argument_lines(entries: Mapping[str, Any]) -> Iterator[str]:
    """
    Yield one line for each option, quoted for a shell.

    >>> list(argument_lines({"--bf16": True, "--recompute-modules": ["mlp", "moe"], "--moe-layer-freq": "([0]+[1])"}))
    ['--bf16', '--recompute-modules mlp moe', "--moe-layer-freq '([0]+[1])'"]
    """
    for name, value in entries.items():
        values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
        yield shlex.join([name, *map(str, values)])


# --- reading -----------------------------------------------------------------------------------------------


def split_words(text: str) -> tuple[list[str], dict[str, str]]:
    r"""
    Split a command line or a shell script into words, and return the variables that it sets.

    >>> split_words("export A=1\nARGS=(--bf16 \\\n  --seq-length 4096) # more")
    (['--bf16', '--seq-length', '4096'], {'A': '1'})

    Raises
    ------
    SpecError
        If it uses variables, whose values are unknown, or if a quotation mark is not closed.
    """
    joined = re.sub(r"\\\r?\n", " ", text)
    try:
        words = argument_words(joined)
    except ValueError as error:
        raise SpecError(WHERE, f"cannot be split into words: {error}.") from None
    variables = [word for word in words if "$" in word or "`" in word]
    if variables:
        raise SpecError(
            WHERE, f"hold the shell variable {shown(variables[0])}, whose value is not known.", "Write its value."
        )
    arrays = [re.sub(r"^\w+\+?=\(|\)$", "", word) if _opens_or_closes(word) else word for word in words]
    programs = [index for index, word in enumerate(arrays) if word.endswith(".py")]
    own = arrays[programs[-1] + 1 :] if programs else arrays
    settings = [word.split("=", 1) for word in arrays if re.match(r"^[A-Za-z_]\w*=", word)]
    first = next((index for index, word in enumerate(own) if word.startswith("--")), len(own))
    strangers = [word for word in own[:first] if word not in ("", "export") and not re.match(r"^[A-Za-z_]\w*=", word)]
    if strangers:
        raise SpecError(WHERE, f"begin with {shown(strangers[0])}, expected an option such as --num-layers.")
    return [word for word in own[first:] if word], {name: value for name, value in settings}


def _opens_or_closes(word: str) -> bool:
    """Tell whether a word opens or closes a shell array, and is no pattern of Megatron-LM in parentheses."""
    return bool(re.match(r"^\w+\+?=\(", word)) or word.count(")") > word.count("(")


def read_arguments(words: Iterable[str]) -> Arguments:
    """
    Read values by option, from ``--option value`` and ``--option=value`` alike.

    >>> read_arguments(["--tensor-model-parallel-size=2", "--recompute-modules", "mlp", "moe", "--bf16"])
    {'--tensor-model-parallel-size': 2, '--recompute-modules': ['mlp', 'moe'], '--bf16': True}

    Raises
    ------
    SpecError
        If an option is unknown, has the wrong kind of value, or is given twice with different values.
    """
    known = options()
    found: Arguments = {}
    for name, values in split_options(words):
        if name not in known:
            raise SpecError(f"{WHERE}.{name[:80]}", "is no option of Megatron-LM.", did_you_mean(name, known))
        option = known[name]
        value = option.value(values)
        if found.get(option.name, value) != value:
            raise SpecError(f"{WHERE}.{name}", f"is given twice: {shown(found[option.name])} and {shown(value)}.")
        found[option.name] = value
    return found


def split_options(words: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option with the words after it; words before the first option are skipped."""
    name, values = "", list[str]()
    for word in words:
        if not word.startswith("--"):
            values.append(word)
            continue
        if name:
            yield name, values
        name, equals, value = word.partition("=")
        values = [value] if equals else []
    if name:
        yield name, values
