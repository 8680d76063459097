"""``python -m benchmarks.recipes FOLDER``: makes the catalog's recipes of published tables of layouts."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.inputs import read_yaml
from benchmarks.measured_runs.architectures import Architecture, architectures, of_catalog
from benchmarks.measured_runs.columns import COLLECTED, JOB
from benchmarks.measured_runs.conversion import convert
from benchmarks.output import format_csv
from benchmarks.recipes.published import BRIDGE, DGXC, Published, read_published
from costmodel.models.patterns import COLUMNS, shape_of

CATALOG = Path(__file__).parents[2] / "costmodel" / "catalog" / "recipes"
MODELS = Path(__file__).parents[1] / "measured_runs" / "collected" / "models.yaml"

FILES = {BRIDGE: "megatron-bridge.csv", DGXC: "dgxc-benchmarking.csv"}

MODEL_NAMES = {
    "kimi_k2": "kimi-k2",
    "qwen3_next_80b_a3b": "qwen3-next-80b-a3b",
    "deepseek_v4_pro": "deepseek-v4-pro",
    "deepseek_v4_flash": "deepseek-v4-flash",
    "nemotron_3_5_lightning": "nemotron-3.5-lightning",
}
"""Models by their recipes' names, and by ours."""

SHARDINGS = {"none": "distributed", "zero3": "zero3", "": ""}
"""The column ``fsdp`` as a collected run's ``optimizer``: without FSDP both optimizers shard their states."""

GRAPH_PER_LAYER = "local (a graph per layer)"
GRAPHS = {"local:layer": GRAPH_PER_LAYER, "transformer_engine:layer": GRAPH_PER_LAYER}
"""Graphs as recipes spell them that collected runs spell otherwise."""

OWN = ("id", "kind", "source", "source_ref", "recipe", "releases", "scales")
LAST = ("not_modelled", "refused")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the catalog's tables, and say how many rows each has and why some are refused."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("folder", type=Path, help="where megatron_bridge.csv and dgxc.csv are")
    parser.add_argument("-o", "--output", type=Path, default=CATALOG, help="folder to write to (default: the catalog)")
    options = parser.parse_args(arguments)
    rows = recipe_rows(read_published(options.folder), read_yaml(MODELS))
    for publisher, file in FILES.items():
        own = [row for row in rows if row["source"] == publisher]
        (options.output / file).write_text(table(own), encoding="utf-8")
        print(f"{file}: {len(own)} layouts, {sum(bool(row['refused']) for row in own)} of them refused")
    for reason, count in Counter(row["refused"] for row in rows if row["refused"]).most_common():
        print(f"  {count}: {reason}")
    return 0


def recipe_rows(published: Sequence[Published], models: Mapping[str, Any]) -> list[dict[str, str]]:
    """
    Convert layouts to rows of the catalog, in the columns of measured runs.

    Parameters
    ----------
    published
        Layouts in their sources' words.
    models
        The collected ``models.yaml``.
    """
    known = architectures(models)
    converted = convert([_collected(number, one) for number, one in enumerate(published)], models).rows
    taken: Counter[str] = Counter()
    rows = []
    for one, explicit in zip(published, converted, strict=True):
        of = known.get(explicit["model"]) or of_catalog(explicit["model"])
        name = _identity(one, explicit, of)
        taken[name] += 1
        own = {
            "id": name if taken[name] == 1 else f"{name}-{taken[name]}",
            "source": one.publisher,
            "source_ref": one.where,
            "recipe": one.name,
            "releases": ";".join(one.releases),
            "scales": ";".join(map(str, one.scales)),
            "refused": f"cannot run as published: {one.cells['note']}" if one.cells["note"] else explicit["refused"],
            "model": _model_name(explicit["model"], of),
        }
        rows.append({**explicit, **own, **_shape(of)})
    return rows


def _collected(number: int, one: Published) -> dict[str, str]:
    """A layout as a collected run that nobody measured."""
    cells = one.cells
    graphs, sends_tokens = cells["cuda_graph"], int(cells["ep"] or 1) > 1
    return {
        **dict.fromkeys(COLLECTED, ""),
        **cells,
        "id": f"recipe {number}",
        "quality": "ok",
        "source": one.publisher,
        "date": _date(one),
        "framework": one.framework,
        "kind": "planned",
        "usable": "1",
        "gpu": cells["device"],
        "model": MODEL_NAMES.get(cells["model"], cells["model"]),
        "token_dispatcher": cells["token_dispatcher"] if sends_tokens else "",
        "comm_sms": cells["comm_sms"] if sends_tokens else "",
        "optimizer": SHARDINGS[cells["fsdp"]],
        "cuda_graph": GRAPHS.get(graphs, graphs),
        "memory_kind": "",
        "notes": "",
    }


def _date(one: Published) -> str:
    """Year and month of a container's number; a branch is newer than all."""
    year, _, month = one.framework.rpartition(" ")[2].partition(".")
    return f"20{year}-{month[:2]}" if year.isdecimal() else "9999"


def _identity(one: Published, explicit: Mapping[str, str], of: Architecture) -> str:
    device = one.cells["device"].partition("-")[0]
    release = next((name for name in reversed(one.releases) if name != "main"), "main")
    start = "" if one.publisher == BRIDGE else "dgxc-"
    precision = explicit["training.precision"]
    return f"{start}{_model_name(explicit['model'], of)}-{one.scales[0]}x{device}-{precision}-{release}"


def _model_name(key: str, of: Architecture) -> str:
    """The catalog's name where it has the model as it is."""
    return str(of.entry["base"]) if set(of.entry) - {"source"} == {"base"} else key


def _shape(of: Architecture) -> dict[str, str]:
    shape = shape_of(of.model) if of.model else None
    return {name: str(getattr(shape, name)) if shape else "" for name in COLUMNS}


def table(rows: Iterable[Mapping[str, str]]) -> str:
    """Rows as CSV, with the columns that some row fills."""
    rows = list(rows)
    columns = [*OWN, "model", *COLUMNS, *(name for name in JOB if name != "model"), *LAST]
    used = [name for name in columns if any(row.get(name) for row in rows)]
    return format_csv(used, rows)


if __name__ == "__main__":
    sys.exit(main())
