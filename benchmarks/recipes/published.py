"""Rows of published recipes in their sources' words: each distinct layout once, with the releases that have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy.metrics import grouped
from benchmarks.inputs import read_rows
from costmodel.catalog.releases import release_of

BRIDGE, DGXC = "Megatron-Bridge", "dgxc-benchmarking"

ORIGIN = {
    BRIDGE: ("release", "container", "file", "name"),
    DGXC: (
        *("tag", "script", "framework", "container", "bridge_release", "bridge_commit", "bridge_describe"),
        *("same_in_release", "recipe_file", "recipe_name", "variant", "overrides", "kind", "model_changes"),
    ),
}
"""Columns that say where a recipe stands; all others are the recipe."""

SIZES = ("n_gpus", "gbs")

CONTAINERS = {"v0.2.1": "25.11.01", "v0.4.1": "26.04", "HEAD": "main"}
"""
Containers of releases for which the table names none.

dgxc-benchmarking pins for container 25.11.01 what agrees with v0.2.1 in all recipes, for 26.04 what agrees with v0.4.1
as with v0.4.0; HEAD is the branch of 2026-08-22.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """
    One layout as it was published.

    Parameters
    ----------
    publisher
        The project.
    framework
        Its software, as a collected run names it, with the release.
    releases
        Containers that have it, oldest first.
    cells
        Model, device, work, layout and features by column; of several numbers of devices the smallest.
    scales
        Numbers of devices for which it is published, with the same batch per device.
    where, name
        File and line, and name, of the newest release.
    """

    publisher: str
    framework: str
    releases: tuple[str, ...]
    cells: Mapping[str, str]
    scales: tuple[int, ...]
    where: str
    name: str


def read_published(folder: Path) -> list[Published]:
    """
    Read every distinct layout of both tables, of dgxc-benchmarking those that Megatron-Bridge's release does not have.

    Parameters
    ----------
    folder
        Folder of ``megatron_bridge.csv`` and ``dgxc.csv``.
    """
    bridge = list(_distinct(_bridge_rows(folder / "megatron_bridge.csv")))
    known = {(_layout(one), release) for one in bridge for release in one.releases}
    rows = (row for row in _dgxc_rows(folder / "dgxc.csv") if (_layout(row), row.releases[0]) not in known)
    return [*bridge, *_distinct(rows)]


def _layout(one: Published) -> tuple[str, ...]:
    """A layout by what two sources share of its columns, whatever the number of devices."""
    per_device = int(one.cells["gbs"]) / int(one.cells["n_gpus"])
    return (*(f"{name}={cell}" for name, cell in one.cells.items() if name not in SIZES), f"{per_device:.9g}")


def _bridge_rows(path: Path) -> Iterator[Published]:
    for row in read_rows(path):
        release = row["container"] or CONTAINERS[row["release"]]
        yield Published(
            publisher=BRIDGE,
            framework=f"Megatron-Bridge {release}",
            releases=(release,),
            cells=_cells(row, BRIDGE),
            scales=(int(row["n_gpus"]),),
            where=f"{row['release']} {row['file']}",
            name=row["name"],
        )


def _dgxc_rows(path: Path) -> Iterator[Published]:
    for row in read_rows(path):
        if row["kind"] != "pretrain":
            continue
        release = row["container"].removesuffix(".00")
        software = "Megatron-Bridge" if row["framework"] == "megatron_bridge" else "NeMo 2"
        for devices, batch in zip(row["n_gpus"].split(";"), row["gbs"].split(";"), strict=True):
            yield Published(
                publisher=DGXC,
                framework=f"{software} {release}",
                releases=(release,),
                cells={**_cells(row, DGXC), "n_gpus": devices, "gbs": batch},
                scales=(int(devices),),
                where=f"{row['tag']} {row['script']}",
                name=row["recipe_name"],
            )


def _cells(row: Mapping[str, str], publisher: str) -> dict[str, str]:
    return {name: cell for name, cell in sorted(row.items()) if name not in ORIGIN[publisher]}


def _distinct(rows: Iterable[Published]) -> Iterator[Published]:
    """Each layout once: all its releases and scales, the file and name of the newest, the cells of the smallest."""
    for found in grouped(rows, lambda row: (row.framework.split(" ")[0], *_layout(row))).values():
        newest = max(found, key=lambda one: _number(one.releases[0]))
        smallest = min(found, key=lambda one: one.scales)
        yield Published(
            publisher=newest.publisher,
            framework=newest.framework,
            releases=tuple(sorted({one.releases[0] for one in found}, key=_number)),
            cells=smallest.cells,
            scales=tuple(sorted({one.scales[0] for one in found})),
            where=newest.where,
            name=newest.name,
        )


def _number(release: str) -> tuple[float, ...]:
    found = release_of(f"container-{release}")
    assert found is not None, release
    return found.number
