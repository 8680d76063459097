"""
What a step on a CPU consists of, by the cost model's operators.

A clock is read as marks, and steps of autograd, begin and end. PyTorch's own profiler reads one that goes on while
others have the processor; this one may be the process's own.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.small_transformers.composition import WEIGHT_GRADIENTS
from benchmarks.small_transformers.configurations import Configuration
from benchmarks.small_transformers.training import Training
from benchmarks.small_transformers.transformer import Tensor

Key = tuple[str, str]
"""Name of an operator of the cost model, or of one of the following; and its pass."""

REST = "between operators"
WATCHING = "watching"
"""
What is no operator: Python, and autograd between its steps, where it adds up gradients of one tensor; and the watch's
preparations, which are left out. Each of autograd's steps takes some 20 us longer with it.
"""


def profiled(
    one: Configuration, *, steps: int = 5, clock: Callable[[], float] = time.process_time
) -> tuple[Mapping[Key, float], float]:
    """
    Seconds of a step by operator and pass, of each the least of all steps, and those of the fastest whole step.

    Parameters
    ----------
    one
        The configuration, with one rank.
    steps
        Steps that are profiled, behind one that is not.
    clock
        In seconds.
    """
    watch = Stopwatch(clock)
    training = _Watched(one, watch)
    found = []
    for _ in range(1 + steps):
        watch.start((REST, "forward"))
        training.step()
        found.append(watch.stop())
    keys = dict.fromkeys(key for step in found[1:] for key in step)
    least = {key: min(step.get(key, 0.0) for step in found[1:]) for key in keys}
    return least, min(sum(step.values()) for step in found[1:])


class Stopwatch:
    """
    Seconds of each key while it was the innermost one.

    Parameters
    ----------
    clock
        In seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._path: list[Key] = []
        self._seconds: dict[Key, float] = defaultdict(float)
        self._since = 0.0

    @property
    def passes(self) -> set[str]:
        """Passes that are under way."""
        return {pass_ for _, pass_ in self._path}

    def start(self, key: Key) -> None:
        """From here on it is this one's time."""
        self._charge()
        self._path.append(key)

    def stop(self) -> dict[Key, float]:
        """From here on it is the one's around it; seconds so far, which end with the outermost."""
        self._charge()
        self._path.pop()
        found = self._seconds
        if not self._path:
            self._seconds = defaultdict(float)
        return {key: seconds for key, seconds in found.items() if key[0] != WATCHING}

    def _charge(self) -> None:
        now = self._clock()
        if self._path:
            self._seconds[self._path[-1]] += now - self._since
        self._since = now


class _Watched(Training):
    """A training whose operators and steps of autograd tell a stopwatch."""

    def __init__(self, one: Configuration, watch: Stopwatch) -> None:
        super().__init__(one, mark=self._marked)
        self._watch = watch
        self._starts: list[int] = []
        self._names: list[str] = []

    @contextmanager
    def _marked(self, name: str) -> Iterator[None]:
        """In the backward pass a layer is computed again; else autograd's numbers say whose its steps are."""
        again = "backward" in self._watch.passes
        self._watch.start((name, "recompute" if again else "forward"))
        if not again:
            self._from_here(name)
        try:
            yield
        finally:
            if not again:
                self._from_here(REST)
            self._watch.stop()

    def _from_here(self, name: str) -> None:
        import torch

        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._names.append(name)

    def _backward(self, loss: Tensor) -> None:
        self._watch.start((WATCHING, "forward"))
        hooks = [hook for node in _nodes(loss.grad_fn) for hook in self._hooked(node)]
        self._watch.start((REST, "backward"))
        super()._backward(loss)
        self._watch.stop()
        for hook in hooks:
            hook.remove()
        self._starts, self._names = [], []
        self._watch.stop()

    def _hooked(self, node: Any) -> Iterator[Any]:
        name = WEIGHT_GRADIENTS
        if "AccumulateGrad" not in node.name():
            place = bisect_right(self._starts, node._sequence_nr()) - 1
            name = self._names[place] if place >= 0 else REST

        def starts(_: object) -> None:
            self._watch.start((name, "backward"))

        def stops(_: object, __: object) -> None:
            self._watch.stop()

        yield node.register_prehook(starts)
        yield node.register_hook(stops)


def _nodes(first: Any) -> Iterator[Any]:
    """All steps of a backward pass, each once."""
    waiting, seen = [first], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]
