"""What holds for all tests, before a library of numbers is imported."""

import gc
import os
from collections.abc import Generator
from itertools import groupby

import pytest
from _pytest.doctest import DoctestModule

# One test process per core (pytest -n auto) computes already: threads of BLAS beside them take twice the processor
# time for the same matrices, and where others work on the machine, ten times as long.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Pydantic else reads what every installed package says of itself, in each process that a test starts.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# Modules and cases live until the end: looking for garbage among them takes a third of the time of finding all tests.
gc.disable()

GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Its multiples fall evenly, and in step with no other number: a sample has all values of each parameter by turns."""

NUM_CASES = pytest.StashKey[int]()
"""All cases of the collected tests, slow ones included."""


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Leave the tests' own docstrings, which hold no examples, to their readers; those of the packages are run."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow the cases that a test with ``sampled(number)`` has beyond that number, spread over all of them."""
    config.stash[NUM_CASES] = len(items)
    for _, found in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        cases = [*found]
        for mark in cases[0].iter_markers("sampled"):
            kept = {int(len(cases) * (index * GOLDEN_RATIO % 1)) for index in range(*mark.args)}
            for index in {*range(len(cases))} - kept:
                cases[index].add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Look for garbage from now on, but not among what was collected, and less often than every 700 new objects."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
