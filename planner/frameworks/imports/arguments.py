"""
Import of Megatron-LM's command line; options that planning does not need may be unknown, others have defaults.

Options of forks whose meaning depends on other options are translated first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, pairwise
from math import lcm, prod
from typing import Any, TypeAlias

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.lowering.framework import balance_stages
from costmodel.validation import shown
from planner.frameworks.imports.documents import (
    ARCHITECTURE,
    default_vocabulary,
    degree,
    read_overrides,
    read_plain,
    read_rows,
    read_words,
    vocabulary_of,
)
from planner.frameworks.imports.tools.keys import is_read, meaning_of, refuse_misspelled
from planner.frameworks.megatron.options import WHERE, Option, options, split_options
from planner.frameworks.megatron.read import EVALUATIONS, PLAIN, Imported, from_megatron_lm, release_for
from planner.frameworks.megatron.stages import CHUNK_LAYERS, CHUNKS, LAYOUT, MOST_STAGES, layout_text
from planner.frameworks.shell.words import (
    Variables,
    refuse_unknown,
    restore_variables,
    strip_unknown,
    unknown,
    unknown_names,
)

DATA = read_words("arguments")

Given: TypeAlias = Mapping[str, list[str]]
Words: TypeAlias = dict[str, list[str]]
"""Options that replace others; an empty name has a note."""


STAGES, METHOD = "--pipeline-model-parallel-size", "--pp-partition-method"

MOST_DIGITS = 18

MOST_SPARSE = 4
"""
Largest ratio of sequence length to ``--index-topk`` at which sparse attention is costed as dense.

For DeepSeek V3.2 at 4,096 tokens core attention takes a twentieth of a step; the scores of the indexer offset a fifth
of that.
"""


def translate_to_megatron(pairs: Sequence[tuple[str, list[str]]]) -> Iterator[tuple[str, list[str]]]:
    """
    Yield options, with those of forks that depend on other options translated to Megatron-LM's.

    Raises
    ------
    SpecError
        If they describe a feature without options in Megatron-LM.
    """
    given = dict(pairs)
    taken: set[str] = set()
    more = list[tuple[str, list[str]]]()
    for names, read in MEANINGS:
        if names[0] in given and (words := read(given)) is not None:
            taken |= {*names}
            more += words.items() or [("", [f"{names[0]} {' '.join(given[names[0]])}: nothing changes by it."])]
    try:
        meaning = meaning_of("fork", {name: read_plain(" ".join(values)) if values else True for name, values in pairs})
    except SpecError as error:
        raise SpecError(f"{WHERE}.{error.where}", error.problem, error.hint) from None
    taken |= {name for name in given if is_read("fork", name)}
    yield from ((name, values) for name, values in pairs if name not in taken)
    yield from (*more, *split_options(meaning.words), ("", meaning.notes))


def _number(given: Given, name: str, default: int | None = None) -> int:
    """Return the whole number of an option, or refuse a variable without a value and anything else."""
    words = given.get(name) or ([] if default is None else [str(default)])
    if not words:
        raise SpecError(f"{WHERE}.{name}", "is required but missing.", f"Add {name}.")
    refuse_unknown(" ".join(words), f"{WHERE}.{name}")
    if len(words) != 1 or not words[0].lstrip("-").isdecimal():
        raise SpecError(f"{WHERE}.{name}", f"expected a whole number, got {shown(' '.join(words))}.")
    if len(words[0]) > MOST_DIGITS or (name == "--num-layers" and int(words[0]) > MOST_STAGES):
        raise SpecError(f"{WHERE}.{name}", f"is {shown(words[0])}, more than any model has.")
    return int(words[0])


def _deepspeed_experts(given: Given) -> Words | None:
    """
    Translate experts, by default in every second layer with top-1 routing.

    Without ``--enable-expert-tensor-parallelism`` tensor-parallel ranks do not split an expert (Megatron-DeepSpeed,
    megatron/arguments.py and model/transformer.py).
    """
    if not any(name in given for name in DATA.deepspeed):
        return None
    numbers = given["--num-experts"]
    if len(set(numbers)) > 1:
        problem = f"is {' '.join(numbers)}: a pyramid of experts (PR-MoE); the planner knows experts of one number."
        raise SpecError(f"{WHERE}.--num-experts", problem)
    if _number({"--num-experts": numbers[:1]}, "--num-experts") == 1:
        names = ", ".join(name for name in DATA.experts if name in given)
        return {"": [f"{names}: one expert is a dense feed-forward."]}
    every = degree(_number(given, "--expert-interval", 2), f"{WHERE}.--expert-interval")
    assumed = {"--expert-interval": "2", "--topk": "1"}
    silent = " ".join(f"{name} {value}" for name, value in assumed.items() if name not in given)
    flags = ",".join("1" if (layer + 1) % every == 0 else "0" for layer in range(_number(given, "--num-layers")))
    sized = "--tensor-model-parallel-size" if "--enable-expert-tensor-parallelism" in given else ""
    ranks = (given.get(name, ["1"]) for name in ("--topk", "--moe-expert-parallel-size", sized))
    words = DATA.as_experts.format(numbers[0], *map(" ".join, ranks), flags=flags).split()
    notes = [f"Megatron-DeepSpeed's defaults count: {silent}."] if silent else []
    return {**dict(split_options(words)), "": notes}


def _dense_in_front(given: Given) -> Words | None:
    """Translate dense layers in front: -1 is none, and layers without computation do not count (MindSpeed)."""
    first, every = _number(given, "--first-k-dense-replace"), max(1, _number(given, "--moe-layer-freq", 1))
    layers = [number for number in range(_number(given, "--num-layers")) if number not in _noops(given)]
    flags = ",".join("1" if number >= first and number % every == 0 else "0" for number in layers)
    return {"--moe-layer-freq": [f"([{flags}])"]}


def _noops(given: Given) -> set[int]:
    words = [word for word in ",".join(given.get("--noop-layers", [])).split(",") if word]
    if not all(map(str.isdecimal, words)):
        problem = f"expected numbers of layers such as 1,47, got {shown(' '.join(given['--noop-layers']))}."
        raise SpecError(f"{WHERE}.--noop-layers", problem)
    return {*map(int, words)}


def _remove_noops(given: Given) -> Words | None:
    """Remove layers without computation, and place the remaining ones by a custom pipeline layout."""
    noops, total = _noops(given), _number(given, "--num-layers")
    stages = degree(_number(given, STAGES, 1), f"{WHERE}.{STAGES}")
    size = _number(given, CHUNK_LAYERS, -(-total // stages))
    if size < 1 or total % size or (total // size) % stages:
        name, value = (CHUNK_LAYERS, size) if CHUNK_LAYERS in given else (STAGES, stages)
        problem = f"is {value}; the {total} layers of --num-layers do not divide over {stages} pipeline ranks."
        raise SpecError(f"{WHERE}.{name}", problem)
    chunks = [sum(layer not in noops for layer in range(start, start + size)) for start in range(0, total, size)]
    more = {LAYOUT: [layout_text(chunks, mtp_layers=_number(given, "--mtp-num-layers", 0))]} if len(chunks) > 1 else {}
    return {"--num-layers": [str(sum(chunks))], **more}


def _translate_recomputation(given: Given) -> Words | None:
    """
    Layers that are recomputed of a whole rank, one of each chunk in turn, where Megatron-LM counts those of a chunk.

    References
    ----------
    MindSpeed, mindspeed/core/transformer/transformer.py, should_recompute_activation.
    """
    stages, size = _number(given, STAGES, 1), _number(given, CHUNK_LAYERS, 0)
    chunks = _number(given, "--num-layers") // (stages * size) if stages * size > 0 else _number(given, CHUNKS, 1)
    if given.get("--recompute-method") != ["block"] or "--recompute-num-layers" not in given or chunks < 2:
        return None
    number = _number(given, "--recompute-num-layers")
    if number % chunks:
        problem = f"is {number} for a rank of {chunks} chunks, which recompute unlike numbers of layers then."
        raise SpecError(f"{WHERE}.--recompute-num-layers", problem, f"Give a multiple of {chunks}.")
    return {"--recompute-num-layers": [str(number // chunks)]}


def _deal_piped_layers(given: Given) -> Words | None:
    """
    Layers as DeepSpeed deals them where they do not divide; embeddings count with ``type:transformer|embedding``.

    References
    ----------
    Megatron-DeepSpeed, megatron/model/gpt_model.py, GPTModelPipe; DeepSpeed, runtime/pipe/module.py, _partition_layers.
    """
    method = " ".join(given.get(METHOD, ["type:transformer"])).lower()
    is_piped = not {"--deepspeed", METHOD}.isdisjoint(given) and "--no-pipeline-parallel" not in given
    if method not in DATA.methods or not is_piped or unknown_names(" ".join(given[STAGES])):
        return None
    stages, layers, end = _number(given, STAGES), _number(given, "--num-layers"), DATA.methods[method]
    if stages < 2 or layers + 2 * end < stages or (layers + 2 * end) % stages == 0:
        return None
    bounds = balance_stages([end, *[1] * layers, end], stages)
    dealt = [min(last, layers + 1) - max(first, 1) for first, last in pairwise(bounds)]
    note = f"{layers} layers do not divide over {stages} pipeline ranks: dealt as {', '.join(map(str, dealt))}, as "
    note += f"DeepSpeed's PipelineModule does by {method} since 0.12; strategy.layout says otherwise."
    return {STAGES: given[STAGES], LAYOUT: [layout_text(dealt, mtp_layers=0)], "": [note]}


def _translate_layer_list(given: Given) -> Words | None:
    """Translate the numbers of layers of all stages to a custom pipeline layout."""
    words, total = ",".join(given["--num-layer-list"]).split(","), _number(given, "--num-layers")
    layers = [int(word) for word in words if word.isdecimal()]
    if len(layers) < len(words) or sum(layers) != total:
        problem = (
            f"expected the layers of each stage, {total} in all, got {shown(' '.join(given['--num-layer-list']))}."
        )
        raise SpecError(f"{WHERE}.--num-layer-list", problem)
    return {LAYOUT: [layout_text(layers, mtp_layers=_number(given, "--mtp-num-layers", 0))]} if layers[1:] else {}


def _sparse(given: Given) -> Words | None:
    """Cost sparse attention of short sequences as dense, or refuse it."""
    length, kept = _number(given, "--seq-length"), _number(given, "--index-topk", 2048)
    if "--enable-mhc" in given:
        return None
    if length > MOST_SPARSE * kept:
        problem = (
            f"is sparse attention (DSA) over {length:,} tokens of which {kept:,} count (--index-topk); it is costed as "
            f"dense up to {MOST_SPARSE} times as many."
        )
        raise SpecError(f"{WHERE}.--enable-dsa-indexer", problem, f"Give --seq-length {MOST_SPARSE * kept} at most.")
    note = f"--enable-dsa-indexer, sparse attention: costed as dense over {length:,} tokens, without its indexer."
    return {"": [note]}


def model_entries(given: Given) -> dict[str, str]:
    """
    Return entries of the job for layers that have no options in Megatron-LM.

    MindSpeed's ``--post-norm`` adds norms after attention and feed-forward; its ``--interleave-sliding-window`` is
    Gemma 2's window in every other layer.
    """
    if "--interleave-sliding-window" not in given:
        return {"model.num_norms": "4"} if "--post-norm" in given else {}
    padded = {"vocab_size": "--padded-vocab-size"} if "--padded-vocab-size" in given else {}
    config = {name: _number(given, option) for name, option in {**DATA.sizes, **padded}.items()}
    entry = {"config": {"model_type": "gemma2", **config}, "name": "gemma2", "source": "arguments of MindSpeed-LLM"}
    return {"model": json.dumps(entry)}


MEANINGS: tuple[tuple[tuple[str, ...], Callable[[Given], Words | None]], ...] = (
    ((*DATA.experts, "--enable-expert-tensor-parallelism"), _deepspeed_experts),
    (("--first-k-dense-replace", "--moe-layer-freq"), _dense_in_front),
    (("--noop-layers", "--num-layers", "--num-layers-per-virtual-pipeline-stage"), _remove_noops),
    (("--num-layer-list",), _translate_layer_list),
    ((STAGES, METHOD), _deal_piped_layers),
    (("--enable-recompute-layers-per-pp-rank", "--recompute-num-layers"), _translate_recomputation),
    (("--enable-dsa-indexer", "--index-topk"), _sparse),
)
"""Options that are translated together, with the function; it applies where the first of them is given."""


OF_THE_WHOLE = (*DATA.lengths, *EVALUATIONS)
"""Options of the whole training, which may be open: no figure of a step hangs on them."""

ASSUMED_STEPS = 1000
"""Steps of a training without a given length; they change no figure of a step."""

NO_LENGTH = f"Nothing says how long the training is: {ASSUMED_STEPS:,} steps are assumed; training.tokens=N says it."


@dataclass(slots=True)
class Understood:
    """
    Options of a command line, sorted by meaning.

    Parameters
    ----------
    values
        Words after each option that is read; the last ones count, as for Megatron-LM's own parser.
    said
        Words after every option, as the script writes them.
    notes
        Options that were ignored, a sentence each.
    missing
        Variables without a value, by the option that needs them.
    strangers
        Unknown options.
    """

    values: Words = field(default_factory=dict)
    said: Words = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, list[str]] = field(default_factory=dict)
    strangers: list[str] = field(default_factory=list)

    def words(self) -> list[str]:
        """Return the options as a command line."""
        return [word for name, values in self.values.items() for word in (name, *values)]

    def number(self, name: str, default: int) -> int:
        """Return the number of an option, or the default without it."""
        text = (self.values.get(name) or [""])[0]
        return max(1, int(text)) if text.isdecimal() else default

    def least_devices(self) -> int:
        """Return the smallest number of devices that holds one replica and one copy of each expert."""
        tp, ep = self.number("--tensor-model-parallel-size", 1), self.number("--expert-model-parallel-size", 1)
        dense = tp * self.number("--context-parallel-size", 1)
        experts = ep * self.number("--expert-tensor-parallel-size", tp) if "--num-experts" in self.values else 1
        return self.number("--pipeline-model-parallel-size", 1) * lcm(dense, experts)


def megatron_job(words: Sequence[str], overrides: Sequence[str], environment: Mapping[str, str]) -> Imported:
    """
    Import a command line of Megatron-LM.

    Parameters
    ----------
    words
        Options with their values; unknown values are marked in them by name.
    overrides
        Entries of the job as ``key=value``.
    environment
        Known environment variables.

    Raises
    ------
    SpecError
        If a required value is unknown, if an option may be misspelled, or as ``from_megatron_lm``.
    """
    found = require_known(words)
    entries = read_overrides(overrides)
    _refuse_word_pieces(found)
    if "--recompute-method" in found.values and "--recompute-num-layers" not in found.values:
        found.values["--recompute-num-layers"] = ["1"]  # the parsers' default until 2024
    if "--bf16" not in found.values and "--fp16" not in found.values and entries.get("training.precision") in DATA.half:
        found.values[f"--{entries['training.precision']}"] = []
    for entry, option in DATA.beside.items():
        if entry in entries:
            found.values[option] = [entries[entry]]
    entries.pop("model.vocab_size", None)
    _add_batch(found, entries.get("cluster.num_devices", ""))
    if "training.tokens" not in entries and not {*DATA.lengths} & {*found.values}:
        found.values["--train-iters"] = [str(ASSUMED_STEPS)]
        found.notes.append(NO_LENGTH)
    entries = {**({} if "model" in entries else model_entries({**found.said, **found.values})), **entries}
    if "model" in entries and (idle := sorted(ARCHITECTURE & {*found.values})):
        found.notes.append(f"Ignored (the model that is named counts): {', '.join(idle)}.")
    try:
        imported = _import_on_release(found, entries, environment)
    except SpecError as error:
        if not found.strangers or "missing" not in error.problem:
            raise
        hint = f"{error.hint} Options that are not known here may say it: {', '.join(found.strangers)}.".strip()
        raise SpecError(error.where, error.problem, hint) from None
    return Imported(document=imported.document, notes=(*imported.notes, *found.notes, *_note_environment(environment)))


KERNELS = re.compile(r"(NVTE|UB|HSA|NCCL|RCCL|HCCL|TORCH_NCCL|CUDA_DEVICE|CUDA_SCALE|CUDA_GRAPHS)_\w+")
"""Variables of the environment that choose kernels, streams and channels of communication."""

ADDRESSES = re.compile(rf"\w*_({'|'.join(DATA.addresses)})")
"""Variables among them that only say where and how messages go."""


def _note_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a note on variables that may change the speed, and that are not read."""
    if names := [name for name in environment if KERNELS.fullmatch(name) and not ADDRESSES.fullmatch(name)]:
        yield f"Not costed, of the environment: {', '.join(sorted(names))}."


def model_words(arguments: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[str]:
    """Yield the words of ``MODEL_ARGS``; variables may have values of any type, and switch an option on or off."""
    for name, value in arguments.items():
        filled = value
        if isinstance(value, str):
            filled = re.sub(r"\$\{?(\w+)\}?", lambda found: given.get(found[1], unknown(found[1])), value)
        if filled is not None and str(filled).lower() not in ("false", "null"):
            yield from (str(name), *_values(filled))


def _values(value: object) -> list[str]:
    """Return the values of an option: none of a switch, several of a list, which may also be text in brackets."""
    if value is True or str(value).lower() == "true":
        return []
    if isinstance(value, (list, tuple)):
        return [str(one) for one in value]
    text = re.sub(r"^(['\"])(.*)\1$", r"\2", str(value).strip())
    inner = re.fullmatch(r"\[([^\[\]*+]*)\]", text)
    return (inner[1].replace(",", " ") if inner else text).split()


def refuse_open(words: Sequence[str], kind: str, variables: Variables) -> None:
    """
    Refuse a launch with unknown words that may be one or more options.

    Parameters
    ----------
    words
        Words after the program.
    kind
        Framework of the arguments, as in ``Launch``.
    variables
        Variables of the script, with the lines that use them, and the ones to set.

    Raises
    ------
    SpecError
        If a word is unknown and is not certainly the value of an option.
    """
    names = list(dict.fromkeys(name for word in _open_words(words, kind) for name in unknown_names(word)))
    if not names:
        return
    holders = {name: variables.holder(name) for name in names}
    inside = {name: f" in ${holder}" if holder not in (None, name) else "" for name, holder in holders.items()}
    parts = [name_with_lines(name, variables.uses) + inside[name] for name in names]
    settable = dict.fromkeys(holder for holder in holders.values() if holder is not None)
    options_of, nothing = (" ".join(f"--set {name}={value}" for name in settable) for value in ("'--option VALUE'", ""))
    hint = f"Say what it holds: {options_of}; nothing: {nothing}."
    rest = "" if all(holders.values()) else f"{_unread(names)}: write it in their place."
    problem = f"hold what the script leaves open, which may be one or more options: {'; '.join(parts)}."
    raise SpecError(WHERE, problem, " ".join(filter(None, (hint if settable else "", rest))))


def drop_empty_words(words: Sequence[str], kind: str, variables: Variables) -> tuple[str, ...]:
    """
    Drop words that consist of variables that the script sets in other branches only; they are empty here.

    Parameters
    ----------
    words
        Words after the program.
    kind
        Framework of the arguments, as in ``Launch``.
    variables
        Variables of the script.
    """
    empty = {word for word in _open_words(words, kind) if variables.own.issuperset(unknown_names(word))}
    return tuple(word for word in words if word not in empty)


VALUED = re.compile("|".join(DATA.valued))
"""Names of options of other programs that certainly take a value."""

ONE_WORD = re.compile("|".join(DATA.of_a_machine))
"""Commands and variables of a machine that never hold options."""

SWITCH = re.compile(r"--?(no|use|do|enable|disable|with|overwrite|resume|skip|trust|save|load)[-_]")


def _open_words(words: Sequence[str], kind: str) -> Iterator[str]:
    """
    Yield unknown words that may be options.

    Words that are certainly values of the option before them are left out, and so is a variable inside a text, which
    makes one word, such as a path.
    """
    left, before, option = 0, "", ""
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("--") or (kind != "megatron" and re.match(r"-[a-z]", word)):
            if unknown_names(name):
                yield word
            option, left = name, 0 if equals else _least_values(name, kind)
        elif left > 0 or _is_one_word(word) or (option == "--data-path" and re.fullmatch(r"\d*\.\d+|\d+", before)):
            left -= 1  # a number among the files of --data-path is the weight of the one behind it
        elif not (kind == "bridge" and strip_unknown(name) == name and equals):
            yield word
        before = word


def _is_one_word(word: str) -> bool:
    """Tell whether a word stays one word: it has text around its variables, or they never hold options."""
    return bool(strip_unknown(word)) or all(map(ONE_WORD.fullmatch, unknown_names(word)))


def _least_values(name: str, kind: str) -> int:
    """Return the number of words after an option that are certainly its values."""
    option, others = options().get(name), other_options().get(name, ())
    if kind != "megatron" or (option is None and not others):
        return int(bool(VALUED.search(name)) and not SWITCH.match(name))
    nargs = option.nargs if option is not None else min((row["values"] for row in others), default="0")
    return int(nargs) if nargs.isdecimal() else 1


def require_known(words: Sequence[str], variables: Variables | None = None) -> Understood:
    """
    Read options, and refuse unknown values of options that planning needs; the script's variables say what to give.

    Raises
    ------
    SpecError
        If such a value is unknown; names the variables and the lines that use them.
    """
    found, variables = understand(words), variables or Variables({})
    if not found.missing:
        return found
    names = list(dict.fromkeys(name for needed in found.missing.values() for name in needed))
    needing = {name: ", ".join(option for option, needed in found.missing.items() if name in needed) for name in names}
    parts = [f"{needing[name]} {name_with_lines(name, variables.uses)}" for name in names]
    settable = list(dict.fromkeys(filter(None, map(variables.holder, names))))
    hint = f"Say {'it' if len(settable) == 1 else 'them'}: {' '.join(f'--set {name}=VALUE' for name in settable)}."
    others = "" if all(map(variables.holder, names)) else f" {_unread(names)}: give the variable that takes it."
    raise SpecError(WHERE, f"use what the script leaves open: {'; '.join(parts)}.", (hint if settable else "") + others)


def _import_with_vocabulary(found: Understood, overrides: Sequence[str], environment: Mapping[str, str]) -> Imported:
    """Import a command line; its vocabulary is the tokenizer's, else that of a like model of the catalog."""
    entries, tokenizer = {*read_overrides(overrides)}, environment.get("TOKENIZER_MODEL")  # in files of options alone
    said = {**({"--tokenizer-model": [tokenizer]} if tokenizer else {}), **found.said}
    known = vocabulary_of(said)
    if known is None or {"--vocab-size", "--padded-vocab-size"} & {*found.values} or {"model", "model.name"} & entries:
        try:
            return from_megatron_lm(found.words(), overrides, environment)
        except SpecError as error:
            if error.where != f"{WHERE}.--vocab-size":
                raise
            known = known or default_vocabulary(said)
            if known is None:
                raise SpecError(error.where, error.problem, "Say it: model.vocab_size=50257.") from None
    size, source = known
    found.values["--vocab-size"] = [str(size)]
    text = f"{size:,} entries ({source})"
    found.notes.append(f"The vocabulary is assumed to have {text}; model.vocab_size=N says another number.")
    return from_megatron_lm(found.words(), overrides, environment)


def _refuse_word_pieces(found: Understood) -> None:
    """Refuse a vocabulary without merges: it is of word pieces, so the program trains BERT or T5."""
    named = {"--merge-file", "--tokenizer-type", "--tokenizer-model"} & {*found.said}
    if "--vocab-file" in found.said and not named:
        problem = "is given without --merge-file: BERT's and T5's word pieces, of models that are no decoders alone."
        fix = "For GPT-2's BPE add --merge-file, for another tokenizer --tokenizer-type."
        raise SpecError(f"{WHERE}.--vocab-file", problem, fix)


def _unread(names: Sequence[str]) -> str:
    """Reason for names without value that are no variables."""
    is_number = any(name.startswith(("$((", "$[")) for name in names)
    return "Such arithmetic has no value here" if is_number else "The output of commands is not known"


def name_with_lines(name: str, uses: Mapping[str, Collection[int]]) -> str:
    """Write an unknown name as the script does, with the lines that use it."""
    lines = f" (line {', '.join(map(str, uses[name]))})" if uses.get(name) else ""
    return f"{restore_variables(unknown(name))}{lines}"


# --- defaults ----------------------------------------------------------------------------------------------


def _add_batch(found: Understood, devices: str) -> None:
    """
    Add the default of the global batch: one micro-batch per replica.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args.
    """
    if "--global-batch-size" in found.values or "--micro-batch-size" not in found.values or not devices.isdecimal():
        return
    ranks = prod(found.number(f"--{kind}-parallel-size", 1) for kind in ("tensor-model", "pipeline-model", "context"))
    batch = found.number("--micro-batch-size", 1) * max(1, int(devices) // ranks)
    found.values["--global-batch-size"] = [str(batch)]
    what = f"one micro-batch for each replica, {batch}, as Megatron-LM has it"
    found.notes.append(f"No argument says the global batch: {what}.")


FLASH = re.compile(r"--use-flash-attn(-\w+)?")


WITH_FLASH = "megatron-lm-0.8"
"""The oldest one of Megatron-LM whose attention is fused, which the entries before are not."""

DATED = re.compile(r"Megatron-LM-(2\d)([01]\d)\d\d\b")
"""Pai-Megatron-Patch's copies of Megatron-LM, by the day."""


def _import_on_release(found: Understood, entries: Mapping[str, str], environment: Mapping[str, str]) -> Imported:
    """On the release that only older options mean, where it runs on the device and takes what they say."""
    words = [f"{key}={value}" for key, value in entries.items()]
    is_said = not {"cluster", "cluster.framework"}.isdisjoint(entries)
    option, names = ("", ()) if is_said else _older_releases(found, environment)
    for name in names:
        if release_for(entries.get("cluster.device"), None, (name,)) is not None:
            with suppress(SpecError):
                imported = _import_with_vocabulary(found, [*words, f"cluster.framework={name}"], environment)
                note = f"{option} is of older releases: {name} is assumed; cluster.framework=NAME says another one."
                return imported.add_notes(note)
    return _import_with_vocabulary(found, words, environment)


def _older_releases(found: Understood, environment: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Sign of an older release, and entries of the catalog from the nearest."""
    if dated := DATED.search(environment.get("PYTHONPATH", "")):
        month = f"20{dated[1]}-{dated[2]}"
        since = {name: catalog.framework(name).since for name in catalog.frameworks() if name.startswith(PLAIN)}
        known = [name for name, date in since.items() if date <= month]
        return dated[0], (max(known, key=since.__getitem__),) if known else ()
    for whose, names, framework in DATA.older:
        rows = {one: [row.get("of") or "" for row in other_options().get(one, ())] for one in found.said}
        fits = [one for one, of in rows.items() if one in names or (whose and any(row.startswith(whose) for row in of))]
        if fits:
            pair = (WITH_FLASH, framework)
            return fits[0], pair if any(map(FLASH.fullmatch, found.said)) else pair[::-1]
    return "", ()


# --- options -----------------------------------------------------------------------------------------------


def understand(words: Iterable[str]) -> Understood:
    """
    Sort words into options of Megatron-LM, each once.

    Raises
    ------
    SpecError
        If an option belongs to a model that is not imported, or may be misspelled.
    """
    found, ignored, meant = Understood(), dict[str, list[str]](), list[tuple[str, list[str]]]()
    for name, values in translate_to_megatron(list(split_options(words))):
        found.said |= {name: [restore_variables(value) for value in values]}
        if not name:
            found.notes += values
            continue
        other = _other(name, values)
        if other is not None and other["meaning"] == "means":
            whole = " ".join(values)
            parts = (values if word == "{}" else [word.replace("{}", whole)] for word in other["why"].split())
            meant.append((name, [*chain.from_iterable(parts)]))
            if note := other.get("note"):
                found.notes.append(f"{name} {other['value']}: {note}.".replace(" :", ":"))
        elif other is not None:
            ignored.setdefault(other["why"], []).append(name)
        elif name in options():
            _take(found, options()[name], values)
            if not {options()[name].name} & {*found.values, *found.missing}:
                reason = "without influence, with values that are open or of another release"
                ignored.setdefault(reason, []).append(name)
        else:
            refuse_misspelled(name)
            found.strangers.append(restore_variables(name))
    for name, replaced in meant:
        for replacement, more in split_options(replaced):
            _merge(found, name, replacement, more)
    for reason, names in ignored.items():
        found.notes.append(f"Ignored ({reason}): {', '.join(sorted(set(names)))}.")
    if found.strangers:
        unknown = ", ".join(dict.fromkeys(found.strangers))
        found.notes.append(f"Not understood, no options that are known here: {unknown}.")
    return found


def _merge(found: Understood, spelling: str, name: str, values: list[str]) -> None:
    """Add an option of a row: lists are extended, and a value that the script gives itself is kept."""
    option = options()[name]
    if spelling == name or any(unknown_names(value) for value in values):
        _take(found, option, values)
        return
    old = found.values.get(name, [])
    several = option.nargs in ("+", "*")
    found.values[name] = [*old, *(value for value in values if value not in old)] if several else old or values


def _take(found: Understood, option: Option, values: list[str]) -> None:
    values = _trim_values(option, values)
    found.said[option.name] = [restore_variables(value) for value in values]
    names = unknown_names("".join(values))
    is_idle = option.in_import != "read" and (bool(names) or not _is_valid(option, values))
    if is_idle or (names and option.name in OF_THE_WHOLE):
        return
    if names:
        found.missing[option.name] = names
        return
    old = found.values.get(option.name)
    if old is not None and old != values:
        found.notes.append(f"{option.name} is given several times: {shown(' '.join(values))}, the last one, counts.")
    found.missing.pop(option.name, None)
    found.values[option.name] = values


def _trim_values(option: Option, values: list[str]) -> list[str]:
    """Drop blank values, and unknown ones at the end beyond the number that the option needs."""
    words = [value for value in values if value.strip()]
    most = {"0": 0, "": 1}.get(option.nargs)
    least = 1 if option.nargs in ("", "+") else int(option.nargs) if option.nargs.isdecimal() else 0
    while len(words) > least and not strip_unknown(words[-1]) and (most is None or len(words) > most):
        words.pop()
    return words


def _is_valid(option: Option, values: Sequence[str]) -> bool:
    with suppress(SpecError):
        option.value(values)
        return True
    return False


def _other(name: str, values: Sequence[str]) -> Mapping[str, str] | None:
    row = next((row for row in other_options().get(name, ()) if row["value"] in ("", " ".join(values))), None)
    if row is not None and row["meaning"] == "refused":
        raise SpecError(f"{WHERE}.{name}", f"{row['why']}.")
    return row


@cache
def other_options() -> Mapping[str, list[Mapping[str, str]]]:
    """
    Return options that an import does not read itself, with their rows, those for a single value first.

    Some have no influence on planning, with the reason (``ignored``), or are other spellings of options that are read
    (``means``), with ``{}`` for their values. Others belong to models or releases that are not imported (``refused``).
    ``others.csv`` has options of the parsers of megatron-core 0.14 to 0.19, ``forks.csv`` those of forks (``of``) and
    older releases; ``value`` limits a row to one value.
    """
    rows: dict[str, list[Mapping[str, str]]] = {}
    for row in (*read_rows("others.csv"), *read_rows("forks.csv")):
        rows.setdefault(row["option"], []).append(row)
    return {option: sorted(of_one, key=lambda row: not row["value"]) for option, of_one in rows.items()}
