"""Memory that a search has freed, back to the system."""

from __future__ import annotations

import ctypes


def release_freed_memory() -> None:
    """
    Give back to the system what the C library keeps of freed memory.

    glibc raises its thresholds with the largest array that is freed, then keeps up to 64 MB at the top of the heap
    (mallopt(3), M_MMAP_THRESHOLD): a process that plans many jobs would hold what the largest of them took. It takes a
    hundredth of a second. Other libraries have no such call, and nothing happens.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library without a name
        return
    trim(0)
