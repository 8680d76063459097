"""The section on the memory of each pipeline rank, and on the ranks that lack memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from planner.report.section import Section, gib
from planner.report.strategies import ranks_text

if TYPE_CHECKING:
    from planner.report.records.plan import MemoryRecord, RankRecord
    from planner.report.records.setting import SettingRecord

MOST_RANK_ROWS = 10
"""Rows of a memory table; longer pipelines are represented by a few ranks, the JSON has all."""

MOST_PARTS = 3
"""Largest parts of the memory of a rank that a sentence names."""


def memory_section(
    setting: SettingRecord,
    memory: MemoryRecord,
    of_plan: str = "",
    *,
    most_rows: int = MOST_RANK_ROWS,
    notes: Iterable[str] = (),
) -> Section:
    """Build the table of the memory of pipeline ranks, of representative ones where there are too many rows."""
    ranks = memory.ranks
    parts = [name for name in ranks[0].bytes if any(rank.bytes[name] for rank in ranks)]
    shows_host = any(rank.host_memory_bytes for rank in ranks)
    header = (
        "ranks",
        "layers",
        *(HEADINGS.get(name, (name, ""))[0] for name in parts),
        "total",
        "free",
        *(["host mem"] * shows_host),
    )

    def cells(rank: RankRecord) -> tuple[str, ...]:
        return (
            str(rank.num_layers),
            *(gib(rank.bytes[name]) for name in parts),
            gib(rank.peak_memory_bytes),
            gib(rank.headroom_bytes),
            *([gib(rank.host_memory_bytes)] * shows_host),
        )

    grouped = [(key, list(group)) for key, group in groupby(ranks, key=cells)]
    rows = [(ranks_text(group[0].rank, group[-1].rank), *key) for key, group in grouped]
    if len(rows) > most_rows:
        rows = [(str(rank.rank), *cells(rank)) for rank in _representative(ranks)]
    return Section(
        title=f"Memory{of_plan} by pipeline rank, GiB per GPU",
        header=header,
        rows=tuple(rows),
        notes=(_legend(parts), *_memory_notes(setting, memory, omitted=len(grouped) > most_rows), *notes),
    )


HEADINGS = {
    "gradients": ("grads", ""),
    "optimizer": ("optim", "optimizer states"),
    "activations": ("activ", "saved activations"),
    "logits": ("logits", "saved by head and loss"),
    "working": ("work", "the layer being computed"),
    "gathered": ("gather", "unsharded weights of that layer"),
    "buffers": ("buf", "embedding copies and workspaces"),
    "runtime": ("runtime", "CUDA context, communicators, fragmentation"),
}
"""Short headings of parts of the memory, with an explanation where the heading needs one."""


def _legend(parts: Sequence[str]) -> str:
    known = (HEADINGS[name] for name in parts if name in HEADINGS)
    return f"{'; '.join(f'{short}: {meaning}' for short, meaning in known if meaning)}."


def _representative(ranks: Sequence[RankRecord]) -> Iterator[RankRecord]:
    """Choose ranks for a table: the first two, the middle, the last two, the fullest and the slowest."""
    last = len(ranks) - 1
    fullest = max(ranks, key=lambda rank: rank.peak_memory_bytes).rank
    slowest = max(ranks, key=lambda rank: rank.microbatch_seconds).rank
    chosen = {0, 1, len(ranks) // 2, last - 1, last, fullest, slowest}
    return (ranks[index] for index in sorted(chosen) if 0 <= index <= last)


def _memory_notes(setting: SettingRecord, memory: MemoryRecord, *, omitted: bool) -> Iterator[str]:
    reserve, capacity = setting.job.memory_headroom_bytes, setting.cluster.memory_bytes
    wanted = f"; plans keep {gib(reserve)} GiB of them free (search.memory_headroom_gib)" if reserve else ""
    yield f"A GPU has {gib(capacity)} GiB{wanted}."
    chance = memory.chance_to_fit
    within = f"{chance.interval_probability:.0%}: {' to '.join(map(gib, chance.peak_memory_interval_bytes))}"
    lacking = memory.peak_memory_bytes + reserve - capacity
    if lacking > 0:
        yield f"{gib(lacking)} GiB are missing on the fullest rank."
    peak = f"peak {gib(memory.peak_memory_bytes)} GiB ({within})"
    yield f"Chance that the fullest rank fits: {chance.share:.0%}, by {chance.basis}; {peak}."
    fast = memory.chance_fast
    yield f"Chance that it is fast, without retries of PyTorch's allocator: {fast.share:.0%}; {fast.basis}."
    reserved = " to ".join(map(gib, chance.reserved_interval_bytes))
    yield (
        f"PyTorch counts {gib(memory.allocated_bytes)} GiB of it as allocated; reserved where there is room: "
        f"{gib(memory.reserved_bytes)} GiB ({reserved})."
    )
    if memory.host_memory_bytes:
        yield f"A GPU's share of the host memory is {gib(setting.cluster.host_memory_bytes_per_device)} GiB."
    if any(rank.port_bytes for rank in memory.ranks):
        most = max(memory.ranks, key=lambda rank: rank.port_bytes)
        yield f"A GPU copies {gib(most.port_bytes)} GiB to its host in a step, and as much back (rank {most.rank})."
    if memory.host_headroom_bytes < 0:
        yield f"{gib(-memory.host_headroom_bytes)} GiB of it are missing on the fullest rank."
    if omitted:
        yield f"Shown of {len(memory.ranks)} ranks: the ends, the middle, the fullest, the slowest; the JSON has all."


def missing_sections(setting: SettingRecord, memory: MemoryRecord) -> Iterator[Section]:
    """Build the memory section with notes on the memory that is missing; none where all ranks fit."""
    notes = tuple(missing_notes(setting, memory))
    if notes:
        yield memory_section(setting, memory, notes=notes)


def missing_notes(setting: SettingRecord, memory: MemoryRecord) -> Iterator[str]:
    """Describe the ranks that lack memory, and the largest parts of the fullest one."""
    available_bytes = setting.cluster.memory_bytes - setting.job.memory_headroom_bytes
    short = [rank for rank in memory.ranks if rank.peak_memory_bytes > available_bytes]
    if not short:
        return
    fullest = max(short, key=lambda rank: rank.peak_memory_bytes)
    parts = sorted(fullest.bytes.items(), key=lambda part: -part[1])[:MOST_PARTS]
    texts = ", ".join(f"{name} {gib(nbytes)}" for name, nbytes in parts if nbytes)
    where = f" Most is missing on rank {fullest.rank}, whose" if len(memory.ranks) > 1 else " Its"
    yield f"Memory is missing on {_short_text(short, len(memory.ranks))}.{where} largest parts are {texts} GiB."


def _short_text(short: list[RankRecord], num_ranks: int) -> str:
    if len(short) == num_ranks:
        return f"all {num_ranks} pipeline ranks" if num_ranks > 1 else "the only pipeline rank"
    runs = groupby(enumerate(short), key=lambda pair: pair[1].rank - pair[0])  # constant where ranks follow each other
    spans = [[rank for _, rank in run] for _, run in runs]
    return "pipeline ranks " + ", ".join(ranks_text(span[0].rank, span[-1].rank) for span in spans)
