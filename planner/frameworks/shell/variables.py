"""Variables of a script while it runs: set by the script, given by the user, or unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from planner.frameworks.shell.text import argument_words, strip_marks, strip_unknown, unknown, unknown_names

Value: TypeAlias = str | list[str]

SHELLS_OWN = {"#": "", "?": "0", "-": "", "BASH_VERSION": "5.2.0", "OSTYPE": "linux-gnu", "IFS": " "}
"""Parameters that every shell sets itself; ``#`` is the number of arguments."""


LISTS = ("PYTHONPATH",)
"""Variables of folders, of which some are known."""


@dataclass(slots=True)
class Variables:
    """
    Variables by name.

    Parameters
    ----------
    given
        Values that the user gives for the script; arguments of the script by their number.
    outer_line
        Line that starts the script inside this one whose lines are followed; 0: none does.
    values
        Values that the script sets.
    arguments
        Arguments of the script, or of the function that runs.
    uses
        Lines that use a name without a value, by name.
    asked
        Lines of conditions that use such a name, which is empty to a shell there.
    required
        Names that the script itself requires (``${NAME:?}``).
    seen
        Names that the script reads or sets.
    own
        Names that the script sets somewhere, also where it does not come along.
    integers
        Names that the script declares to be numbers.
    tables
        Names that the script declares to be arrays with keys.
    calls
        Functions that run, inside each other: an argument that one does not get is empty.
    states
        Lines of commands and of tests whose outcome the machine decides: a file, an exit status, an output.
    decisions
        Lines of conditions that are such, with their text and what to give for it.
    opposite
        Lines of such conditions that are taken as the opposite.
    compared
        Texts that conditions compare a missing argument of the script with, by its number.
    """

    given: Mapping[str, str]
    outer_line: int = 0
    values: dict[str, Value] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    uses: dict[str, list[int]] = field(default_factory=dict)
    asked: dict[str, list[int]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    integers: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    calls: int = 0
    compared: dict[str, set[str]] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)
    decisions: dict[int, tuple[str, str]] = field(default_factory=dict)
    opposite: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        numbers = [int(name) for name in self.given if name.isdecimal() and 0 < int(name) < 1000]
        self.arguments = [
            strip_marks(self.given[str(number)]) if str(number) in self.given else unknown(str(number))
            for number in range(1, max(numbers, default=0) + 1)
        ]

    def get(self, name: str) -> Value | None:
        """Return the value of a name; None: it has none."""
        self.seen.add(name)
        if name.isdecimal() and int(name):
            index = int(name) - 1
            return self.arguments[index] if index < len(self.arguments) else None
        if name == "#":
            return str(len(self.arguments))
        if name in "@*":
            return list(self.arguments)
        if name in self.values:
            return self.values[name]
        return strip_marks(self.given[name]) if name in self.given else SHELLS_OWN.get(name)

    def missing(self, name: str, line: int) -> str:
        """Text in place of a name without value, whose use is remembered."""
        if self.calls and name.isdecimal():
            return ""
        text = unknown(name)
        lines = self.uses.setdefault(unknown_names(text)[0], [])
        if (self.outer_line or line) not in lines:
            lines.append(self.outer_line or line)
        return text

    def ask(self, names: list[str], line: int, *, compares: Iterable[str] = ()) -> None:
        """Record that a condition uses unknown names, with the texts that it compares arguments of the script with."""
        if not all(map(str.isidentifier, names)):
            self.states.add(line)
        for name in names:
            if name.isdecimal():
                self.compared.setdefault(name, set()).update(compares)
        for name in names:
            lines = self.asked.setdefault(name, [])
            if line not in lines:
                lines.append(line)

    def assign(self, name: str, value: Value, *, source: str) -> None:
        """
        Set a variable. A given value has precedence, unless the script refers to the variable itself.

        Parameters
        ----------
        name
            Name of the variable.
        value
            Its value in the script.
        source
            The value as the script writes it.
        """
        self.seen.add(name)
        refers = re.search(rf"\$\{{?[!#]?{re.escape(name)}\b", source)
        given = self.given.get(name)
        if refers or given is None:
            self.values[name] = value
        else:
            self.values[name] = _elements(strip_marks(given)) if isinstance(value, list) else strip_marks(given)

    def append(self, name: str, value: Value) -> None:
        """Append to a variable, as ``+=`` does."""
        old = self.get(name)
        if isinstance(value, list):
            self.values[name] = [*(old if isinstance(old, list) else [old] if old else []), *value]
        elif isinstance(old, list):
            self.values[name] = [f"{old[0] if old else ''}{value}", *old[1:]]
        else:
            self.values[name] = f"{old or ''}{value}"

    def set_keys(self, name: str, elements: Mapping[str, str]) -> None:
        """Set elements of an array by their keys, and the array itself to all of them in their order."""
        self.seen.add(name)
        self.values |= {f"{name}[{key}]": value for key, value in elements.items()}
        start = f"{name}["
        self.values[name] = [str(value) for one, value in self.values.items() if one.startswith(start)]

    def parts(self, name: str) -> dict[str, Value]:
        """A variable and the elements of an array with keys, as they are."""
        return {one: value for one, value in self.values.items() if one.partition("[")[0] == name}

    def restore(self, name: str, parts: Mapping[str, Value]) -> None:
        """Have a variable as it was."""
        for one in self.parts(name):
            del self.values[one]
        self.values |= parts

    def set_element(self, name: str, number: str, text: str) -> bool:
        """Set an element of a list by its number; False: it has no such place."""
        old = self.get(name)
        elements = list(old) if isinstance(old, list) else [old] if old else []
        if not number.isdecimal() or int(number) > len(elements):
            return False
        elements[int(number) : int(number) + 1] = [text]
        self.values[name] = elements
        return True

    def keys(self, name: str) -> list[str]:
        """Return the keys of an array, or its indices."""
        start = f"{name}["
        keys = [one.removeprefix(start).removesuffix("]") for one in self.values if one.startswith(start)]
        value = self.get(name)
        return keys or [str(number) for number in range(len(value) if isinstance(value, list) else value is not None)]

    def holder(self, name: str) -> str | None:
        """Return the variable to give for an unknown name: itself, or the shortest that holds it; None: none does."""
        if name.isalnum() or name.isidentifier():
            return name
        texts = {one: " ".join([value] if isinstance(value, str) else value) for one, value in self.values.items()}
        holding = [one for one, text in texts.items() if one.isidentifier() and name in unknown_names(text)]
        return min(holding, key=lambda one: len(texts[one]), default=None)

    def texts(self) -> dict[str, str]:
        """Return every known variable that is one text, as the environment of a process."""
        known = {name: text for name, text in {**self.given, **self.values}.items() if isinstance(text, str)}
        return {
            name: strip_unknown(text) for name, text in known.items() if strip_unknown(text) == text or name in LISTS
        }


def _elements(text: str) -> list[str]:
    """Split the given value of an array into words; at blanks where a quotation mark is not closed."""
    try:
        return argument_words(text)
    except ValueError:
        return text.split()
