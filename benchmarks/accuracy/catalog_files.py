"""Fitted constants into the catalog's files: the numbers, and where they come from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import costmodel
from costmodel import catalog
from planner.calibration.constants import DTYPES, Constant, read, source_key
from planner.calibration.profile_text import with_numbers

CATALOG = Path(costmodel.__file__).parent / "catalog"
MARK = "fitted by benchmarks.accuracy.fit"


def write_catalog(
    constants: Sequence[Constant], values: Sequence[float], widths: Sequence[float], rows: Counter[str]
) -> None:
    """
    Write every constant into the files of its devices or of its software stack.

    Parameters
    ----------
    constants, values, widths
        What was fitted, to which values, and the standard deviations of their logarithms that remain.
    rows
        Measured rows by device of the catalog, and by software stack.
    """
    numbers: dict[Path, dict[str, float]] = defaultdict(dict)
    origins: dict[tuple[Path, str], list[str]] = defaultdict(list)
    for constant, value, width in zip(constants, values, widths, strict=True):
        for name in constant.devices:
            path = CATALOG / "devices" / f"{name}.yaml"
            for field in constant.fields:
                if read(catalog.device(name), field) is not None:
                    numbers[path][field] = value * constant.units.get(name, 1.0)
                    origins[path, source_key(field)].append(_origin(constant, field, width, rows))
        if constant.stack:
            path = CATALOG / "software" / f"{constant.stack}.yaml"
            numbers[path].update({f"factors.{field}": value for field in constant.fields})
            origins[path, f"factors.{constant.fields[0]}"].append(_origin(constant, "", width, rows))
    for path, of_file in numbers.items():
        sources = {key: _text(path, key, texts) for (where, key), texts in origins.items() if where == path}
        path.write_text(with_numbers(path.read_text(encoding="utf-8"), of_file, sources), encoding="utf-8")


def _origin(constant: Constant, field: str, width: float, rows: Counter[str]) -> str:
    last = field.rpartition(".")[2]
    of_dtype = "16 bits: " if last in ("bf16", "fp16") else f"{last}: "
    what = of_dtype if last in DTYPES or field.startswith("networks.") else ""
    seen = [name for name in (*constant.devices, constant.stack) if rows[name]]
    of = f"{sum(rows[name] for name in seen)} rows of {', '.join(seen)}" if seen else "no rows: the prior"
    return f"{what}prior {constant.prior:.3g} +- {constant.sigma:.0%} ({constant.source}), after {of} +- {width:.1%}"


def _text(path: Path, key: str, origins: Sequence[str]) -> str:
    """The origin of the numbers; what the file says of a network besides stays in front."""
    fitted = f"{MARK}: {'; '.join(dict.fromkeys(origins))}"
    if not key.startswith("networks."):
        return fitted
    before = catalog.device(path.stem).sources.get(key, "").partition(f"; {MARK}")[0]
    return f"{before}; {fitted}"
