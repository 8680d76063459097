"""The stages of a plan that differ, as a section."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from planner.report.section import Section

if TYPE_CHECKING:
    from costmodel.strategy import StageLayout, Strategy


def stages_sections(strategy: Strategy, of_best: str) -> Iterator[Section]:
    """What each rank holds, recomputes and offloads, equal neighbours in one row; nothing where stages are even."""
    if strategy.layout is None:
        return
    rows = [(rank, *_rank(strategy.layout, rank, strategy.pp)) for rank in range(strategy.pp)]
    merged = [list(group) for _, group in groupby(rows, key=lambda row: row[1:])]
    yield Section(
        title=f"Stages{of_best}",
        header=("ranks", "layers of its chunks", "recompute", "in full", "offload"),
        rows=tuple((_span(group[0][0], group[-1][0]), *group[0][1:]) for group in merged),
        notes=(
            "Chunks in the order of the model; the first begins with the embedding, the last ends with the head. In "
            "full: layers of the rank, the first ones of each chunk, that are recomputed whole.",
        ),
    )


def _rank(layout: StageLayout, rank: int, pp: int) -> tuple[str, str, str, str]:
    full = layout.full_layers[rank]
    return (
        " ".join(map(str, layout.layers[rank::pp])),
        layout.recompute[rank].text,
        str(full) if full else "-",
        "act" if layout.activation_offload[rank] else "none",
    )


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
