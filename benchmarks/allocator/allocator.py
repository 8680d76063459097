"""
PyTorch's caching allocator, block by block, without a device.

References
----------
PyTorch 2, ``c10/cuda/CUDACachingAllocator.cpp`` (recalled): ``round_size``, ``get_allocation_size``,
``get_free_block``, ``should_split``, ``free_block``, ``release_cached_blocks``, ``try_allocate_expandable_block``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass

MIB = 2**20

MIN_BLOCK = 512
"""``kMinBlockSize``: sizes are rounded up to it."""

SMALL_SIZE, SMALL_BUFFER = MIB, 2 * MIB
"""``kSmallSize``, ``kSmallBuffer``: requests up to the first share segments of the second."""

LARGE_BUFFER, MIN_LARGE = 20 * MIB, 10 * MIB
"""``kLargeBuffer``, ``kMinLargeAlloc``: requests below the second share segments of the first."""

ROUND_LARGE = 2 * MIB
"""``kRoundLarge``: segments of larger requests are rounded up to it."""


@dataclass(eq=False, slots=True)
class Block:
    """
    A stretch of a segment.

    Parameters
    ----------
    address, size
        In bytes; blocks are ordered by size, then by address, as the allocator's sets are.
    before, after
        Neighbours in the segment.
    is_free
        True if no tensor occupies it.
    """

    address: int
    size: int
    before: Block | None = None
    after: Block | None = None
    is_free: bool = True

    def __lt__(self, other: Block) -> bool:
        return (self.size, self.address) < (other.size, other.address)


class Allocator:
    """
    Memory that a device has reserved and allocated as tensors come and go.

    Parameters
    ----------
    expandable
        ``expandable_segments:True`` of ``PYTORCH_CUDA_ALLOC_CONF``.
    capacity
        Bytes of memory; segments that are free are given back before more is asked for than there is: a retry, for
        which the device waits.
    """

    def __init__(self, *, expandable: bool, capacity: float = float("inf")):
        self.expandable, self.capacity = expandable, capacity
        self.allocated = self.reserved = self.most_allocated = self.most_reserved = self.retries = 0
        self._free: dict[Hashable, list[Block]] = {}
        self._ends: dict[Hashable, Block] = {}
        self._live: dict[Hashable, tuple[Block, Hashable]] = {}
        self._next_address = 0

    def allocate(self, name: Hashable, nbytes: float, *, stream: Hashable = "compute") -> None:
        """
        Give a tensor its memory; free blocks of other streams are not for it.

        Raises
        ------
        MemoryError
            If there is not enough.
        """
        size = max(-(-int(nbytes) // MIN_BLOCK) * MIN_BLOCK, MIN_BLOCK)
        pool = (stream, size <= SMALL_SIZE)
        block = self._found(pool, size) or self._mapped(pool, size)
        if self._splits(pool, block, size):
            self._split(pool, block, size)
        block.is_free = False
        self._live[name] = (block, pool)
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)

    def free(self, name: Hashable) -> None:
        """Take a tensor's memory back: its block is merged with free neighbours and stays reserved."""
        block, pool = self._live.pop(name)
        self.allocated -= block.size
        block.is_free = True
        self._insert(pool, self._merged(pool, block))

    def size_of(self, name: Hashable) -> int:
        """Bytes of a tensor's block."""
        return self._live[name][0].size

    def empty_cache(self) -> None:
        """Give back segments of which nothing is in use, and of expandable ones whole free pages."""
        for pool, blocks in self._free.items():
            for block in list(blocks):
                if self.expandable:
                    self._unmap(pool, block)
                elif block.before is None and block.after is None:
                    blocks.remove(block)
                    self.reserved -= block.size

    def _found(self, pool: Hashable, size: int) -> Block | None:
        """The smallest free block that is large enough, the first in memory of several."""
        blocks = self._free.setdefault(pool, [])
        place = bisect_left(blocks, Block(address=-1, size=size))
        return blocks.pop(place) if place < len(blocks) else None

    def _mapped(self, pool: Hashable, size: int) -> Block:
        """Memory that was not reserved before."""
        return self._grown(pool, size) if self.expandable else self._segment(pool, size)

    def _segment(self, pool: Hashable, size: int) -> Block:
        if size <= SMALL_SIZE:
            segment = SMALL_BUFFER
        else:
            segment = LARGE_BUFFER if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE
        self._reserve(segment)
        self._next_address += segment
        return Block(address=self._next_address, size=segment)

    def _grown(self, pool: Hashable, size: int) -> Block:
        """The end of the pool's one segment, by as many pages as the request lacks behind a free end."""
        page = SMALL_BUFFER if size <= SMALL_SIZE else LARGE_BUFFER
        end = self._ends.get(pool)
        has_free_end = end is not None and end.is_free
        lacking = size - (end.size if end is not None and has_free_end else 0)
        more = -(-lacking // page) * page
        self._reserve(more)
        if end is not None and has_free_end:
            if end in self._free[pool]:
                self._free[pool].remove(end)
            end.size += more
            return end
        self._next_address += more
        block = Block(address=self._next_address, size=more, before=end)
        if end is not None:
            end.after = block
        self._ends[pool] = block
        return block

    def _reserve(self, nbytes: int) -> None:
        if self.reserved + nbytes > self.capacity:
            self.retries += 1
            self.empty_cache()
        if self.reserved + nbytes > self.capacity:
            raise MemoryError(f"{nbytes} bytes beyond {self.reserved} reserved, {self.allocated} allocated")
        self.reserved += nbytes
        self.most_reserved = max(self.most_reserved, self.reserved)

    def _splits(self, pool: Hashable, block: Block, size: int) -> bool:
        is_small = size <= SMALL_SIZE
        remaining = block.size - size
        return remaining >= MIN_BLOCK if is_small or self.expandable else remaining > SMALL_SIZE

    def _split(self, pool: Hashable, block: Block, size: int) -> None:
        rest = Block(address=block.address + size, size=block.size - size, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        if self._ends.get(pool) is block:
            self._ends[pool] = rest
        self._insert(pool, rest)

    def _merged(self, pool: Hashable, block: Block) -> Block:
        for other in (block.before, block.after):
            if other is None or not other.is_free:
                continue
            self._free[pool].remove(other)
            first, second = (other, block) if other is block.before else (block, other)
            first.size += second.size
            first.after = second.after
            if second.after is not None:
                second.after.before = first
            if self._ends.get(pool) is second:
                self._ends[pool] = first
            block = first
        return block

    def _insert(self, pool: Hashable, block: Block) -> None:
        insort(self._free.setdefault(pool, []), block)

    def _unmap(self, pool: Hashable, block: Block) -> None:
        """Whole free pages go; what is left of the block stays, the segment's other blocks where they are."""
        page = SMALL_BUFFER if isinstance(pool, tuple) and pool[1] else LARGE_BUFFER
        pages = max(block.size - 2 * page, 0) // page * page
        if pages:
            self._free[pool].remove(block)
            block.size -= pages
            self.reserved -= pages
            self._insert(pool, block)
