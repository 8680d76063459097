"""Ranks that measure: a process each, with one thread, which wait for orders and answer them together."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from costmodel.errors import SpecError

ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "MALLOC_TOP_PAD_": str(2**26),
}
"""
Environment of processes that measure: one thread, and an allocator that keeps what is freed, as that of GPUs does.

By default the GNU C library hands large blocks back to the system, and the next step pays for each page of them again:
3 to 10 % of its time. PyTorch's Performance Tuning Guide recommends allocators that keep them.
"""

Work: TypeAlias = Callable[[Any, int], Any]
"""What a rank makes of an order, and of its number; a function that processes can hand over."""

Answered: TypeAlias = Callable[[str, Any, int], list[Any]]
"""What the first so many ranks answer to an order; the text says in a message which one it was."""

PATIENCE_SECONDS = 10
"""How long a process has to end."""


@contextmanager
def rank_processes(number: int, work: Work) -> Iterator[Answered]:
    """
    Processes that do what they are handed; more than one are a process group of torch over gloo.

    Parameters
    ----------
    number
        Of ranks.
    work
        What each does with an order.

    Raises
    ------
    SpecError
        If one of them dies.
    """
    os.environ.update(ENVIRONMENT)  # read by the library as a process begins
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pipes = []
        for rank in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(rank, number, f"{folder}/store", work, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join, PATIENCE_SECONDS)
            pipes.append(stack.enter_context(ours))

        def answered(name: str, order: Any, ranks: int) -> list[Any]:
            for pipe in pipes[:ranks]:
                pipe.send(order)
            try:
                return [pipe.recv() for pipe in pipes[:ranks]]
            except EOFError:
                raise SpecError(name, "the process of a rank has died; its last words are above.") from None

        yield answered


def _rank(rank: int, number: int, store: str, work: Work, pipe: Any) -> None:
    """The life of a process: an order, its answer, the next one."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    if number > 1:
        distributed.init_process_group("gloo", rank=rank, world_size=number, store=distributed.FileStore(store, number))
    try:
        while True:
            pipe.send(work(pipe.recv(), rank))
    except EOFError:
        pass
    finally:
        if number > 1:
            distributed.destroy_process_group()
