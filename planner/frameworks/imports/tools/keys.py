"""Keys of other tools' configurations: words of Megatron-LM or entries of a job that they mean, by one table."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.bridge.library import options_by_field
from planner.frameworks.imports.tools.references import typed
from planner.frameworks.megatron.options import TABLE, options

KEYS = Path(__file__).parent / "keys.csv"
"""
Meanings of the keys of each tool: of several rows the first one that fits.

A row means words and entries (``means``, with the value at ``{}`` and a remark behind ``#``). Others have a reason to
pass a key over (``ignored``) or to refuse it (``refused``). Code reads some (``read``), and some have a value where
they are not there (``default``).

``key`` and ``value`` are patterns of a shell, several with ``|`` between, values in small letters; ``on`` and ``off``
are all that switch something on or off. ``beside`` is a key that must be on, or have a value, for the row to fit.
"""

OFF = ("", "none", "null", "false", "0", "0.0", "[]", "{}")
"""Values that switch something off, in small letters."""

DECISIVE = ("parallel", "recompute", "checkpoint_act", "micro_batch", "batch_size", "fp8", "shard", "offload", "zero_")
"""Parts of the names of keys that are refused where nobody knows them: they may be a degree, a batch or a precision."""

OPPOSITE = ("--no-", "--disable-")
"""Beginnings of switches that turn a variable of another name off."""


class Row(NamedTuple):
    """A line of the table, as ``KEYS`` describes it."""

    tool: str
    key: str
    value: str
    beside: str
    meaning: str
    what: str

    def fits(self, key: str, value: Any, flat: Mapping[str, Any]) -> bool:
        """Return true where key, value and what stands beside them are those of the line."""
        other, _, wanted = self.beside.partition("=")
        is_beside = not other or _fits(flat.get(other), wanted or "on")
        return is_beside and _is_one(key, self.key) and _fits(value, self.value)


@dataclass(slots=True)
class Meaning:
    """
    What a configuration says.

    Parameters
    ----------
    words
        Options of Megatron-LM.
    entries
        Entries of a job by dotted name.
    notes
        What was passed over or is costed otherwise, a sentence each.
    keys
        The key behind each option and entry.
    """

    words: list[str] = field(default_factory=list)
    entries: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)


def is_on(value: Any) -> bool:
    """Return true for a value that says or switches on something."""
    return text_of(value).lower() not in OFF


def text_of(value: Any) -> str:
    """
    A value as a word.

    >>> text_of(True), text_of(None), text_of(1e-05), text_of(2048.0)
    ('true', 'null', '1e-05', '2048')
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value).strip()


def meaning_of(
    tool: str, flat: Mapping[str, Any], *, section: str | None = None, own: Collection[str] | None = None
) -> Meaning:
    """
    Sort the keys of a configuration out.

    Parameters
    ----------
    tool
        Whose they are, as in the table.
    flat
        Values by dotted name.
    section
        Beginning of the keys that are Megatron-LM's own where the table has none; None: the tool has other ones.
    own
        Keys that the user wrote: of defaults of the tool only what is read further is said. None: all.

    Raises
    ------
    SpecError
        If one is refused, left open, or not known and may decide the cost.
    """
    rows = _rows(tool)
    defaults = {key: typed(row.what) for row in rows if row.meaning == "default" for key in row.key.split("|")}
    whole = {**defaults, **flat}
    found = Meaning()
    passed: dict[str, list[str]] = {}
    lines = [row for row in rows if row.meaning != "default"]
    places = {key: _place(lines, key, value, whole) for key, value in whole.items()}
    for key, place in sorted(places.items(), key=lambda one: one[1]):
        value = whole[key]
        row = lines[place] if place < len(lines) else None
        option = _option(key.removeprefix(section), value) if row is None and section is not None else None
        if own is not None and key not in own and not _is_read(row, option):
            continue
        means = option if row is None else row.what if row.meaning == "means" else None
        if means:
            _add(found, key, value, means)
        elif means is not None or (row is None and not is_on(value) and any(_is_one(key, one.key) for one in lines)):
            passed.setdefault("is so without it", []).append(key)
        elif row is None:
            _refuse_decisive(key, value)
            passed.setdefault("", []).append(key)
        elif row.meaning == "refused":
            raise SpecError(key, f"is {shown(value)}: {row.what}.")
        elif row.meaning == "ignored":
            passed.setdefault(row.what, []).append(key)
    for reason, keys in passed.items():
        names = [key for key in keys if key in (flat if own is None else own)]
        kind = f"Ignored ({reason})" if reason else "Not understood, no keys that are known here"
        found.notes += [f"{kind}: {', '.join(sorted(names))}."] if names else []
    return found


def is_read(tool: str, key: str) -> bool:
    """Return true for a key that code reads."""
    return any(row.meaning == "read" and _is_one(key, row.key) for row in _rows(tool))


def _is_read(row: Row | None, option: str | None) -> bool:
    """Return true for what is read further or refused, whoever says it."""
    return row.meaning != "ignored" if row is not None else option is not None and _is_needed(f"{option} {{}}")


def _place(lines: list[Row], key: str, value: Any, flat: Mapping[str, Any]) -> int:
    """The line that fits; keys are read in the order of the table, in which the last word of an option counts."""
    return next((place for place, row in enumerate(lines) if row.fits(key, value, flat)), len(lines))


def _fits(value: Any, pattern: str) -> bool:
    text = text_of(value).lower()
    if pattern in ("on", "off"):
        return is_on(value) == (pattern == "on")
    return not pattern or _is_one(text, pattern)


def _is_one(text: str, patterns: str) -> bool:
    return any(fnmatchcase(text, one) for one in patterns.split("|"))


def _add(found: Meaning, key: str, value: Any, what: str) -> None:
    """Add words and entries; a value that is left open is asked for."""
    words, _, remark = f" {what}".partition(" # ")
    if _is_needed(words) and any(part in text_of(value) for part in ("${", "???")):
        raise SpecError(key, f"is left open: {shown(value)}.", _how_to_say(value))
    for word in words.split():
        name, equals, given = word.partition("=")
        if not word.startswith("--") and equals:
            if isinstance(value, (Mapping, list)):
                raise SpecError(key, f"expected a value, got {shown(value)}.")
            found.entries[name] = value if given == "{}" else typed(given)
            found.keys[name] = key
        elif word == "{}" and isinstance(value, list):
            found.words += map(text_of, value)
        else:
            found.words.append(word.replace("{}", text_of(value)))
            found.keys.setdefault(word, key)
    if remark:
        found.notes.append(f"{key}: {remark.replace('{}', text_of(value))}.")


def _is_needed(words: str) -> bool:
    """Return true for words and entries that take the value and are read further."""
    given = [word.partition("=")[0] for word in words.split()]
    return "{}" in words and any(name not in options() or options()[name].in_import == "read" for name in given[:1])


def _how_to_say(value: Any) -> str:
    name = text_of(value).partition("${")[2].partition("}")[0].partition(":")[0].strip("?")
    return f"Add --set {name}=VALUE." if name.isidentifier() else "Write its value."


def _option(name: str, value: Any) -> str | None:
    """
    The words of Megatron-LM that a variable of its arguments means; None: it is none.

    >>> _option("hidden_size", 64), _option("swiglu", False), _option("add_bias_linear", False), _option("mine", 1)
    ('--hidden-size {}', '', '--disable-bias-linear', None)
    """
    last = name.replace("-", "_")
    option = f"--{last.replace('_', '-')}"
    option = option if option in options() else _by_variable().get(last, options_by_field().get(f"model.{last}", ""))
    if option not in options():
        return None
    if options()[option].nargs != "0":
        return "" if value is None or value is False or value == [] else f"{option} {{}}"
    turns_off = option.startswith(OPPOSITE) and option[2:].replace("-", "_") != last
    return option if value is not None and is_on(value) != turns_off else ""


@cache
def _by_variable() -> Mapping[str, str]:
    """The first option of Megatron-LM that fills each variable of its arguments."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return {row["dest"]: row["flags"].split()[0] for row in reversed(list(csv.DictReader(lines)))}


def _refuse_decisive(key: str, value: Any) -> None:
    """What may be a degree, a batch or a precision is not passed over."""
    if is_on(value) and any(part in key.lower().rpartition(".")[2] for part in DECISIVE):
        problem = f"is {shown(value)}, a key that is not known here and may decide a degree, a batch or the memory."
        raise SpecError(key, problem, "Take it out to plan without it.")


@cache
def _rows(tool: str) -> tuple[Row, ...]:
    return tuple(row for row in _table() if tool in row.tool.split())


@cache
def _table() -> tuple[Row, ...]:
    with KEYS.open(encoding="utf-8", newline="") as lines:
        return tuple(Row(**row) for row in csv.DictReader(lines))
