"""
A strategy in one line: the words of a line, a strategy as the shortest line that is read back as it, and lines read.

``TP4 PP2 VPP5 DP8 MBS1 ZeRO1 graphs=none recompute=moe_act overlap=tp,dp,pp`` is such a line. Every report prints it
first, and all verbs accept it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from constraints.rules.frameworks import MEGATRON_MODULES, recomputable_modules
from costmodel.errors import SpecError, alternatives, did_you_mean, together
from costmodel.facts.model import Model
from costmodel.record import record
from costmodel.strategy import DECISIONS, FLAGS, INSIDE, MODULES_OF, Recompute, Strategy, decision_text
from costmodel.tables import Facts
from costmodel.validation import shown
from planner.jobs.document import entry_path, parse, plain_value, require_one_of
from planner.jobs.entries import KEYS, SECTIONS
from planner.jobs.strategy_file import (
    ALWAYS_SAID,
    ANY,
    AS_DEALT,
    CHOOSABLE,
    ENTRIES,
    LAYOUT,
    StrategyFile,
    Value,
    complete_strategy,
    is_whole,
    keep_effective,
    layers_text,
    layout_entries,
    read_given,
    read_value,
    text_of,
)

Form: TypeAlias = Literal["number", "value", "modules", "flags", "stages"]
"""
The form of a word and its value.

``number``: name and number in one, ``TP4``. ``value``: ``schedule=zb_v``. ``modules``: names joined by ``+``.
``flags``: the flags that are on, joined by commas. ``stages``: layers of virtual stages.
"""


@record(frozen=True, slots=True)
class Word:
    """
    One word of a line.

    Parameters
    ----------
    text
        The word as it is written in a line.
    form
        The form of its value.
    decisions
        Decisions of the word, by their names in a line; the word itself where it has only one.
    """

    text: str
    form: Form
    decisions: Mapping[str, str]


def _one(text: str, form: Form, decision: str) -> Word:
    return Word(text, form, {text: decision})


WORDS = (
    _one("TP", "number", "tp"),
    _one("CP", "number", "cp"),
    _one("PP", "number", "pp"),
    _one("VPP", "number", "vpp"),
    _one("EP", "number", "ep"),
    _one("ETP", "number", "etp"),
    _one("DP", "number", "dp"),
    _one("MBS", "number", "mbs"),
    _one("ZeRO", "number", "sharding"),
    _one("SP", "number", "sequence_parallel"),
    _one("group", "value", "group"),
    _one("schedule", "value", "schedule"),
    _one("vocabulary", "value", "vocabulary"),
    _one("dispatcher", "value", "token_dispatcher"),
    _one("graphs", "modules", "cuda_graphs"),
    _one("recompute", "modules", "recompute"),
    Word("offload", "flags", {"activations": "activation_offload", "optimizer": "optimizer_offload"}),
    Word(
        "overlap",
        "flags",
        {"tp": "tp_overlap", "cp": "cp_overlap", "ep": "ep_overlap", "pp": "pp_overlap", "dp": "dp_overlap"},
    ),
    _one("layout", "stages", LAYOUT),
)

"""Words in the order of a line. Settings follow by their own names, such as ``gradient_dtype=bf16``."""

NONE = "none"

"""Value of a word of modules or flags that are all off."""

BY_TEXT = {word.text.lower(): word for word in WORDS}

NUMBERS = "|".join(sorted((name for name, word in BY_TEXT.items() if word.form == "number"), key=len, reverse=True))

JOINED = re.compile(rf"({NUMBERS})(-?[0-9]\w*(?:\.[0-9]\w*)*)", re.IGNORECASE | re.ASCII)

"""A word and its number in one, such as ``TP4``; ``tp4.yaml`` is a file."""

SHARDED = re.compile(r"zero-?([0-9])", re.IGNORECASE)

"""ZeRO as papers write it, with or without a hyphen."""

NAMES = (*(word.text for word in WORDS), *(name for name in DECISIONS if name not in BY_TEXT), *CHOOSABLE)

"""All names that may stand before ``=``: words, decisions by their names in job files, and settings."""

SETTINGS = "settings."

"""Path of a setting in a job file; a line may use it."""


def is_word(text: str) -> bool:
    """
    Tell whether a text is a word of a line, by its name and not by its value.

    >>> is_word("TP4"), is_word("zero-1"), is_word("Overlap=tp,dp"), is_word("64xh100"), is_word("TQ4")
    (True, True, True, False, False)
    """
    if JOINED.fullmatch(text) or SHARDED.fullmatch(text) or text.lower() in FLAG_WORDS:
        return True
    name, equals, _ = text.partition("=")
    return bool(equals) and name.strip().lower().removeprefix(SETTINGS) in _KNOWN


FLAG_WORDS = {"sp": ("SP", "1"), "fsdp": ("ZeRO", "3")}

"""Words that need no value: sequence parallelism, and FSDP, which is ZeRO-3."""

_KNOWN = {name.lower() for name in NAMES}


def is_line(text: str) -> bool:
    """
    Tell whether all words of a text are words of a line.

    >>> is_line("TP4 DP16 ZeRO3"), is_line("llama3-70b 64xh100"), is_line("")
    (True, False, False)
    """
    words = text.split()
    return bool(words) and all(map(is_word, words))


def write_line(facts: Facts, strategy: Strategy, settings: Mapping[str, Value]) -> str:
    """
    Write a strategy as a line that is read back as the same strategy for the same job.

    Parameters
    ----------
    facts, strategy
        Facts of the job, and a strategy for it.
    settings
        Values of settings for which the job gives several.
    """
    said = necessary_decisions(facts, strategy)
    words = list(_words(facts.model, strategy.decisions(), said))
    if LAYOUT in said:
        words.append(f"layout={_stages_text(strategy, facts.model)}")
    of_ranks = strategy.layout.activation_offload if strategy.layout else ()
    own = keep_effective(
        settings,
        optimizer_offload=strategy.optimizer_offload,
        activation_offload=strategy.activation_offload or any(of_ranks),
    )
    return " ".join([*words, *text_of(own).split()])


def write_completed(facts: Facts, strategy: Strategy, given: Collection[str]) -> str:
    """Write the words of a strategy's line that were not given."""
    said = necessary_decisions(facts, strategy) - {*given}
    words = list(_words(facts.model, {name: own for name, own in strategy.decisions().items() if name in said}, said))
    return " ".join([*words, *([f"layout={_stages_text(strategy, facts.model)}"] if LAYOUT in said else [])])


def write_words(model: Model, decisions: Mapping[str, Any]) -> str:
    """Write decisions as words of a line; flags of one word are written by name where one of them is missing."""
    return " ".join(_words(model, decisions, decisions))


def necessary_decisions(facts: Facts, strategy: Strategy) -> set[str]:
    """
    Return the decisions that a line must name, and ``layout`` where its stages must be given.

    These are the decisions that make a line whole and the degrees above 1. Decisions that
    :func:`planner.jobs.strategy_file.complete_strategy` would fill in differently are added.
    """
    whole = strategy.decisions()
    said = set(ALWAYS_SAID) | {name for name in ("tp", "cp", "pp", "vpp", "ep") if whole[name] > 1}
    said |= {"token_dispatcher"} if whole["ep"] > 1 else set()
    while True:
        given = {name: whole[name] for name in said}
        found = complete_strategy(facts, StrategyFile(decisions=given, layout=AS_DEALT)).decisions()
        unlike = {name for name, value in whole.items() if found[name] != value}
        if not unlike:
            break
        said |= unlike
    dealt = complete_strategy(facts, StrategyFile(decisions=given))
    return said if dealt == strategy else {*said, LAYOUT}


# --- writing a word ----------------------------------------------------------------------------------------
def _words(model: Model, decisions: Mapping[str, Any], said: Collection[str]) -> Iterator[str]:
    for word in WORDS:
        names = [name for name in word.decisions.values() if name in said and name != LAYOUT]
        if names and {*word.decisions.values()} <= {*decisions}:
            yield _word(word, model, decisions)
        else:
            yield from (f"{name}={decision_text(name, decisions[name])}" for name in names)


def _word(word: Word, model: Model, decisions: Mapping[str, Any]) -> str:
    if word.form == "flags":
        listed = ",".join(short for short, name in word.decisions.items() if decisions[name])
        return f"{word.text}={listed or NONE}"
    name = word.decisions[word.text]
    value = int(decisions[name])
    if word.form == "number":
        return f"{word.text}{value}"
    text = recompute_text(model, value) if name == "recompute" else decision_text(name, value)
    return f"{word.text}={text}"


def recompute_text(model: Model | None, recompute: int) -> str:
    """
    Write the recomputed modules, by Megatron-LM's names for modules that it can recompute alone in this model.

    Without a model all modules have Megatron-LM's names. Modules inside another recomputed module are left out.
    """
    names = Recompute(recompute).text.split("+")
    inside = {part for name in names for part in INSIDE.get(name, ())}
    of_megatron = recomputable_modules(model) if model else MEGATRON_MODULES
    return "+".join(MEGATRON_MODULES[name] if name in of_megatron else name for name in names if name not in inside)


def _stages_text(strategy: Strategy, model: Model) -> str:
    """Write the layers of virtual stages as a sum, with the entries of ranks that differ after slashes."""
    entries: dict[str, Sequence[Any]] = dict(layout_entries(strategy, model))
    parts = [layers_text(entries.pop("layers"))]
    for name, values in entries.items():
        texts = [_rank_text(model, value) for value in values]
        parts.append(f"{name}:{','.join(texts)}")
    return "/".join(parts)


def _rank_text(model: Model, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return recompute_text(model, Recompute.named(value)) if isinstance(value, str) else str(value)


# --- reading -----------------------------------------------------------------------------------------------

STRATEGY = "strategy"

EXAMPLE = "such as TP4 PP2 DP8 MBS1 ZeRO1 recompute=none overlap=tp,dp"

MOST_WORDS = 200

"""Largest number of words that is read; a line has far fewer."""


def read_strategy(entry: object, where: str = STRATEGY) -> StrategyFile:
    """
    Read a strategy, in part or whole, from a line or a mapping of decisions; return a read one unchanged.

    >>> read_strategy("TP8 zero1").decisions, read_strategy({"tp": 8}).decisions
    ({'tp': 8, 'sharding': <Sharding.OPTIMIZER: 1>}, {'tp': 8})

    Raises
    ------
    SpecError
        If the entry is neither, or a name or a value is wrong.
    """
    if isinstance(entry, StrategyFile):
        return entry
    if isinstance(entry, str):
        return read_words(entry.split(), where)
    if not isinstance(entry, Mapping):
        raise SpecError(where, f"expected a line {EXAMPLE}, or a mapping such as {{tp: 8}}, got {shown(entry)}.")
    for name in entry:
        require_one_of(name, ENTRIES, where)
    return read_given(entry, where)


def read_words(words: Sequence[str], where: str = STRATEGY, others: Sequence[str] = ()) -> StrategyFile:
    """
    Read the words of a line; a quoted argument may hold several words.

    ``others`` are names of other entries that hints may suggest.

    >>> read_words(["TP4", "overlap=tp", "layout=5+6x3+5"]).layout
    {'layers': (5, 6, 6, 6, 5)}

    Raises
    ------
    SpecError
        With every unknown word, wrong value and decision that is given twice.
    """
    decisions: dict[str, int] = {}
    layout: Mapping[str, tuple[int, ...]] | None = None
    settings: dict[str, Any] = {}
    said: dict[str, str] = {}
    mistakes: list[SpecError] = []
    for text in split_words(words):
        try:
            for name, value in _entries(text, where, others):
                if name in said:
                    raise SpecError(f"{where}.{name}", f"is given twice, by {said[name]} and {text}; keep one.")
                said[name] = text
                if name in CHOOSABLE:
                    settings[name] = read_value(name, value, f"{where}.{name}")
                    continue
                given = read_given({name: value}, where)
                decisions |= given.decisions
                layout = given.layout if name == LAYOUT else layout
        except SpecError as error:
            mistakes.append(error)
    if mistakes:
        raise together(mistakes)
    return StrategyFile(decisions=decisions, layout=layout, settings=settings)


def split_words(words: Sequence[str]) -> list[str]:
    """
    Split quoted arguments into words where all of it is a line.

    >>> split_words(["TP4 PP2", "layout={layers: [3, 4]}"])
    ['TP4', 'PP2', 'layout={layers: [3, 4]}']
    """
    found = [part for word in words for part in (word.split() if is_line(word) else [word])]
    if len(found) > MOST_WORDS:
        raise SpecError(STRATEGY, f"has {len(found)} words, at most {MOST_WORDS} are read.")
    return found


def read_asked(words: Sequence[str], overrides: Sequence[str]) -> StrategyFile:
    """
    Read the words of a command line, beside entries that fill what they leave open.

    Raises
    ------
    SpecError
        As :func:`read_words`, and if an entry gives a decision of the words.
    """
    given = read_words(words)
    require_once(STRATEGY, given, words, overrides)
    return given


def read_decisions(words: Sequence[str], overrides: Sequence[str] = ()) -> dict[str, object]:
    """
    Read decisions and stages from words of a command line, as :func:`read_asked`.

    >>> read_decisions(["TP8", "recompute=selective"])
    {'tp': 8, 'recompute': <Recompute.SELECTIVE: 1>}
    """
    given = read_asked(words, overrides)
    stages = {} if given.layout is None else {LAYOUT: given.layout or None}
    return {**given.decisions, **stages}


# --- reading a word ----------------------------------------------------------------------------------------
def _entries(text: str, where: str, others: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the decisions and settings of a word, with their values as written."""
    name, value = _split(text, where, others)
    name = name.lower().removeprefix(SETTINGS)
    word = BY_TEXT.get(name)
    if word is None:
        yield name, parse(value, f"{where}.{name}")
    elif word.form == "flags":
        yield from _flags(word, value, where)
    else:
        yield word.decisions[word.text], _value(word, value, f"{where}.{word.decisions[word.text]}")


def _split(text: str, where: str, others: Sequence[str]) -> tuple[str, str]:
    """Split a word into its name and the text of its value."""
    if found := SHARDED.fullmatch(text):
        return "ZeRO", found[1]
    if found := JOINED.fullmatch(text):
        return found[1], found[2]
    if text.lower() in FLAG_WORDS:
        return FLAG_WORDS[text.lower()]
    name, equals, value = (part.strip() for part in text.partition("="))
    known = {one.lower(): one for one in NAMES}
    own = known.get(name.lower().removeprefix(SETTINGS))
    if own is None and equals:
        hint = f"Write {KEYS[name]}={value}." if name in KEYS else did_you_mean(name, (*DECISIONS, *NAMES, *others))
        raise SpecError(entry_path(where, name), "no such decision.", hint)
    if own is None:
        raise unknown_word(text)
    if not value:
        raise _missing_value(text)
    return name, value


def _missing_value(text: str) -> SpecError:
    word = BY_TEXT.get(text.partition("=")[0].strip().lower())
    example = f"{word.text}2" if word and word.form == "number" else f"{text.rstrip('=')}=VALUE"
    return SpecError(shown(text), "has no value.", f"Write {example}.")


def unknown_word(text: str) -> SpecError:
    """Return the error of a word that is neither an entry nor a word of a line."""
    problem = "expected key=value, such as training.global_batch_size=512, or a word of a line, such as TP4."
    letters = text.rstrip("0123456789").lower()
    if text.lower() in BY_TEXT:
        return _missing_value(text)
    near = [f"'{word.text}'" for word in WORDS if _is_near(letters, word.text.lower())]
    hint = f"Did you mean {alternatives(near)}?" if near else ""
    return SpecError(shown(text), problem, hint)


def _is_near(seen: str, known: str) -> bool:
    """Tell whether a word differs from a known one in one letter, or in the order of its letters."""
    if seen == known or abs(len(seen) - len(known)) > 1 or not seen:
        return seen == known
    if len(seen) == len(known):
        return sum(one != other for one, other in zip(seen, known, strict=True)) == 1 or sorted(seen) == sorted(known)
    longer, shorter = sorted((seen, known), key=len, reverse=True)
    return any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer)))


def _value(word: Word, text: str, where: str) -> Any:
    """Return the value of a word as a job file has it."""
    if word.form == "modules":
        return text.lower().replace(",", "+")
    if word.form == "stages":
        return _read_stages(text, where)
    value = parse(text, where)
    if word.form == "value" and isinstance(value, str):
        return value.lower()
    if word.decisions[word.text] == "sharding" and isinstance(value, int) and not isinstance(value, bool):
        levels = ("none", "optimizer", "gradients", "weights")
        if value not in range(len(levels)):
            raise SpecError(where, f"expected ZeRO0 to ZeRO3, got {shown(f'ZeRO{text}')}.")
        return levels[value]
    return value


def _read_stages(text: str, where: str) -> Any:
    """Read layers such as ``5+6x3``, with entries of ranks after slashes: ``5+6x3/recompute:none,full``."""
    if text.startswith(("{", "[")) or "/" not in text:
        return parse(text, where)
    layers, *parts = text.split("/")
    entries: dict[str, Any] = {"layers": parse(layers, where)}
    for part in parts:
        name, colon, values = part.partition(":")
        if not colon or not values:
            raise SpecError(
                where, f"expected name:values after a slash, such as /recompute:none,full, got {shown(part)}."
            )
        if name in entries:
            raise SpecError(f"{where}.{name}", "is given twice; keep one.")
        entries[name] = [parse(value, f"{where}.{name}") for value in values.split(",")]
    return entries


def _flags(word: Word, text: str, where: str) -> Iterator[tuple[str, bool]]:
    """Yield every flag of a word: the listed ones are on, the others off."""
    listed = [] if text.lower() == NONE else text.lower().replace("+", ",").split(",")
    for name in listed:
        if name not in word.decisions:
            known = f"{', '.join(word.decisions)}, joined by commas, or {NONE}"
            problem = f"expected {known}, got {shown(name)}."
            raise SpecError(f"{where}.{word.text}", problem, _suggest(name, word.decisions))
        if listed.count(name) > 1:
            raise SpecError(f"{where}.{word.text}", f"names {name} twice.", "Keep one.")
    for name, decision in word.decisions.items():
        assert decision in FLAGS, "a word of flags"
        yield decision, name in listed


def _suggest(name: str, known: Iterable[str]) -> str:
    hint = did_you_mean(name, known)
    return hint if hint.startswith("Did") else ""


OF_EXPERTS = ("shared_experts", "expert_activation", "experts", "moe", "moe_router", "moe_preprocess")

"""Modules that only models with experts have."""

OFF: Mapping[str, int] = {"ep": 1, "etp": 1, "token_dispatcher": 0, "ep_overlap": 0}

"""Decisions about experts, with their values in models without experts."""


def require_parts(model: Model, given: StrategyFile, where: str = STRATEGY) -> None:
    """
    Refuse decisions about experts in a line for a model that has none.

    Raises
    ------
    SpecError
        With the wrong decision.
    """
    if model.has_experts:
        return
    for name, value in given.decisions.items():
        parts = decision_text(name, int(value)).split("+")
        of_experts = [part for part in parts if name in MODULES_OF and part in OF_EXPERTS]
        if of_experts or value != OFF.get(name, value):
            text = "+".join(MEGATRON_MODULES.get(part, part) for part in parts)
            allowed = ", ".join(MEGATRON_MODULES[part] for part in recomputable_modules(model))
            fix = f"Allowed: none, full, or {allowed}, joined by +." if name == "recompute" else "Leave it out."
            raise SpecError(f"{where}.{name}", f"is {text}, but {model.name} has no experts.", fix)


PIN = "search.pin"


def read_lines(document: Mapping[str, Any]) -> dict[str, StrategyFile]:
    """Read the lines of a job by the entries that hold them."""
    search = document.get("search")
    entries = {"strategy": document.get("strategy"), PIN: search.get("pin") if isinstance(search, dict) else None}
    return {where: read_words(line.split(), where) for where, line in entries.items() if isinstance(line, str)}


def expand_lines(document: dict[str, Any], overrides: Sequence[str] = ()) -> None:
    """
    Write a job's lines as mappings, and their settings as the job's.

    A whole pinned line stays a line: it means one strategy, not only the decisions that it names. An override of one of
    its decisions expands it.

    >>> job = {"strategy": "TP8 moments_dtype=bf16"}
    >>> expand_lines(job)
    >>> job
    {'strategy': {'tp': 8}, 'settings': {'moments_dtype': 'bf16'}}

    Raises
    ------
    SpecError
        If a line is wrong, or gives another value of a setting than the job.
    """
    if isinstance(document.get("strategy"), str):
        document["strategy"] = _expand_line(document, document["strategy"], "strategy", "strategy")
    search = document.get("search")
    if isinstance(search, dict) and isinstance(search.get("pin"), str):
        given = read_words(search["pin"].split(), PIN)
        is_changed = any(one.strip().startswith(f"{PIN}.") for one in overrides)
        entries = _expand_line(document, search["pin"], PIN, PIN)
        if is_changed or not is_whole(given):
            document["search"] = {**search, "pin": entries}


def pin_words(words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """
    Write words of a command line as entries that pin them; a whole line replaces all pins.

    Raises
    ------
    SpecError
        If one of the overrides gives or pins the same decision.

    Examples
    --------
    >>> pin_words(["TP4", "mbs=2"], [])
    ['search.pin.tp=4', 'search.pin.mbs=2']
    """
    given = read_words(words, PIN, SECTIONS)
    for section in (STRATEGY, PIN):
        require_once(section, given, words, overrides)
    if is_whole(given):
        return [f"{PIN}={json.dumps(' '.join(words))}"]
    return [f"{PIN}.{name}={json.dumps(value)}" for name, value in plain_entries(given).items()]


def require_once(section: str, given: StrategyFile, words: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuse entries of a section on the command line whose decisions its words give, too; a whole line gives all."""
    names = {*given.names, *(DECISIONS if is_whole(given) else ())}
    for override in overrides:
        for name in sorted(_names_in(section, override) & names):
            raise SpecError(f"{section}.{name}", f"is given twice, by {' '.join(words)} and {override}; keep one.")


def _names_in(section: str, override: str) -> set[str]:
    """Return the decisions that an entry gives of a section: of one, or of the whole, as a line or a mapping."""
    path, _, text = (part.strip() for part in override.partition("="))
    if path == section:
        entry = parse(text, section)
        return {*read_strategy(entry, section).names} if isinstance(entry, (str, Mapping)) else set()
    below = path.removeprefix(f"{section}.")
    return set() if below == path else {below.partition(".")[0]}


def plain_entries(given: StrategyFile) -> dict[str, Any]:
    """Write the given part of a strategy as in a job file."""
    decisions = {name: plain_value(name, int(value)) for name, value in given.decisions.items()}
    if given.layout is None:
        return decisions
    plain = {name: [_plain(name, value) for value in values] for name, values in given.layout.items()}
    return {**decisions, LAYOUT: plain or None}


def _plain(name: str, value: int) -> str | int | bool:
    """Write a value of a rank; numbers of layers stay."""
    return plain_value(name, int(value)) if name in ("recompute", "activation_offload") else int(value)


def _expand_line(document: dict[str, Any], line: str, where: str, said_by: str) -> dict[str, Any]:
    given = read_words(line.split(), where)
    if given.settings:
        document["settings"] = _merge_settings(document.get("settings") or {}, given.settings, said_by)
    return plain_entries(given)


def _merge_settings(own: Mapping[str, Any], said: Mapping[str, Value], said_by: str) -> dict[str, Any]:
    """Merge the settings of a line into those of a job; refuse a value that the job does not allow."""
    for name, value in said.items():
        given = own.get(name)
        if given in (None, ANY, value) or (isinstance(given, list) and value in given):
            continue
        raise SpecError(f"settings.{name}", f"is {shown(given)}, but {said_by} says {shown(value)}; keep one.")
    return {**own, **said}
