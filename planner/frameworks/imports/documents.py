"""Reading of YAML and JSON as other frameworks do (anchors, comments, trailing commas), and of the room's tables."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.megatron.options import read_table, read_word_lists
from planner.jobs.document import Plain, parse, read_text

ROOM = Path(__file__).parent
"""Folder of the room's tables, and of ``words.yaml``: lists and pairs of words that its modules look for."""

MOST_NODES = 20_000
MOST_LEVELS = 32
"""Levels of a document with expanded anchors."""

LONG = 80
"""Letters from which a plain scalar is text, and no number."""

LONGEST_PATH = 160
"""Letters of a path that messages show, from its end."""

COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')


def read_rows(path: str | Path) -> tuple[Mapping[str, str], ...]:
    """Read the rows of a table of imports, cells by column; they are shared and must not be changed."""
    return read_table(ROOM / path)


def read_words(module: str) -> SimpleNamespace:
    """Return the lists and pairs of words of a module of this room, by attribute; they must not be changed."""
    return read_word_lists(ROOM / "words.yaml")[module]


DATA = read_words("documents")


def read_yaml(text: str, source: str) -> Any:
    r"""
    Read a YAML document; anchors are expanded, and the last of duplicate entries counts.

    >>> read_yaml("base: &all {tp: 2, pp: 4}\nrun: {<<: *all, pp: 8}", "example")["run"]
    {'tp': 2, 'pp': 8}

    Raises
    ------
    SpecError
        If it is not YAML, or grows too large.
    """
    if not re.search(r"(?m)(^|[\s\[{,:-])[&*]\w|<<\s*:", text):
        return parse(text, source, last_counts=True)
    return read_tagged(text, source)


def read_tagged(text: str, source: str) -> Any:
    """
    Read a YAML document with expanded anchors and without its tags: ``!include FILE`` is text.

    >>> read_tagged("data: !include my.yaml", "example")
    {'data': 'my.yaml'}

    Raises
    ------
    SpecError
        As :func:`read_yaml`.
    """
    try:
        return _write_out(yaml.compose(text, Loader=yaml.SafeLoader), source, [0], 0)
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(source, f"is not YAML: {str(error).splitlines()[0][:120]}.") from None


def _write_out(node: yaml.Node | None, source: str, seen: list[int], level: int) -> Any:
    """Convert a node to plain data, with anchors expanded."""
    seen[0] += 1
    if seen[0] > MOST_NODES or level > MOST_LEVELS:
        raise SpecError(source, "is larger than any configuration once its anchors are written out.")
    if isinstance(node, yaml.SequenceNode):
        return [_write_out(item, source, seen, level + 1) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        whole: dict[str, Any] = {}
        for key, value in node.value:
            inner = _write_out(value, source, seen, level + 1)
            if key.tag.endswith(":merge"):
                for part in reversed(inner if isinstance(inner, list) else [inner]):
                    whole = {**(part if isinstance(part, dict) else {}), **whole}
            else:
                whole[str(key.value)] = inner
        return whole
    if not isinstance(node, yaml.ScalarNode):
        return None
    return parse(node.value, source) if node.style is None and len(node.value) < LONG else node.value


def read_json(text: str, source: str) -> Any:
    """
    Read a JSON document with comments and trailing commas, as DeepSpeed does.

    >>> read_json('{"a": "//", /* of b */ "b": [1, 2,], } # end', "example")
    {'a': '//', 'b': [1, 2]}

    Raises
    ------
    SpecError
        If it is not JSON, or has duplicate entries.
    """
    plain = LAST_COMMA.sub(lambda found: found[1] or "", COMMENT.sub(lambda found: found[1] or " ", text))

    repeated: list[tuple[dict[str, Any], str, str]] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content, names = dict(pairs), [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None) if len(content) < len(pairs) else None
        if twice is not None:
            repeated.append((content, twice, " and ".join(shown(value) for name, value in pairs if name == twice)))
        return content

    try:
        whole = json.loads(plain, object_pairs_hook=build)
        for content, name, values in repeated:
            above = next((path for one, path in _objects(whole) if one is content), "")
            raise SpecError(f"{above}{name}"[-LONGEST_PATH:], f"is written twice, as {values}.", "Keep one.", source)
    except (ValueError, RecursionError) as error:
        raise SpecError(source, f"is not JSON: {error}.") from None
    return whole


def _objects(value: Any, path: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the objects of a document, each with the beginning of its entries' paths."""
    yield value, path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        yield from _objects(inner, f"{path}{name}.")


INNERMOST = re.compile(r"\$\{([^${}]*)\}")

VARIABLE = re.compile(r"(?:oc\.env:)?([A-Za-z_]\w*)(?:[:,]\s*(.*)|\s*(\?\?.*))?", re.DOTALL)

PATH = re.compile(r"\.*[\w-]+(\.[\w-]+)*")

UNKNOWN = object()

"""Value of an unknown reference, or that only running a recipe would say; null is a known value."""

MOST_STEPS, LONGEST, MOST = 64, 4096, 1e15

"""Limits of nested references: their number, their length, and the size of a result."""

SUMS: Mapping[str, Callable[..., Any]] = {
    **{"multiply": lambda *values: prod(values), "divide": operator.truediv, "divide_floor": operator.floordiv},
    **dict.fromkeys(("sum", "add"), lambda *values: sum(values)),
    "divide_ceil": lambda left, right: -(-left // right),
}

"""Arithmetic resolvers that NeMo registers (nemo/utils/config_utils and launcher_scripts/main.py)."""


def flat_entries(content: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """
    Return entries by dotted name with their references resolved; unknown references stay as they are.

    >>> flat_entries({"a": {"b": 4, "c": "${multiply:3,${.b}}", "d": "${N:8}", "e": "${open}"}}, {"N": "2"})
    {'a.b': 4, 'a.c': 12, 'a.d': 2, 'a.e': '${open}'}

    Raises
    ------
    SpecError
        If references are circular.
    """
    return {name: resolve(value, name, content, given) for name, value in flatten(content).items()}


def flatten(content: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Return entries by dotted name, with unresolved references."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping) and value.get("_call_") is False:  # a type or a function, of NeMo-Run
            value = str(value.get("_target_"))
        flat |= flatten(value, f"{above}{name}.") if isinstance(value, Mapping) and value else {f"{above}{name}": value}
    return flat


def resolve(value: Any, name: str, content: Mapping[str, Any], given: Mapping[str, str]) -> Any:
    """Resolve the references of a value; a value that is one reference takes its type."""
    for _ in range(MOST_STEPS):
        if not isinstance(value, str) or len(value) > LONGEST:
            return value
        for found in INNERMOST.finditer(value):
            inner = _look_up(found[1].strip(), name, content, given)
            if inner is not UNKNOWN and not isinstance(inner, (Mapping, list)):
                is_whole = found.span() == (0, len(value))
                value = inner if is_whole else f"{value[: found.start()]}{text_of(inner)}{value[found.end() :]}"
                break
        else:
            return value
    raise SpecError(name, f"refers to itself: {shown(value)}.")


def _look_up(inner: str, name: str, content: Mapping[str, Any], given: Mapping[str, str]) -> Any:
    """Resolve the text between the braces: arithmetic, an entry, or a variable with its default."""
    function, colon, rest = inner.partition(":")
    if colon and function in SUMS:
        values = [read_plain(part) for part in rest.split(",")]
        if all(isinstance(one, (int, float)) and abs(one) < MOST for one in values):
            with suppress(TypeError, ArithmeticError):
                return SUMS[function](*values)
        return UNKNOWN
    entry = _entry(inner, name, content) if PATH.fullmatch(inner) else UNKNOWN
    variable = VARIABLE.fullmatch(inner)
    if entry is not UNKNOWN or variable is None:
        return entry
    default = variable[2]
    text = given.get(variable[1], default if default is None or not default.startswith("?") else None)
    return UNKNOWN if text is None else read_plain(text)


def _entry(path: str, name: str, content: Mapping[str, Any]) -> Any:
    """Return the entry of a path; leading dots are levels above."""
    plain = path.lstrip(".")
    dots = len(path) - len(plain)
    above = name.split(".")[: -dots or None] if dots else []
    for start in ("", *DATA.roots):
        entry: Any = content
        for part in [*above, *plain.removeprefix(start).split(".")]:
            entry = entry.get(part, UNKNOWN) if isinstance(entry, Mapping) else UNKNOWN
        if entry is not UNKNOWN:
            return entry
    return UNKNOWN


def read_plain(text: str) -> Plain:
    """
    Read a text as YAML; invalid YAML stays text.

    >>> read_plain("true"), read_plain("4096"), read_plain("null"), read_plain("a: [")
    (True, 4096, None, 'a: [')
    """
    with suppress(SpecError):
        return parse(text, "value")
    return text


def text_of(value: Any) -> str:
    """
    Write a value as a word.

    >>> text_of(True), text_of(None), text_of(1e-05), text_of(2048.0)
    ('true', 'null', '1e-05', '2048')
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value).strip()


def degree(value: object, where: str) -> int:
    """
    Return a whole number of at least 1.

    Raises
    ------
    SpecError
        If the value is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(where, f"expected a whole number of at least 1, got {value!r}.")
    return value


def read_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """Return the entries of the command with their values."""
    return dict(entry.partition("=")[::2] for entry in overrides)


MOST_FOLDERS = 8

"""Most folders above a file in which files that it names are searched, and most files that extend each other."""


class File(NamedTuple):
    """
    Configuration with the values that complete it.

    Parameters
    ----------
    content
        Document of the file.
    path
        Path of the file.
    overrides
        Entries of the job as ``key=value``.
    given
        Values of variables that it uses.
    """

    content: Mapping[str, Any]
    path: Path
    overrides: Sequence[str]
    given: Mapping[str, str]

    def flat(self, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return entries by dotted name, of this document or of another one with the same variables."""
        return flat_entries(self.content if content is None else content, self.given)

    def says(self, name: str) -> str | None:
        """Return the value that the command has for an entry; None: none."""
        return read_overrides(self.overrides).get(name)

    def find_file(self, name: str, under: Sequence[str] = ("",)) -> Path | None:
        """Return a file that this one names, next to it or under a folder above it; None: there is none."""
        plain = Path(os.path.normpath(name))
        folders = list(self.path.resolve().parents)[:MOST_FOLDERS] if ".." not in plain.parts else []
        places = (folder / start / plain for folder in folders for start in under)
        return next((place for place in places if os.path.isfile(place)), None)


def read_mapping(path: Path) -> dict[str, Any]:
    """
    Read the mapping in a file.

    Raises
    ------
    SpecError
        If the file is not YAML, or has no mapping.
    """
    return require_mapping(read_yaml(read_text(path), str(path)), str(path))


def require_mapping(content: Any, where: str) -> dict[str, Any]:
    """
    Return a document that is a mapping.

    Raises
    ------
    SpecError
        If it is none.
    """
    if not isinstance(content, dict):
        raise SpecError(where, f"expected a mapping, got {shown(content)}.")
    return content


ARCHITECTURE = {row["option"] for row in read_rows("architecture.csv")}
"""Options of the architecture, which a model by its name sets."""


def model_named(name: str) -> str | dict[str, Any] | None:
    """
    Return the entry ``model`` of a job for a name; None: unknown.

    >>> model_named("meta-llama/Llama-3.1-8B-Instruct"), model_named("llama3/70B"), model_named("my/model")
    ('llama3-8b', 'llama3-70b', None)
    """
    whole = name.strip().lower()
    plain = whole.rsplit("/", 1)[-1]
    for ending in (*DATA.recipes, *DATA.endings, *DATA.endings):
        plain = plain.removesuffix(ending)
    for spelling in (whole, plain, plain.replace("_", "-")):
        if spelling in catalog.model_names():
            return spelling
        if spelling in _models():
            text = _models()[spelling]
            return dict(yaml.safe_load(text)) if text.startswith("{") else model_named(text)
    return None


def require_model(name: str, where: str = "model") -> str | dict[str, Any]:
    """
    Return the entry ``model`` of a job for a name.

    Raises
    ------
    SpecError
        If it is empty or unknown.
    """
    found = model_named(name)
    if found is None:
        hint = "Add model=NAME, one of planner catalog models, or the path of its config.json."
        raise SpecError(where, f"{shown(name)} is no model that is known here." if name else "is not said.", hint)
    return found


@cache
def _models() -> Mapping[str, str]:
    """
    Return models by names of Hugging Face's hub without their owner, and by flavors of torchtitan (``name/flavor``).

    The models are those of the catalog, or descriptions for a job file (sizes of the models' own ``config.json``).
    """
    return {row["name"]: row["model"] for row in read_rows("models.csv")}


# --- vocabularies ------------------------------------------------------------------------------------------


PATCHED = "--patch-tokenizer-type"
"""Pai-Megatron-Patch's option; with it ``--extra-vocab-size`` adds entries (megatron_patch/tokenizer)."""


TIKTOKEN = 2**17
"""Vocabulary of ``TikTokenizer`` without ``--vocab-size`` (megatron/core/tokenizers, CustomTikTokenizer)."""


def vocabulary_of(options: Mapping[str, Sequence[str]]) -> tuple[int, str] | None:
    """
    Return the size of the vocabulary of Megatron-LM's options without ``--vocab-size``, and its source; None: unknown.

    ``tokenizers.csv`` has sizes by a part of an option's value; the longest match counts.

    >>> vocabulary_of({"--tokenizer-model": ["meta-llama/Llama-3.1-8B"]})[0]
    128256
    """
    options = {"--tokenizer-model": options.get("--tokenizer-name-or-path", ()), **options}
    kind = " ".join(options.get("--tokenizer-type", ()))
    if kind == "TikTokenizer":
        return TIKTOKEN, kind
    if not kind and "--vocab-file" in options and "--merge-file" in options:
        kind = "GPT2BPETokenizer"
    said = {**{name: " ".join(values) for name, values in options.items()}, "--tokenizer-type": kind}
    fitting = [row for row in read_rows("tokenizers.csv") if row["part"].lower() in said.get(row["option"], "").lower()]
    if not fitting:
        return None
    best = max(fitting, key=lambda row: (row["option"] == "--tokenizer-model", len(row["part"])))
    more = said.get("--extra-vocab-size", "") if best["option"] == PATCHED else ""
    return int(best["entries"]) + (int(more) if more.isdecimal() else 0), best["source"]


def default_vocabulary(options: Mapping[str, Sequence[str]]) -> tuple[int, str] | None:
    """Return the size that is assumed for an unknown tokenizer, and its source; None: the options name no tokenizer."""
    named = [value for name in DATA.tokenizer_options for value in options.get(name, ())]
    if not named:
        return None
    pieces = any("sentencepiece" in value.lower() or value.endswith("tokenizer.model") for value in named)
    return (32_000, "as Llama 2's pieces of sentences") if pieces else (TIKTOKEN, "2^17")
