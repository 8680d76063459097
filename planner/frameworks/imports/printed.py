"""
Configurations that runs print and save: in a log among other lines, of several ranks and runs, and in checkpoints.

Megatron-LM prints its arguments by name (megatron/training/arguments.py, ``_print_args``), Megatron-Bridge YAML,
torchtitan and DeepSpeed JSON. Labels of launchers (``[rank0]:``, ``0: ``, ``worker-1: ``), times and colours are
skipped. From a checkpoint the text next to its pickles or in its zip is read, else arguments in a pickle, which is not
loaded.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from itertools import chain
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job, other_options
from planner.frameworks.imports.bridge.library import LAYERS, options_by_field
from planner.frameworks.imports.documents import flatten, model_named, read_overrides, read_rows, read_words, read_yaml
from planner.frameworks.imports.finish import cluster_notes, newest
from planner.frameworks.imports.tools.keys import Meaning, meaning_of
from planner.frameworks.imports.tools.readers import MODES, deepspeed_job, require_deepspeed, torchtitan_job
from planner.frameworks.megatron.bridge import DATA as BRIDGE
from planner.frameworks.megatron.options import TABLE, options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.megatron.releases import RELEASES
from planner.frameworks.megatron.releases import TABLE as RELEASED
from planner.jobs.cluster import read

DATA = read_words("printed")


HEADS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""First bytes of zips and pickles."""


LEVELS = 2
"""Folders above a file of a checkpoint in which its configuration may stand."""

MOST_OF_A_PICKLE = 8 << 20
MOST_BITS = 256

BROKEN = (pickle.PickleError, ValueError, TypeError, LookupError, AttributeError, EOFError, RuntimeError, OverflowError)
"""Errors of a pickle or a zip that is cut or no checkpoint."""


def is_checkpoint(path: Path) -> bool:
    """Tell whether a path is a folder, or a file of pickles by its name or its first bytes."""
    if path.is_dir() or path.suffix.lower() in (*DATA.saved, *DATA.pickles) or path.name in DATA.saved:
        return True
    with suppress(OSError), path.open("rb") as stream:
        return stream.read(4).startswith(HEADS)
    return False


def text_beside(path: Path) -> Path | None:
    """Return the file with the configuration of a checkpoint; None: there is none, or the path is of no checkpoint."""
    is_saved = path.suffix.lower() in DATA.saved or path.name in DATA.saved
    folders = _folders(path) if path.is_dir() else path.absolute().parents[:LEVELS] if is_saved else ()
    places = (folder / name for folder in folders for name in DATA.texts)
    return next((place for place in places if os.path.isfile(place)), None)


def arguments_inside(path: Path) -> tuple[Path, Mapping[str, Any]]:
    """
    Return a checkpoint's file, and the configuration in its zip: text, or Megatron-LM's arguments by their names.

    Raises
    ------
    SpecError
        If there is none, with what to give instead.
    """
    found = (sorted(folder.glob(name)) for folder in _folders(path) for name in DATA.with_arguments)
    for file in chain.from_iterable(found) if path.is_dir() else [path]:
        with suppress(OSError, BadZipFile, *BROKEN):
            content = _content_of_zip(file)
            if content:
                return file, content
    pickled = f"is {path.suffix or shown(path.name)}, a pickle; its folder has no"
    what = f"{'is a folder without' if path.is_dir() else pickled} {DATA.texts[0]} or {DATA.texts[1]}"
    problem = f"{what}, and it holds no arguments of Megatron-LM. Pickles are code and are not executed."
    written = "json.dump(vars(args), open('args.json', 'w'), default=str)"
    raise SpecError(str(path), problem, f"Give the log of the run's first minute, or write its arguments: {written}.")


def _folders(path: Path) -> Iterator[Path]:
    """Yield a checkpoint's folder, and those of its steps, newest first."""
    yield path
    yield from sorted(path.glob("iter_*"), reverse=True)


def _content_of_zip(path: Path) -> Mapping[str, Any] | None:
    with ZipFile(path) as archive:
        members = [name for name in archive.namelist() if name.endswith((*DATA.texts, "data.pkl"))]
        for member in sorted(members, key=lambda name: not name.endswith(DATA.texts)):
            with archive.open(member) as stream:
                content = stream.read(MOST_OF_A_PICKLE + 1)
            if len(content) > MOST_OF_A_PICKLE:
                continue
            if not member.endswith("data.pkl"):
                text = content.decode()
                read = json.loads(text) if member.endswith(".json") else read_yaml(text, f"{path}: {member}")
                return read if isinstance(read, Mapping) else None
            whole = _Reader(BytesIO(content)).load()
            found = whole.get("args") if isinstance(whole, dict) else None
            given = found.state if isinstance(found, Named) and found.name == "argparse.Namespace" else found
            if isinstance(given, dict):
                return {str(name): _write(value) for name, value in given.items()}
    return None


# --- pickles -----------------------------------------------------------------------------------------------


class Named:
    """
    Object of a class or of a function's call, or as a type the class itself; none of them is imported or called.

    Its values go to ``arguments`` and ``state``, whatever the class would do with them.
    """

    name = ""
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __new__(cls, *_: Any) -> Named:
        """Return an object without values."""
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Keep the values that its attributes would get."""
        self.state = state

    def __setitem__(self, *_: Any) -> None:
        """Drop a value that it would hold."""

    append = extend = add = __setitem__


class _Reader(pickle._Unpickler):
    """Reader of a pickle to which each class and function is a name alone: nothing is imported, nothing is called."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of that name."""
        return type("Named", (Named,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        """Return a tensor of the archive by its kind."""
        return Named(pid)


def _write(value: Any) -> str:
    """Write a value as Megatron-LM prints it; of a class and a member of an enumeration its name."""
    if isinstance(value, list | tuple):
        return str([one if isinstance(one, bool | int | float | str | None) else _write_one(one) for one in value])
    return _write_one(value)


def _write_one(value: Any) -> str:
    if isinstance(value, type):
        return str(getattr(value, "name", "..."))
    if isinstance(value, Named):
        kind, chosen = value.name.rpartition(".")[2], [*getattr(value, "arguments", ())]
        members = dict(enumerate(DATA.members.get(kind, ()), 1))
        return f"{kind}.{members.get(chosen[0], chosen[0]) if len(chosen) == 1 else None}"
    is_plain = value is None or isinstance(value, bool | float | str)
    return str(value) if is_plain or (isinstance(value, int) and value.bit_length() < MOST_BITS) else "..."


DATE = r"(?:\d{4}[-/]\d\d[-/]\d\d[T ]|\d{8} |[A-Z][a-z]{2} [ \d]\d )"
TIME = rf"(?:{DATE}?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|1\d{{9}}(?:\.\d+)?)"
COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
STAMP = re.compile(rf"^((?:\S{{1,60}} ){{0,4}}?(?:\S{{0,60}}[:|>\]])?)(?<![\w.-])\[?{TIME}\]?(?:: ?|[ \t|]|(?=\[))")
"""Time in front of a line, after up to four words of a launcher; without it all lines of a rank begin alike."""


EDGE = re.compile(r"^(.*?)-{4,} (end of )?arguments -{4,}\s*$")
ENTRY = re.compile(r"^(.*?) ?(?<!\S)([A-Za-z_]\w*(?= \.+ )|[A-Za-z_]\w{47,}) \.* ?(.*)$")
"""A name, dots up to 48 letters, and its value."""
IN_YAML = re.compile(r"\s|- |[a-z_]\w*:( |$)|$")
BEGINS = {kind: re.compile(pattern) for kind, pattern in DATA.begins.items()}
IN_JSON = re.compile(r"\s|[\]}]")
"""Begin of a further line of an object, which is indented; other lines of the log stand in between."""

OF_PYTHON = re.compile(r'("(?:\\.|[^"\\\n])*")|\b(?:inf|(nan))\b')
"""Texts, and numbers as DeepSpeed prints them: infinite, which JSON calls Infinity, and none."""

LABEL = re.compile(r"[:|>\]] ?")

MOST_NAMED = 3
LONGEST = 20_000
"""Most lines of a JSON object, with lines of other ranks between them."""


@dataclass(slots=True)
class Printed:
    """
    Configuration in a log.

    Parameters
    ----------
    kind
        Framework of the configuration, as in ``Launch``.
    label
        Label in front of its lines: the rank, where the launcher prints it.
    line
        Line on which it begins.
    content
        Its values; for Megatron-LM texts by name.
    others
        Values of names that differ between ranks whose lines have no labels.
    ended
        Blocks inside it that have ended, as they may be of a restart after a run that died in its block.
    """

    kind: str
    label: str
    line: int
    content: dict[str, Any] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    ended: list[Printed] = field(default_factory=list)

    def add(self, name: str, value: str) -> None:
        """Add a value; another one of the same name is of another rank."""
        if self.content.setdefault(name, value) != value:
            self.others[name] = value


def find_printed(text: str, source: str, run: str = "") -> Printed | None:
    """
    Find the configuration that a log prints; None: it prints none.

    Parameters
    ----------
    text
        The log.
    source
        Name of the log in messages.
    run
        Number of the run, in a log of several.

    Raises
    ------
    SpecError
        If its block is incomplete, if ranks disagree, or if the log has several runs and none is chosen.
    """
    lines = [STAMP.sub(r"\1", COLOUR.sub("", line)) for line in re.split(r"\r\n|\n|\r", text)]
    found = [*_blocks(lines, source), *_documents(lines, source)]
    kind = next((kind for kind in KINDS if any(one.kind == kind for one in found)), None)
    if kind is None:
        return None
    runs = _runs([one for one in found if one.kind == kind], source)
    distinct = [one for place, one in enumerate(runs) if all(_differences(one, other) for other in runs[:place])]
    if run and not (run.isdecimal() and 0 < int(run) <= len(runs)):
        raise SpecError("run", f"is {shown(run)}; {source} has {len(runs)}.", "Give --set run=N.")
    if not run and len(distinct) > 1:
        places = ", ".join(f"{number} on line {one.line}" for number, one in enumerate(runs, 1))
        differing = "; ".join(_name_differences(_differences(runs[0], distinct[1])))
        problem = f"has {len(runs)} runs ({places}) of different configurations: {differing}."
        raise SpecError(source, problem, "Say which one: --set run=1.")
    return runs[int(run) - 1 if run else 0]


# --- Megatron-LM's arguments -------------------------------------------------------------------------------


def _blocks(lines: Sequence[str], source: str) -> Iterator[Printed]:
    """Yield blocks of arguments; ranks without labels print into one, which begins and ends once for each of them."""
    opened, last = dict[str, list[Printed]](), dict[str, Printed]()
    for number, line in enumerate(lines, 1):
        edge, entry = EDGE.match(line), ENTRY.match(line)
        if edge is not None and not edge[2]:
            label = edge[1].strip()
            opened.setdefault(label, []).append(Printed("megatron", label, number))
        elif edge is not None:
            blocks = opened.get(edge[1].strip())
            if not blocks:
                problem = "ends a block of arguments that begins before the log."
                raise SpecError(f"{source}, line {number}", problem, "Give the log from its first line on.")
            block = blocks.pop()
            if blocks:
                blocks[0].ended.append(block)
            else:
                last[block.label] = _whole(block, source)
                yield block
        elif entry is not None:
            for block in opened.get(entry[1].strip(), ()):
                block.add(entry[2], entry[3].strip())
    for block in (blocks[0] for blocks in opened.values() if blocks):
        yield from (_whole(one, source) for one in block.ended)
        before = last.get(block.label)
        if block.ended or (before is not None and not _differences(block, before, {*block.content})):
            continue
        missing = [name for name in DATA.needed if name not in block.content]
        behind = "".join(f" after {name}" for name in [*block.content][-1:])
        lacking = f": {', '.join(missing)} are missing" if missing else ""
        problem = f"begins the block of arguments, which is cut{behind}{lacking}."
        raise SpecError(f"{source}, line {block.line}", problem, "Give the log up to 'end of arguments'.")


def _whole(block: Printed, source: str) -> Printed:
    """Return a complete block, or refuse one of ranks that disagree."""
    place = f"{source}, line {block.line}"
    differing = {name: (block.content[name], value) for name, value in block.others.items() if is_read(name)}
    if differing:
        raise SpecError(place, f"is of ranks that disagree: {'; '.join(_name_differences(differing))}.")
    block.content = whole_arguments(block.content, place)
    return block


def _differences(one: Printed, other: Printed, names: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ and may be read, by name; of all names, or of some."""
    both = names or {**one.content, **other.content}
    pairs = {name: (one.content.get(name), other.content.get(name)) for name in both}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return {name: pair for name, pair in differing.items() if one.kind != "megatron" or is_read(name)}


def _name_differences(differing: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    for name, (one, other) in list(differing.items())[:MOST_NAMED]:
        yield f"{name} is {shown(one)} and {shown(other)}"
    if len(differing) > MOST_NAMED:
        yield f"{len(differing) - MOST_NAMED} more"


def _runs(found: Sequence[Printed], source: str) -> list[Printed]:
    """Return one configuration per run, or refuse runs whose ranks disagree."""
    by_label: dict[str, list[Printed]] = {}
    for one in found:
        by_label.setdefault(one.label, []).append(one)
    runs = max(by_label.values(), key=len)
    for number, one in ((number, one) for own in by_label.values() for number, one in enumerate(own)):
        differing = _differences(runs[number], one)
        if differing:
            ranks = " and ".join(f"{shown(rank.label)} (line {rank.line})" for rank in (runs[number], one))
            problem = f"has ranks that disagree, {ranks}: {'; '.join(_name_differences(differing))}."
            raise SpecError(source, problem)
    return runs


# --- YAML and JSON -----------------------------------------------------------------------------------------


def _documents(lines: Sequence[str], source: str) -> Iterator[Printed]:
    for number, line in enumerate(lines, 1):
        for kind, pattern in BEGINS.items():
            if (begin := pattern.match(line)) is None:
                continue
            label, place = begin[1], f"{source}, line {number}"
            if kind == "bridge":
                content = dict(read_yaml("\n".join(_yaml_lines(lines[number - 1 :], label)), place))
            else:
                label, content = _object(line[begin.end() :], lines[number : number + LONGEST], label, place)
            yield Printed(kind, label.strip(), number, content)


def _yaml_lines(lines: Iterable[str], label: str) -> Iterator[str]:
    for line in lines:
        if not line.startswith(label.rstrip()):
            continue
        inner = line.removeprefix(label)
        if not IN_YAML.match(inner) or re.match(r"-{4,}", inner):
            return
        yield inner


def _object(first: str, following: Sequence[str], prefix: str, place: str) -> tuple[str, dict[str, Any]]:
    """Read a JSON object whose further lines have the launcher's label alone; torchtitan 0.1 prints Python."""
    if first.startswith("{'"):
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            first = json.dumps(ast.literal_eval(first))
    ends = [found.end() for found in LABEL.finditer(prefix)]
    for label in [prefix[:end] for end in reversed(ends)] + [""]:
        own = [line.removeprefix(label) for line in following if line.startswith(label)]
        text = "\n".join([first, *filter(IN_JSON.match, own)])
        try:
            text = OF_PYTHON.sub(lambda found: found[1] or ("null" if found[2] else "Infinity"), text)
            return label, json.JSONDecoder(parse_float=_read_number).raw_decode(text)[0]
        except (ValueError, RecursionError):
            continue
    raise SpecError(place, "begins a configuration in JSON that is cut.", "Give all lines of it.")


def _read_number(text: str) -> float:
    """A number; DeepSpeed prints whole ones above 1,000 as 2.048000e+03 (ScientificNotationEncoder)."""
    value = float(text)
    return int(value) if "e+" in text and value.is_integer() else value


# --- devices and software -----------------------------------------------------------------------------------

DEVICE = re.compile(r"NVIDIA ((?:GB|GH|[ABHLV])\d{2,3}[\w-]*(?: [A-Z0-9][\w.-]*){0,4})")


def cluster_of(text: str, kind: str) -> dict[str, str]:
    """Return entries of the cluster in a log: its device, where it names exactly one, and the release."""
    named = {known.device if (known := _find_device(name)) is not None else "" for name in set(DEVICE.findall(text))}
    found = {"cluster.device": named.pop()} if len(named) == 1 and named != {""} else {}
    stacks = {"megatron": ("megatron-core",), "bridge": ("megatron-bridge",)}.get(kind, (kind,))
    for stack, pattern in DATA.versions:
        said = set(re.findall(pattern, text, re.IGNORECASE))
        if stack in stacks and len(said) == 1:
            found["cluster.framework"] = f"{stack}-{said.pop()}"
    return found


def _find_device(name: str) -> Any:
    """Return the catalog's device for a name of the driver's tools, without further words after it."""
    parts = name.split()
    known = (catalog.find_unique_device(" ".join(parts[:end])) for end in range(len(parts), 0, -1))
    return next(filter(None, known), None)


WHERE = "model_spec.model"


def model_from_layers(spec: Mapping[str, Any]) -> tuple[Any, str]:
    """
    Return the model that a specification describes, and the dispatcher of its tokens.

    A model of the catalog with the same layers has its name.

    Raises
    ------
    SpecError
        If it has a part that no size of a job file describes.
    """
    model, named = spec.get("model"), model_named(f"{spec.get('name')}/{spec.get('flavor')}")
    if not isinstance(model, Mapping):
        return named, "standard"
    try:
        entry, sent_by = _entries(model)
        described = read(entry, Path())
    except (KeyError, TypeError, AttributeError, IndexError):
        problem = f"has layers of {shown(spec.get('name'))} that are not read."
        raise SpecError(WHERE, problem, "Add model=NAME.") from None
    known = read(named, Path()) if named is not None else None
    sizes = attrgetter("hidden_size", "vocab_size", "layers", "tied_embeddings")
    is_known = known is not None and sizes(known) == sizes(described)
    return named if is_known and not model.get("mtp_layers") else entry, sent_by


def _entries(model: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the entries of a job for a model, and the dispatcher of its tokens."""
    texts = [json.dumps(layer, default=str) for layer in model["layers"]]
    try:
        meaning_of("titan_model", flatten(model))
        meant = {text: meaning_of("titan_layer", flatten(json.loads(text))).entries for text in {*texts}}
    except SpecError as error:
        raise SpecError(f"{WHERE}: {error.where}", error.problem, DATA.hint) from None
    layers = [meant[text] for text in texts]
    have_experts = ["num_experts" in layer for layer in layers]
    first = have_experts.index(True) if True in have_experts else len(layers)
    if not all(have_experts[first:]):
        raise SpecError(WHERE, "has dense layers after MoE layers, which is not read.", DATA.hint)
    whole, alike = {**layers[0], **layers[-1]}, [layers[0]] * first + [layers[-1]] * (len(layers) - first)
    if layers != alike or not layers[0].items() <= whole.items():
        raise SpecError(WHERE, "has layers of several sizes, which are not read.", DATA.hint)
    sent_by = str(whole.pop("given.sent_by", "standard"))
    whole.setdefault("ffn_hidden_size", whole.get("expert_ffn_hidden_size"))
    more = {"first_dense_layers": first} if 0 < first < len(layers) else {}
    mtp = {"mtp_layers": len(model["mtp_layers"])} if model.get("mtp_layers") else {}
    sizes = {"hidden_size": model["dim"], "num_layers": len(layers), "num_heads": whole["num_heads"]}
    ends = {"vocab_size": model["vocab_size"], "tied_embeddings": bool(model["enable_weight_tying"])}
    return {**sizes, **ends, **whole, **more, **mtp}, sent_by


def arguments_job(content: Mapping[str, Any], source: str, overrides: Sequence[str]) -> Imported:
    """
    Import arguments of Megatron-LM by name.

    Raises
    ------
    SpecError
        If some are missing, or as ``megatron_job``.
    """
    texts = whole_arguments(content, source)
    stage = texts.get("zero_stage", "0").partition(".")[0]
    is_sharded = texts.get("deepspeed") == "True" and stage in ("1", "2", "3")
    sharding = {"strategy.sharding": DATA.zero[int(stage)]} if is_sharded else {}
    entries = {"cluster.num_devices": texts["world_size"], **sharding}
    imported = megatron_job(words_of(texts), [*_entry_words(entries), *overrides], {})
    return imported.add_notes(*_replacement_notes(entries, overrides))


def titan_job(content: Mapping[str, Any], overrides: Sequence[str]) -> Imported:
    """
    Import the configuration that torchtitan saves: its sections, and since 0.3 the specification of the model.

    Raises
    ------
    SpecError
        If its layers are converted to a precision that is not saved, or as ``torchtitan_job``.
    """
    spec = content.get("model_spec")
    if not isinstance(spec, Mapping):
        return torchtitan_job(content, overrides)
    if spec.get("converters"):
        problem = "is not empty: the precision of layers is not saved."
        raise SpecError("model_spec.converters", problem, "Give its Python.")
    given = content.get("activation_checkpoint") or {}
    if not isinstance(given, Mapping):
        raise SpecError("activation_checkpoint", f"expected a section, got {shown(given)}.")
    kind = next((kind for field, kind in DATA.of_modes.items() if field in given), "FullAC")
    recomputed = {**given, **MODES[kind]} if given else {"mode": "none"}
    model = {"name": spec.get("name"), "flavor": spec.get("flavor")}
    more = {"framework": newest("torchtitan-"), "model": model, "activation_checkpoint": recomputed}
    whole = {name: value for name, value in content.items() if name != "model_spec"} | more
    described, sent_by = (None, "standard") if "model" in read_overrides(overrides) else model_from_layers(spec)
    if sent_by != "standard" and isinstance(whole.get("parallelism"), Mapping):
        whole["parallelism"] = {**whole["parallelism"], "expert_parallel_comm_backend": sent_by}
    return torchtitan_job(whole, overrides, described=described)


def import_printed(text: str, source: str, overrides: Sequence[str], run: str) -> Imported | None:
    """
    Import the configuration in a log, with the devices and the software that it names; None: it prints none.

    Raises
    ------
    SpecError
        As ``find_printed``, and as the import of the framework's configuration.
    """
    found = find_printed(text, source, run)
    if found is None:
        return None
    entries, vocabulary = dict(cluster_of(text, found.kind)), set(PADDED.findall(text))
    if found.kind == "deepspeed":
        entries |= _replicas(found.content, text)
    elif found.kind == "megatron" and found.content.get("vocab_size", "None") == "None" and len(vocabulary) == 1:
        entries["model.vocab_size"] = vocabulary.pop()
    where = f"{source}, line {found.line}" if found.kind == "bridge" else source
    imported = KINDS[found.kind](found.content, where, [*_entry_words(entries), *overrides])
    note = f"Read from {Path(source).name}, line {found.line}, as it was printed."
    return imported.add_notes(note, *_replacement_notes(entries, overrides))


def _entry_words(entries: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in entries.items()]


def kind_of(content: Any) -> str | None:
    """Return the kind of a document that runs print or save, by its marks; None: it is none that is known by them."""
    names = {*content} if isinstance(content, Mapping) else set()
    kinds = [str(kind) for kind, marks in DATA.marks.items() if names.issuperset(marks)]
    return "bridge" if names and content.get("_target_") == DATA.target else next(iter(kinds), None)


def _replacement_notes(printed: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Remarks on what the run printed and the command says otherwise."""
    said = read_overrides(overrides)
    differing = {name for name in {*printed} & {*said} if printed[name] != said[name]}
    text = "{}: the run had {}; the command's {} counts instead."
    return [text.format(name, printed[name], said[name]) for name in sorted(differing)]


def _replicas(config: Mapping[str, Any], text: str) -> dict[str, str]:
    """Return the devices of a DeepSpeed engine, which prints its replicas as world_size."""
    said = set(re.findall(r"  world_size \.+ (\d+)", text))
    tensors = config.get("tensor_parallel")
    width = tensors.get("autotp_size", 1) if isinstance(tensors, Mapping) else 1
    return {"cluster.num_devices": str(int(said.pop()) * int(width))} if len(said) == 1 else {}


# --- arguments by their names, and the container of Megatron-Bridge ----------------------------------------

MOST_MISSING = 6
"""Missing names in a message."""


@cache
def _rows() -> Mapping[str, Mapping[str, str]]:
    """
    Return the names that Megatron-LM prints (core 0.14 to main of 2026-08-22, and older ones), each with its option.

    ``defaults`` are values without an effect, separated by ``;``, or ``=`` with the name whose value is the default.
    ``why`` is the source of names without an option.
    """
    return {row["name"]: row for row in read_rows("names.csv")}


def name_of(option: str | None) -> str | None:
    """Return the printed name of an option; None: there is none."""
    return next((row["name"] for row in _rows().values() if option and row["option"] == option), None)


def is_read(name: str) -> bool:
    """Tell whether a name may hold a value that an import reads."""
    option = _rows()[name]["option"] if name in _rows() else f"--{name.replace('_', '-')}"
    known = options().get(option)
    return name == "world_size" or option in other_options() or (known is not None and known.in_import == "read")


def words_of(content: Mapping[str, str]) -> list[str]:
    """
    Convert arguments by name to words of a command line, without defaults.

    >>> words_of({"bf16": "True", "add_bias_linear": "False", "recompute_modules": "['mlp', 'moe']", "fp8": "None"})
    ['--bf16', '--disable-bias-linear', '--recompute-modules', 'mlp', 'moe']
    """
    # Releases of 2022 and 2023 print one layer, their default, where no method counts any.
    unset = {"recompute_num_layers"} if content.get("recompute_method", "None") == "None" else set()
    return [word for name in content if name not in unset for word in _words(name, content[name], content)]


def _words(name: str, text: str, content: Mapping[str, str]) -> list[str]:
    row = _rows().get(name) or {"option": f"--{name.replace('_', '-')}", "defaults": "", "why": ""}
    option, defaults = options().get(row["option"]), row["defaults"].split(";")
    values = _values(text, is_single=option is not None and option.nargs not in ("+", "*"))
    derived = [content.get(default[1:]) for default in defaults if default.startswith("=")]
    if row["why"] or text in ("None", *defaults, *derived) or " ".join(values) in defaults:
        return []
    if (option is None or option.nargs == "0") and text in ("True", "False"):
        return [row["option"]] if (text == "False") == ("True" in defaults) else []
    return [row["option"], *values]


def _values(text: str, *, is_single: bool) -> list[str]:
    """Read printed values of Python: a list, a type of torch, a member of an enumeration."""
    plain = re.sub(r"<\w+\.(\w+): [^>]*>", r"\1", text)
    inner = plain[1:-1].split(", ") if re.fullmatch(r"[\[(].*[\])]", plain) else [plain]
    names = [re.sub(r"^[A-Z]\w+\.(?=[a-z]\w*$)", "", part.strip("'\"")) for part in inner]
    values = [DTYPES.get(name, name) for name in names]
    if is_single and plain[:1] in ("[", "("):
        return ["[{}]".format(",".join(values)) if plain[:1] == "[" else ",".join(values)]
    return values


DTYPES = {f"torch.{name}": short for name, short in (("float32", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16"))}

PADDED = re.compile(r"padded vocab \(size: (\d+)\)")


def whole_arguments(content: Mapping[str, Any], place: str) -> dict[str, str]:
    """
    Return the texts of arguments, if all that every release prints are there and the degrees fill the world size.

    Raises
    ------
    SpecError
        If some are missing.
    """
    texts = {name: str(one.get("value", one) if isinstance(one, Mapping) else one) for name, one in content.items()}
    newer = DATA.since_2024[:1] if {*DATA.since_2024} & {*texts} else ()
    since = DATA.before[: {*DATA.before}.isdisjoint(texts)]
    since = DATA.since_2023 if newer or {*DATA.known_by} & {*texts} else since
    needed = dict.fromkeys((*DATA.needed, *since, *newer, *_names_of_release(texts)))
    missing = [name for name in needed if name not in texts]
    if missing:
        more = f" and {len(missing) - MOST_MISSING} more" if len(missing) > MOST_MISSING else ""
        named = f"{', '.join(missing[:MOST_MISSING])}{more}"
        raise SpecError(place, f"has arguments without {named}: some are missing.", "Give all of them.")
    degrees = ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel", "data_parallel")
    world = prod(_count(texts, f"{name}_size") for name in degrees)
    if "data_parallel_size" in texts and world != _count(texts, "world_size"):
        problem = f"has degrees of {world} ranks, and world_size {texts['world_size']}: some are missing."
        raise SpecError(place, problem, "Give all of them.")
    return texts


def _names_of_release(content: Mapping[str, str]) -> list[str]:
    """
    Return the names of options that are read and that every release prints which may have printed these names.

    The newest name tells the release, or a state of the branch since the release before it. Nothing is known of
    releases before the second one of the parsers' table.
    """
    spans = {row["option"]: (row["since"], row["until"]) for row in read_rows(RELEASED) if not row["choice"]}
    names = {row["dest"]: row["flags"].split()[0] for row in read_rows(TABLE) if row["dest"] in _rows()}
    always = (RELEASES[0], RELEASES[-1])
    known = {name: tuple(map(RELEASES.index, spans.get(option, always))) for name, option in names.items()}
    newest = max((known[name][0] for name in content if name in known), default=0)
    every = [name for name, (since, until) in known.items() if newest and since < newest <= until]
    return [name for name in every if options()[names[name]].in_import == "read" and name not in DATA.unprinted]


def _count(content: Mapping[str, str], name: str) -> int:
    text = content.get(name, "1")
    return int(text) if text.isdecimal() else 1


def container_job(content: Mapping[str, Any], place: str, overrides: Sequence[str]) -> Imported:
    """
    Import a configuration with all of its fields.

    Raises
    ------
    SpecError
        If a section is missing, if a field that decides a degree, the stages, recomputation or offloading is not known,
        or as ``megatron_job``.
    """
    missing = [name for name in DATA.whole_sections if not isinstance(content.get(name), Mapping)]
    if missing:
        raise SpecError(place, f"is a configuration without {', '.join(missing)}: it is cut.", "Give all lines of it.")
    found: dict[str, Any] = {}
    strange: list[str] = []
    for section in DATA.costly_sections:
        fields = content.get(section)
        for name, value in fields.items() if isinstance(fields, Mapping) else ():
            if name in DATA.together:
                continue
            argument, value = _argument(section, name, _plain(value))
            if argument is None:
                strange += _strange(f"{section}.{name}", name, value)
            elif value is not None:
                found[argument] = value
    found |= dict(_more(found, content))
    newer = newest("megatron-bridge-")
    entries = [] if "cluster.framework" in read_overrides(overrides) else [f"cluster.framework={newer}"]
    imported = megatron_job(words_of({name: str(value) for name, value in found.items()}), [*entries, *overrides], {})
    notes = [*cluster_notes(newer, None, overrides)]
    length, data = found.get("seq_length"), content.get("dataset")
    given = data.get("sequence_length", data.get("seq_length")) if isinstance(data, Mapping) else None
    if given not in (None, length):
        notes.append(f"dataset.sequence_length is {given}; read is model.seq_length, {length}.")
    if strange:
        notes.append(f"Not read, no options of Megatron-LM: {', '.join(strange)}.")
    return imported.add_notes(*notes)


def _plain(value: Any) -> Any:
    """Return a plain value; of a function, a type or a member of an enumeration its name."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    target = str(value.get("_target_")) if isinstance(value, Mapping) else ""
    members, chosen = DATA.members.get(target.rpartition(".")[2]), value.get("_args_") if target else None
    if members is not None and isinstance(chosen, list) and chosen and chosen[0] in range(1, len(members) + 1):
        return members[chosen[0] - 1]
    return value if not target else target if target in DTYPES else target.rpartition(".")[2]


def _argument(section: str, name: str, value: Any) -> tuple[str | None, Any]:
    """Return the argument for a field, and its value."""
    option = options_by_field().get(f"{section}.{name}")
    if option in BRIDGE.negated and name_of(option) != name and isinstance(value, bool):
        return name_of(option), not value
    known = DATA.renamed.get(name, name)
    return known if known in _rows() else name_of(option), value


def _strange(path: str, name: str, value: Any) -> list[str]:
    if value in (None, False) or isinstance(value, Mapping):
        return []
    if any(part in name for part in DATA.decides) and name not in DATA.harmless:
        problem = f"is {shown(value)}, a field that is not known here, and may say what matters."
        raise SpecError(path, problem, "Take it out.")
    return [path]


def _more(found: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield arguments that several fields determine together."""
    model = content["model"]
    functions = {f"model.{name}": _plain(model.get(name)) for name in DATA.together[:2]}
    yield from meaning_of("container", {**found, **functions}).entries.items()
    if found.get("num_query_groups") not in (None, found.get("num_attention_heads")):
        yield "group_query_attention", True
    layout = found.get("pipeline_model_parallel_layout")
    if isinstance(layout, list):
        stages = [stage if isinstance(stage, list) else [stage] for stage in layout]
        if strange := [layer for stage in stages for layer in stage if layer not in LAYERS]:
            problem = f"has {shown(strange[0])}; expected {', '.join(LAYERS)}."
            raise SpecError("model.pipeline_model_parallel_layout", problem)
        yield "pipeline_model_parallel_layout", "|".join("".join(LAYERS[layer] for layer in stage) for stage in stages)


KINDS: Mapping[str, Callable[[Any, str, Sequence[str]], Imported]] = {
    **{"megatron": arguments_job, "bridge": container_job},
    "torchtitan": lambda content, _, overrides: titan_job(content, overrides),
    "deepspeed": lambda content, place, given: deepspeed_job(require_deepspeed(content, place), Meaning(), given),
}
"""Import function of each kind of configuration that runs print or save."""
