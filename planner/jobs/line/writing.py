"""Write a strategy as the shortest line that is read back as the same strategy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from constraints.rules.frameworks import MEGATRON_MODULES, recomputable_modules
from costmodel.facts.model import Model
from costmodel.record import record
from costmodel.strategy import DECISIONS, INSIDE, Recompute, Strategy, decision_text
from costmodel.tables import Facts
from planner.jobs.completion import ALWAYS_SAID, complete_strategy
from planner.jobs.setting_choices import CHOOSABLE, Value, keep_effective, text_of
from planner.jobs.strategy_file import AS_DEALT, LAYOUT, StrategyFile, layers_text, layout_entries


class Form(StrEnum):
    """
    The form of a word and its value.

    ``NUMBER``: name and number in one, ``TP4``. ``VALUE``: ``schedule=zb_v``. ``MODULES``: names joined by ``+``.
    ``FLAGS``: the flags that are on, joined by commas. ``STAGES``: layers of virtual stages.
    """

    NUMBER = "number"
    VALUE = "value"
    MODULES = "modules"
    FLAGS = "flags"
    STAGES = "stages"


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
    _one("TP", Form.NUMBER, "tp"),
    _one("CP", Form.NUMBER, "cp"),
    _one("PP", Form.NUMBER, "pp"),
    _one("VPP", Form.NUMBER, "vpp"),
    _one("EP", Form.NUMBER, "ep"),
    _one("ETP", Form.NUMBER, "etp"),
    _one("DP", Form.NUMBER, "dp"),
    _one("MBS", Form.NUMBER, "mbs"),
    _one("ZeRO", Form.NUMBER, "sharding"),
    _one("SP", Form.NUMBER, "sequence_parallel"),
    _one("group", Form.VALUE, "group"),
    _one("schedule", Form.VALUE, "schedule"),
    _one("vocabulary", Form.VALUE, "vocabulary"),
    _one("dispatcher", Form.VALUE, "token_dispatcher"),
    _one("graphs", Form.MODULES, "cuda_graphs"),
    _one("recompute", Form.MODULES, "recompute"),
    Word("offload", Form.FLAGS, {"activations": "activation_offload", "optimizer": "optimizer_offload"}),
    Word(
        "overlap",
        Form.FLAGS,
        {"tp": "tp_overlap", "cp": "cp_overlap", "ep": "ep_overlap", "pp": "pp_overlap", "dp": "dp_overlap"},
    ),
    _one("layout", Form.STAGES, LAYOUT),
)

"""Words in the order of a line. Settings follow by their own names, such as ``gradient_dtype=bf16``."""

NONE = "none"

"""Value of a word of modules or flags that are all off."""

BY_TEXT = {word.text.lower(): word for word in WORDS}

NUMBERS = "|".join(sorted((name for name, word in BY_TEXT.items() if word.form is Form.NUMBER), key=len, reverse=True))

JOINED = re.compile(rf"({NUMBERS})(-?[0-9][\w.]*)", re.IGNORECASE | re.ASCII)

"""A word and its number in one, such as ``TP4``."""

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
        words.append(f"layout={_stages(strategy, facts.model)}")
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
    return " ".join([*words, *([f"layout={_stages(strategy, facts.model)}"] if LAYOUT in said else [])])


def write_words(model: Model, decisions: Mapping[str, Any]) -> str:
    """Write decisions as words of a line; flags of one word are written by name where one of them is missing."""
    return " ".join(_words(model, decisions, decisions))


def necessary_decisions(facts: Facts, strategy: Strategy) -> set[str]:
    """
    Return the decisions that a line must name, and ``layout`` where its stages must be given.

    These are the decisions that make a line whole and the degrees above 1. Decisions that
    :func:`planner.jobs.completion.complete_strategy` would fill in differently are added.
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


# --- one word ----------------------------------------------------------------------------------------------
def _words(model: Model, decisions: Mapping[str, Any], said: Collection[str]) -> Iterator[str]:
    for word in WORDS:
        names = [name for name in word.decisions.values() if name in said and name != LAYOUT]
        if names and {*word.decisions.values()} <= {*decisions}:
            yield _word(word, model, decisions)
        else:
            yield from (f"{name}={decision_text(name, decisions[name])}" for name in names)


def _word(word: Word, model: Model, decisions: Mapping[str, Any]) -> str:
    if word.form is Form.FLAGS:
        listed = ",".join(short for short, name in word.decisions.items() if decisions[name])
        return f"{word.text}={listed or NONE}"
    name = word.decisions[word.text]
    value = int(decisions[name])
    if word.form is Form.NUMBER:
        return f"{word.text}{value}"
    text = recompute_text(model, value) if name == "recompute" else decision_text(name, value)
    return f"{word.text}={text}"


def recompute_text(model: Model, recompute: int) -> str:
    """
    Write the recomputed modules, by Megatron-LM's names for modules that it can recompute alone in this model.

    Modules inside another recomputed module are left out.
    """
    names = Recompute(recompute).text.split("+")
    inside = {part for name in names for part in INSIDE.get(name, ())}
    of_megatron = recomputable_modules(model)
    return "+".join(MEGATRON_MODULES[name] if name in of_megatron else name for name in names if name not in inside)


def _stages(strategy: Strategy, model: Model) -> str:
    """Write the layers of virtual stages as a sum, with the entries of ranks that differ behind slashes."""
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
