"""What is done on a GPU alone, with a stand-in: torch for CPUs whose streams, events and graphs are the host's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra 'sample' is not installed")

from planner.measure.sample import kernels, run, samples  # noqa: E402
from planner.measure.sample.run import MEASURED, Sampler  # noqa: E402
from planner.measure.sample.samples import OPERATORS, Point, Sizes, Timing  # noqa: E402
from planner.measure.sample.shapes import device_points  # noqa: E402
from planner.measure.sample.timing import Limits  # noqa: E402
from tests.planner.test_sampling_measure import SIZES as CPU_SIZES  # noqa: E402

QUICK = Limits(seconds=0.01, enough_repeats=3)

LATER = 100.0
"""Seconds by which the events of another stream are behind: what runs there lasts long enough."""


class Cuda:
    """Streams, events and graphs by the host's clock."""

    def __init__(self) -> None:
        self.waits = 0.0
        cuda = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = time.perf_counter() + cuda.waits

            def elapsed_time(self, other: Event) -> float:
                return 1e3 * (other.at - self.at)

        class CUDAGraph:
            def replay(self) -> None:
                """The captured chain, whose time is that of nothing here."""
                time.sleep(1e-4)

        self.Event, self.CUDAGraph, self.Stream = Event, CUDAGraph, object

    @contextlib.contextmanager
    def stream(self, _: object) -> Iterator[None]:
        """Another stream."""
        self.waits = LATER
        yield
        self.waits = 0.0

    @contextlib.contextmanager
    def graph(self, _: object) -> Iterator[None]:
        """Captures."""
        yield

    def __getattr__(self, name: str) -> Callable[..., Any]:
        properties = SimpleNamespace(L2_cache_size=2**16, uuid="1234", total_memory=2**31, multi_processor_count=132)
        answers = {
            "is_available": True,
            "get_device_name": "Stand-in",
            "device_count": 8,
            "get_device_properties": properties,
            "get_device_capability": (9, 0),
            "mem_get_info": (2**31, 2**31),
        }
        return lambda *_: answers.get(name, 0)


class Torch:
    """The library, which puts on the CPU what is asked for on a GPU."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        self.version = SimpleNamespace(cuda="13.0")

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("Generator", "empty", "arange", "randint", "zeros", "tensor"):
            return found

        def on_the_cpu(*given: Any, **named: Any) -> Any:
            named.pop("pin_memory", None)
            return found(*given, **({**named, "device": "cpu"} if "device" in named else named))

        return on_the_cpu


@pytest.fixture
def sampler(monkeypatch) -> Sampler:
    """On a stand-in, whose driver answers as NVIDIA's tool does."""
    answer = SimpleNamespace(stdout="570.124.06, 1980\n")
    monkeypatch.setattr(samples.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(run, "require_torch", Torch)
    monkeypatch.setattr(kernels, "_kernels", lambda bench: contextlib.nullcontext())
    return Sampler()


def test_the_gpu_is_taken_where_there_is_one(sampler):
    """With its name, its driver and its clock; grouped matmuls of this generation are one kernel."""
    said = sampler.machine

    assert (sampler.device, said.device, said.driver, said.clock_mhz) == ("cuda", "Stand-in", "570.124.06", 1980.0)
    assert (said.memory_bytes, said.num_processors, said.devices_per_node) == (2**31, 132, 8)
    assert "cuda 13.0" in said.software
    assert "grouped matmuls in one kernel" in said.software


SIZES = {**CPU_SIZES, "batch": 2, "m": 64, "n": 64, "k": 64}


@pytest.mark.parametrize("operator", MEASURED)
def test_every_operator_runs_on_a_gpu(sampler, operator):
    """Copies over the link, updates on the host and graphs among them."""
    if operator == "grouped_matmul" and not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this torch has no grouped matmul for CPUs")
    kind = OPERATORS[operator]
    sizes = Sizes(**{name: SIZES[name] for name in kind.needs})
    found = [
        sampler.measure(Point(operator=operator, pass_=one, dtype="bf16", sizes=sizes), QUICK) for one in kind.passes
    ]

    assert [one for one in found if not isinstance(one, Timing)] == []


class Companion:
    """A group whose other rank does as this one."""

    members, is_first, group = (0, 1), True, None

    def __init__(self) -> None:
        self.dist = self
        self.barriers = 0

    def all_reduce(self, tensor: Any, **_: Any) -> None:
        """A sum of zeros."""
        tensor.add_(tensor)

    def barrier(self) -> None:
        """Counted."""
        self.barriers += 1

    def maximum(self, values: Any) -> list[float]:
        """Its own."""
        return list(values)

    def first_reason(self, reason: str) -> str:
        """Its own."""
        return reason


@pytest.mark.parametrize("beside", ["", "matmul"])
def test_collectives_are_measured_on_a_gpu(sampler, monkeypatch, beside):
    """By events, in lockstep: alone, and while another stream multiplies."""
    companion = Companion()
    ranks = SimpleNamespace(hosts=("a", "a"), say=lambda _: None, group=lambda **_: companion)
    monkeypatch.setattr(sampler, "_ranks", ranks)
    small = Point(operator="matmul", pass_="forward", dtype="bf16", sizes=Sizes(m=8, n=8, k=8))
    monkeypatch.setattr(run, "BESIDE", {"matmul": small})
    sizes = Sizes(nbytes=4096, ranks=2, nodes=1)
    point = Point(operator="all_reduce", pass_="forward", dtype="bf16", sizes=sizes, beside=beside)

    found = sampler.measure(point, QUICK)

    assert isinstance(found, Timing), found
    assert companion.barriers > 0


def test_a_kernel_of_a_graph_is_a_share_of_it(sampler):
    """A graph of 100 kernels that takes 0.1 ms takes a microsecond for each."""
    point = Point(operator="graph_launch", pass_="forward", dtype="fp32", sizes=Sizes(n=100))

    assert 1e-6 <= sampler.measure(point, QUICK).seconds < 1e-5


@pytest.mark.parametrize(
    "point", [one for one in device_points() if one.beside], ids=lambda one: f"{one.operator}-{one.beside}"
)
def test_what_runs_beside_something_is_measured(sampler, monkeypatch, point):
    """Each pair that the order asks for: copies beside a matmul, a matmul beside copies."""
    small = {"matmul": Sizes(m=8, n=8, k=8)}
    monkeypatch.setattr(
        run,
        "BESIDE",
        {
            name: Point(operator=name, pass_="forward", dtype="bf16", sizes=small.get(name, Sizes(nbytes=64)))
            for name in run.BESIDE
        },
    )
    sizes = small.get(point.operator, Sizes(nbytes=64))

    found = sampler.measure(
        Point(operator=point.operator, pass_="forward", dtype="bf16", sizes=sizes, beside=point.beside), QUICK
    )

    assert isinstance(found, Timing), found


def test_what_ends_too_early_is_no_neighbour(sampler, monkeypatch):
    """A reason, not a time that nobody was beside of."""
    monkeypatch.setattr("tests.planner.test_sampling_stand_in.LATER", -1.0)
    point = Point(operator="matmul", pass_="forward", dtype="bf16", sizes=Sizes(m=8, n=8, k=8), beside="device_to_host")
    monkeypatch.setattr(run, "BESIDE", {"device_to_host": Point(**_named(point, sizes=Sizes(nbytes=64)))})

    found = sampler.measure(point, QUICK)

    assert found == "the work that it should overlap with ended before it"


def _named(point: Point, **changes: Any) -> dict[str, Any]:
    return {"operator": "device_to_host", "pass_": point.pass_, "dtype": point.dtype, **changes}
