"""Fitted constants into the catalog's files: the numbers, and where they come from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

import costmodel
from benchmarks.accuracy.profile_text import with_numbers
from planner.measure.calibrate.constants import Constant, calibration_fields

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
        What was fitted, to which values, and the standard deviations of their logarithms that remain.
    rows
        Measured rows by calibration, and by framework.
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
    seen = rows[constant.calibration or constant.framework]
    of = f"{seen} rows" if seen else "no rows: the prior"
    return f"{what}prior {constant.prior:.3g} +- {constant.sigma:.0%} ({constant.source}), after {of} +- {width:.1%}"


def _text(origins: Sequence[str]) -> str:
    """The origin of the numbers."""
    return f"{MARK}: {'; '.join(dict.fromkeys(origins))}"
