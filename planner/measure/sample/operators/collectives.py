"""
Collectives of one group of processes, each as one call. Zeros are sent, so that sums stay zero.

Bytes of a point are those of the whole tensor: after gathering, or before scattering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from planner.measure.sample.bench import Bench, Tensor, UnavailableError, Work
from planner.measure.sample.ranks import Group
from planner.measure.sample.samples import Point
from planner.measure.sample.timing import Call
from planner.measure.sample.work import moved_bytes

Collective: TypeAlias = Callable[[Bench, Point, Group], Work]

WAYS = 2
"""Messages of a call of ``send``: there and back, so that each waits for the one before, as in a pipeline."""


def all_reduce(bench: Bench, point: Point, group: Group) -> Work:
    """Measure an in-place sum of all ranks' tensors."""

    def make() -> Call:
        (tensor,) = _tensors(bench, point, 1)
        return lambda: group.dist.all_reduce(tensor, group=group.group)

    return bench.in_turn(make, moved_bytes(point))


def all_gather(bench: Bench, point: Point, group: Group) -> Work:
    """Measure gathering the parts of all ranks into the whole tensor."""
    gather = _find_function(group, "all_gather_single", "all_gather_into_tensor")

    def make() -> Call:
        whole, part = _tensors(bench, point, 1, len(group.members))
        return lambda: gather(whole, part, group=group.group)

    return bench.in_turn(make, moved_bytes(point))


def reduce_scatter(bench: Bench, point: Point, group: Group) -> Work:
    """Measure scattering the parts of the sum of all tensors."""
    scatter = _find_function(group, "reduce_scatter_single", "reduce_scatter_tensor")

    def make() -> Call:
        whole, part = _tensors(bench, point, 1, len(group.members))
        return lambda: scatter(part, whole, group=group.group)

    return bench.in_turn(make, moved_bytes(point))


def all_to_all(bench: Bench, point: Point, group: Group) -> Work:
    """Measure the exchange of equal parts between all ranks."""

    def make() -> Call:
        source, target = _tensors(bench, point, 1, 1)
        return lambda: group.dist.all_to_all_single(target, source, group=group.group)

    return bench.in_turn(make, moved_bytes(point))


def broadcast(bench: Bench, point: Point, group: Group) -> Work:
    """Measure sending the first rank's tensor to all."""

    def make() -> Call:
        (tensor,) = _tensors(bench, point, 1)
        return lambda: group.dist.broadcast(tensor, src=group.members[0], group=group.group)

    return bench.in_turn(make, moved_bytes(point))


def send(bench: Bench, point: Point, group: Group) -> Work:
    """Measure a message from the first rank to the other, which sends it back."""
    if len(group.members) != WAYS:
        raise UnavailableError("a message has one sender and one receiver")
    first, second = group.members

    def make() -> Call:
        (tensor,) = _tensors(bench, point, 1)

        def there_and_back() -> None:
            group.dist.send(tensor, second, group=group.group)
            group.dist.recv(tensor, second, group=group.group)

        def back() -> None:
            group.dist.recv(tensor, first, group=group.group)
            group.dist.send(tensor, first, group=group.group)

        return there_and_back if group.is_first else back

    return bench.in_turn(make, moved_bytes(point), share=WAYS)


MEASURED_TOGETHER: Mapping[str, Collective] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "send": send,
}
"""Functions that make the calls of each collective."""


def _tensors(bench: Bench, point: Point, *parts: int) -> list[Tensor]:
    """Return tensors of zeros: the whole tensor, or equal parts of it."""
    nbytes, ranks, dtype = point.sizes.nbytes or 0, point.sizes.ranks or 1, bench.dtype(point.dtype)
    if nbytes % (ranks * dtype.itemsize):
        raise UnavailableError("the bytes do not divide into equal parts of whole elements")
    number = nbytes // dtype.itemsize
    return [bench.torch.zeros(number // part, dtype=dtype, device=bench.device) for part in parts]


def _find_function(group: Group, *names: str) -> Any:
    """Return a function of the library under the newest name that this version has."""
    return next(getattr(group.dist, name) for name in names if hasattr(group.dist, name))
