"""The words of a line: one row per decision, with Megatron-LM's names where it has some."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from costmodel.strategy import DECISIONS
from planner.jobs.setting_choices import CHOOSABLE
from planner.jobs.strategy_file import LAYOUT


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


@dataclass(frozen=True, slots=True)
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
