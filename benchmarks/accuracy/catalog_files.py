"""Fitted constants into the catalog's files: the numbers, and where they come from."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

import costmodel
from costmodel.errors import SpecError
from planner.measure.calibrate.constants import Constant, calibration_fields

WIDTH = 116


def with_numbers(text: str, numbers: Mapping[str, float], sources: Mapping[str, str]) -> str:
    r"""
    The text of a YAML file with other numbers.

    Parameters
    ----------
    text
        The file; lists are of mappings with a ``name``.
    numbers
        New values by dotted path; a missing last entry of a block mapping is added to it.
    sources
        New texts of entries of the mapping ``sources``.

    Raises
    ------
    SpecError
        If a path leads nowhere.

    >>> print(with_numbers("profile:  # fitted\n  a: 1.0\n  b: {c: 2.0}\n", {"profile.b.c": 3.25}, {}))
    profile:  # fitted
      a: 1.0
      b: {c: 3.25}
    <BLANKLINE>
    """
    for path, number in numbers.items():
        text = _with_scalar(text, path.split("."), _shown(number))
    for key, source in sources.items():
        text = _with_source(text, key, source)
    return text


def _shown(number: float) -> str:
    """Four digits, spelled so that every YAML parser reads a number."""
    brief = f"{number:.4g}"
    mantissa, _, exponent = brief.partition("e")
    if not exponent:
        return brief if "." in brief else f"{brief}.0"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"


def _with_scalar(text: str, path: list[str], scalar: str) -> str:
    node: yaml.Node | None = yaml.compose(text)
    for depth, part in enumerate(path):
        inner = _entry(node, part)
        if inner is None and isinstance(node, yaml.MappingNode) and not node.flow_style:
            if depth == len(path) - 1:
                return _with_lines(text, node, f"{part}: {scalar}\n")
            if depth == 0 and len(path) == 2:
                return _with_section(text, f"{part}:\n  {path[1]}: {scalar}\n")
        if inner is None:
            raise SpecError(".".join(path), "is not in the file.")
        node = inner
    if not isinstance(node, yaml.ScalarNode):
        raise SpecError(".".join(path), "is no number in the file.")
    return text[: node.start_mark.index] + scalar + text[node.end_mark.index :]


def _entry(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode):
        named = (item for item in node.value if getattr(_entry(item, "name"), "value", None) == name)
        return next(named, None)
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == name), None)
    return None


def _with_lines(text: str, mapping: yaml.MappingNode, lines: str) -> str:
    """One more entry at the end of a block mapping."""
    key, _ = mapping.value[0]
    end = len(text.rstrip()) if mapping.end_mark.index >= len(text) else mapping.end_mark.index
    head, tail = text[:end].rstrip(), text[end:].lstrip("\n")
    indented = textwrap.indent(lines, " " * key.start_mark.column)
    return f"{head}\n{indented}{tail}"


def _with_section(text: str, section: str) -> str:
    """One more entry of the whole file, in front of its sources."""
    at = text.index("\nsources:") + 1 if "\nsources:" in text else len(text)
    head = text[:at] if text[:at].endswith("\n") else f"{text[:at]}\n"
    return f"{head}{section}{text[at:]}"


def _with_source(text: str, key: str, source: str) -> str:
    """One entry of ``sources`` as a folded block."""
    lines = textwrap.wrap(source, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    block = f"{key}: >-\n" + "".join(f"  {line}\n" for line in lines)
    sources = _entry(yaml.compose(text), "sources")
    if not isinstance(sources, yaml.MappingNode):
        return _with_section(text, f"sources:\n{textwrap.indent(block, '  ')}")
    if _entry(sources, key) is None:
        return _with_lines(text, sources, block)
    entry = re.compile(rf"^  {re.escape(key)}:.*\n(?:    .*\n|\n)*", re.MULTILINE)
    start = text.index("\nsources:") + 1
    return text[:start] + entry.sub(lambda _: textwrap.indent(block, "  "), text[start:], count=1)


CATALOG = Path(costmodel.__file__).parent / "catalog"

MARK = "fitted by benchmarks.accuracy.fit"


def write_catalog(
    constants: Sequence[Constant],
    values: Sequence[float],
    widths: Sequence[float],
    rows: Counter[str],
    *,
    assumed: Mapping[Constant, float],
    folder: Path = CATALOG,
) -> None:
    """
    Write every constant into the file of its calibration or of its framework.

    Parameters
    ----------
    constants, values, widths
        Fitted constants, their values, and the standard deviations of their logarithms that remain.
    rows
        Measured rows by calibration, by calibration and size of the model (``hopper 4096x128``), and by framework.
    assumed
        Constants of frameworks that were not fitted, and what the fit took them for: where a file says otherwise, from
        a fit to other rows, it says that afterwards.
    folder
        The catalog.
    """
    numbers: dict[Path, dict[str, float]] = defaultdict(dict)
    origins: dict[tuple[Path, str], list[str]] = defaultdict(list)
    for constant, value, width in zip(constants, values, widths, strict=True):
        if constant.framework:
            path = folder / "frameworks" / f"{constant.framework}.yaml"
            numbers[path].update({f"factors.{field}": value for field in constant.fields})
            origins[path, f"factors.{constant.fields[0]}"].append(_origin(constant, "", width, rows))
            continue
        path = folder / "calibrations" / f"{constant.calibration}.yaml"
        for field in calibration_fields(constant):
            numbers[path][f"constants.{field}"] = value
            origins[path, field.partition(".")[0]].append(_origin(constant, field, width, rows))
    for path, of_file in numbers.items():
        sources = {key: _text(texts) for (where, key), texts in origins.items() if where == path}
        path.write_text(with_numbers(path.read_text(encoding="utf-8"), of_file, sources), encoding="utf-8")
    for constant, value in assumed.items():
        _write_assumed(constant, value, folder / "frameworks" / f"{constant.framework}.yaml")


def _write_assumed(constant: Constant, value: float, path: Path) -> None:
    """A factor that was not fitted; a file without it says 1."""
    text = path.read_text(encoding="utf-8")
    factors = yaml.safe_load(text).get("factors", {})
    different = [field for field in constant.fields if factors.get(field, 1.0) != value]
    if different:
        source = f"prior {constant.prior:.3g} ({constant.source}); not fitted: {value:.3g} in the fit of the others"
        numbers = {f"factors.{field}": value for field in different}
        path.write_text(with_numbers(text, numbers, dict.fromkeys(numbers, source)), encoding="utf-8")


def _origin(constant: Constant, field: str, width: float, rows: Counter[str]) -> str:
    last = field.rpartition(".")[2]
    of_dtype = "16 bits: " if last in ("bf16", "fp16") else f"{last}: "
    what = of_dtype if "." in field else ""
    whose = f"{constant.calibration} {constant.size}" if constant.size else constant.calibration
    seen = rows[whose or constant.framework]
    of = f"{seen} rows" if seen else "no rows: the prior"
    return f"{what}prior {constant.prior:.3g} +- {constant.sigma:.0%} ({constant.source}), after {of} +- {width:.1%}"


def _text(origins: Sequence[str]) -> str:
    """The origin of the numbers."""
    return f"{MARK}: {'; '.join(dict.fromkeys(origins))}"
