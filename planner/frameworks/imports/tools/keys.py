"""Table of the keys of other tools' configurations: options of Megatron-LM or entries of a job that they mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Any, NamedTuple

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.bridge.library import options_by_field
from planner.frameworks.imports.documents import degree, read_plain, read_rows, read_words, text_of
from planner.frameworks.megatron.options import TABLE, WHERE, options
from planner.frameworks.shell.words import refuse_unknown, restore_variables, value_of

DATA = read_words("tools.keys")


SIMILAR = 0.9
"""Similarity of an unknown name to an option that is read, from which it counts as a typing error (difflib's ratio)."""

SHORTEST = 12
"""Letters of a beginning of an option's name that counts as one; Megatron-LM takes no abbreviations."""


class Row(NamedTuple):
    """
    Row of ``keys.csv``, the table of the keys of each tool; the first row that matches counts.

    A row has options and entries (``means``), or a reason to ignore (``ignored``) or refuse (``refused``) a key. The
    value stands at ``{}``, numbers that other keys make at ``$((...))``, a remark after ``#``. Some keys are read by
    code (``read``), and some have a default (``default``).

    ``key`` and ``value`` are patterns of a shell, separated by ``|``, values in lower case; ``on`` and ``off`` match
    all values that switch something on or off. ``beside`` has keys that must be on, or have a value, for the row to
    match.
    """

    tool: str
    key: str
    value: str
    beside: str
    meaning: str
    what: str

    def fits(self, value: Any, flat: Mapping[str, Any]) -> bool:
        """Tell whether the row, which has a key, matches the key's value and the other keys."""
        others = (other.partition("=") for other in self.beside.split())
        return _fits(value, self.value) and all(_fits(flat.get(other), wanted or "on") for other, _, wanted in others)


@dataclass(slots=True)
class Meaning:
    """
    Meaning of a configuration.

    Parameters
    ----------
    words
        Options of Megatron-LM.
    entries
        Entries of a job by dotted name.
    notes
        Keys that were ignored or are costed otherwise, a sentence each.
    keys
        Key of each option and entry.
    """

    words: list[str] = field(default_factory=list)
    entries: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)


def is_on(value: Any) -> bool:
    """Tell whether a value is set and does not switch its key off."""
    return text_of(value).lower() not in DATA.off


def meaning_of(
    tool: str, flat: Mapping[str, Any], *, section: str | None = None, own: Collection[str] | None = None
) -> Meaning:
    """
    Look up the meaning of all keys of a configuration.

    Parameters
    ----------
    tool
        Name of the tool in the table.
    flat
        Values by dotted name.
    section
        Prefix of keys that are Megatron-LM's own where the table has no row; None: the tool has no such keys.
    own
        Keys that the user wrote; other keys are the tool's defaults, and are ignored without a note. None: all.

    Raises
    ------
    SpecError
        If a key is refused, has an unknown value, or is unknown and may change the cost.
    """
    rows = _rows(tool)
    defaults = {key: read_plain(row.what) for row in rows if row.meaning == "default" for key in row.key.split("|")}
    whole = {**defaults, **flat}
    found = Meaning()
    passed: dict[str, list[str]] = {}
    fitting = {
        key: next((row for row in _rows_of(tool, key) if row.fits(value, whole)), None) for key, value in whole.items()
    }
    order = {row: place for place, row in enumerate((*rows, None))}
    for key, row in sorted(fitting.items(), key=lambda one: order[one[1]]):  # the last value of an option counts
        value = whole[key]
        option = _option(key.removeprefix(section), value) if row is None and section is not None else None
        is_needed = row.meaning != "ignored" if row is not None else option is not None and _is_needed(f"{option} {{}}")
        if own is not None and key not in own and not is_needed:
            continue
        means = option if row is None else row.what if row.meaning == "means" else None
        if means:
            _add(found, key, value, means, whole)
        elif means is not None or (row is None and not is_on(value) and _rows_of(tool, key)):
            passed.setdefault("is so without it", []).append(key)
        elif row is None:
            if section is not None:
                refuse_misspelled(f"--{key.removeprefix(section).replace('_', '-')}", key)
            _refuse_decisive(tool, key, value)
            passed.setdefault("", []).append(key)
        elif row.meaning == "refused":
            refuse_unknown(text_of(value), key)
            raise SpecError(key, f"is {shown(value)}: {row.what}.")
        elif row.meaning == "ignored":
            passed.setdefault(row.what, []).append(key)
    for reason, keys in passed.items():
        names = [key for key in keys if key in (flat if own is None else own)]
        kind = f"Ignored ({reason})" if reason else "Not understood, no keys that are known here"
        found.notes += [f"{kind}: {', '.join(sorted(names))}."] if names else []
    return found


COMPUTED = re.compile(r"\$\(\((.*)\)\)")
OPERAND = re.compile(r"\$\{([\w.-]+):-(\d+)\}|(--[\w-]+|[A-Za-z_][\w.]*)")
"""Key of a computed number: ``${key:-default}``, or a key that must be a whole number of at least 1."""


def _compute(expression: str, flat: Mapping[str, Any]) -> int | None:
    """
    Compute a number of a configuration's keys, by the arithmetic of a shell.

    >>> _compute("model.width*${times:-4}", {"model.width": 3}), _compute("a/b+1", {"a": 9, "b": 2})
    (12, 5)
    """

    def read(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        refuse_unknown(text_of(flat.get(name)), name)
        return found[2] if found[2] and flat.get(name) is None else str(degree(flat.get(name), name))

    return value_of(OPERAND.sub(read, expression))


def is_read(tool: str, key: str) -> bool:
    """Tell whether code reads a key."""
    kinds = ("read", "means")
    return any(row.meaning in kinds and row.what[:1] != "#" for row in _rows_of(tool, key))


def _fits(value: Any, pattern: str) -> bool:
    states = {"on", "off"} & {*pattern.split("|")}
    return not pattern or ("on" if is_on(value) else "off") in states or _is_one(text_of(value).lower(), pattern)


@lru_cache(maxsize=2**14)
def _is_one(text: str, patterns: str) -> bool:
    return any(fnmatchcase(text, one) for one in patterns.split("|"))


def _add(found: Meaning, key: str, value: Any, what: str, flat: Mapping[str, Any]) -> None:
    """Add the options and entries of a row, or refuse an unknown value."""
    words, _, remark = f" {what}".partition(" # ")
    text = text_of(value)
    if _is_needed(words):
        refuse_unknown(text, key)
    if _is_needed(words) and any(part in text for part in ("${", "???")):
        name = text.partition("${")[2].partition("}")[0].partition(":")[0].strip("?")
        hint = f"Add --set {name}=VALUE." if name.isidentifier() else "Write its value."
        raise SpecError(key, f"is left open: {shown(value)}.", hint)
    for word in words.split():
        filled = COMPUTED.sub(lambda found: text_of(_compute(found[1], flat)), word)
        name, equals, given = filled.partition("=")
        if not word.startswith("--") and equals:
            if given == "{}" and isinstance(value, (Mapping, list)):
                raise SpecError(key, f"expected a value, got {shown(value)}.")
            found.entries[name] = value if given == "{}" else read_plain(given)
            found.keys |= {name: key} if filled == word else {}
        elif word == "{}" and isinstance(value, list):
            found.words += map(text_of, value)
        else:
            found.words.append(filled.replace("{}", text_of(value)))
            found.keys.setdefault(word, key)
    if remark:
        found.notes.append(f"{key}: {remark.replace('{}', text_of(value))}.")


def _is_needed(words: str) -> bool:
    """Tell whether options or entries take the value of the key and are read."""
    given = [word.partition("=")[0] for word in words.split()]
    return "{}" in words and any(name not in options() or options()[name].in_import == "read" for name in given[:1])


def _option(name: str, value: Any) -> str | None:
    """
    Return the option of Megatron-LM for a variable of its arguments; None: there is no such variable.

    >>> _option("hidden_size", 64), _option("swiglu", False), _option("add_bias_linear", False), _option("mine", 1)
    ('--hidden-size {}', '', '--disable-bias-linear', None)
    """
    last = name.replace("-", "_")
    option = f"--{last.replace('_', '-')}"
    if option not in options():
        option = _options_by_variable().get(last, options_by_field().get(f"model.{last}", ""))
    if option not in options():
        return None
    if options()[option].nargs != "0":
        return "" if value is None or value is False or value == [] else f"{option} {{}}"
    turns_off = option.startswith(DATA.opposite) and option[2:].replace("-", "_") != last
    return option if value is not None and is_on(value) != turns_off else ""


@cache
def _options_by_variable() -> Mapping[str, str]:
    """Return the first option of Megatron-LM for each variable of its arguments."""
    return {row["dest"]: row["flags"].split()[0] for row in reversed(read_rows(TABLE))}


def refuse_misspelled(name: str, where: str = "") -> None:
    """
    Refuse the name of an unknown option that is nearly that of one that is read.

    Raises
    ------
    SpecError
        Names the option that may be meant.
    """
    read = [one for one, option in options().items() if option.in_import == "read"]
    near = get_close_matches(name, read, n=1, cutoff=SIMILAR)
    near += [one for one in read if len(name) >= SHORTEST and one.startswith(name)]
    if near:
        place = where or f"{WHERE}.{restore_variables(name)[:80]}"
        raise SpecError(place, "is no option of Megatron-LM.", f"Did you mean '{near[0]}'?")


def _refuse_decisive(tool: str, key: str, value: Any) -> None:
    """Refuse an unknown key that is nearly one that is read, or that may be a degree, a batch or a precision."""
    names = [one for row in _rows(tool) if row.meaning != "ignored" for one in row.key.split("|")]
    read = [f"{key.partition('.')[0]}{one[1:]}" if one.startswith("*.") else one for one in names]
    if near := get_close_matches(key, read, n=1, cutoff=SIMILAR):
        raise SpecError(key, f"is not known as a key of {tool}.", f"Did you mean '{near[0]}'?")
    if is_on(value) and any(part in key.lower().rpartition(".")[2] for part in DATA.decisive):
        problem = f"is {shown(value)}. This key is not known and may set a degree, a batch size or the memory."
        raise SpecError(key, problem, "Take it out to plan without it.")


@cache
def _rows(tool: str) -> tuple[Row, ...]:
    return tuple(Row(**row) for row in read_rows("tools/keys.csv") if tool in row["tool"].split())


@lru_cache(maxsize=2**12)
def _rows_of(tool: str, key: str) -> tuple[Row, ...]:
    """Return the rows that a key matches, but for defaults."""
    return tuple(row for row in _rows(tool) if row.meaning != "default" and _is_one(key, row.key))
