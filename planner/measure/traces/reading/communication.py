"""Rules, as data, that tell from a name whether an event communicates."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from costmodel.catalog.files import read

RULES = "communication.yaml"
"""File in the catalog."""


@cache
def _rules() -> dict[str, Any]:
    rules: dict[str, Any] = read(RULES)
    return rules


@cache
def _patterns(of: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((rule["library"], re.compile(rule["pattern"])) for rule in _rules()[of])


@cache
def _operations() -> dict[str, str]:
    """Operations by the letters of their spellings."""
    return {letters: name for name, others in _rules()["operations"].items() for letters in others}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def operation_of(name: str) -> str:
    """
    Return our name of an operation; an unknown name is returned unchanged.

    >>> operation_of("_allgather_base"), operation_of("AllReduce"), operation_of("fly")
    ('all_gather', 'all_reduce', 'fly')
    """
    return _operations().get(_letters(name), name)


def sends_nothing(name: str) -> bool:
    """
    True where PyTorch's operation on a process group sends nothing.

    >>> sends_nothing("wait"), sends_nothing("allreduce")
    (True, False)
    """
    return _letters(name) in _rules()["none"]


@cache
def _element_bytes() -> dict[str, int]:
    return {letters: nbytes for nbytes, names in _rules()["bytes"].items() for letters in names}


def element_bytes(dtype: str) -> int:
    """
    Return the bytes of an element, by the profiler's name of its type; 0 if the name is unknown.

    >>> element_bytes("c10::BFloat16"), element_bytes("Long"), element_bytes("")
    (2, 8, 0)
    """
    return _element_bytes().get(re.sub(r"[^a-z0-9]", "", dtype.lower()), 0)


@lru_cache(maxsize=2**14)
def find_communication(name: str, *, of: str) -> tuple[str, str] | None:
    """
    Return the library and the operation that a name stands for; None where it does not communicate.

    Parameters
    ----------
    name
        Name of a kernel, or of an annotation.
    of
        ``kernels`` or ``annotations``.

    >>> find_communication("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", of="kernels")
    ('nccl', 'all_reduce')
    """
    for library, pattern in _patterns(of):
        if found := pattern.search(name):
            operation = found.groupdict().get("operation")
            return library, operation_of(operation) if operation else ""
    return None
