"""Several processes: which groups they form, what they send, that they keep step, and what becomes of a lost one."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from costmodel.errors import SpecError
from planner.cli import main
from planner.measure.sample.ranks import Group, _free_port, group_sizes, joined_ranks, members_of, read_place
from planner.measure.sample.samples import COLLECTIVES, Point, Sizes
from planner.measure.sample.shapes import filling_messages, job_shapes, message_points, points_to_measure
from planner.measure.sample.table import read_samples
from planner.measure.sample.timing import BesideClock, DeviceClock, HostClock
from tests.builders_problem import a_problem
from tests.builders_samples import QUICK, shorten_runs
from tests.cases import in_one_case

ROOT = Path(__file__).parents[2]

LOST = 4
"""Exit code of a run that lost a process."""


def a_message(operator: str = "all_reduce", nbytes: int = 4096, dtype: str = "fp32", ranks: int = 2) -> Point:
    """On one host."""
    sizes = Sizes(nbytes=nbytes, ranks=ranks, nodes=1)
    return Point(operator=operator, pass_="forward", dtype=dtype, sizes=sizes)


class TestGroups:
    """Ranks on hosts."""

    @in_one_case(
        ("hosts", "expected"),
        [
            ("a", ()),
            ("aa", ((2, 1),)),
            ("ab", ((2, 2),)),
            ("aab", ((2, 1), (2, 2))),
            ("aaabbb", ((2, 1), (2, 2), (3, 1), (4, 2), (6, 2))),
            ("aabbcc", ((2, 1), (2, 2), (4, 2), (6, 3))),
        ],
    )
    def test_sizes_are_those_that_hosts_have(self, hosts, expected):
        """Powers of two, one host's ranks and all of them, as many on each host."""
        assert group_sizes(hosts) == expected

    @in_one_case(
        ("hosts", "ranks", "nodes", "expected"),
        [
            ("abab", 2, 1, (0, 2)),  # ranks that a launcher dealt in turn
            ("abab", 4, 2, (0, 1, 2, 3)),
            ("abbb", 2, 1, ()),  # the first rank, which decides, is alone on its host
            ("aabb", 3, 2, ()),
            ("aabb", 4, 1, ()),
        ],
    )
    def test_the_first_rank_is_in_every_group(self, hosts, ranks, nodes, expected):
        """With equally many on each host, or there is no such group."""
        assert members_of(hosts, ranks=ranks, nodes=nodes) == expected

    def test_variables_of_a_launcher_are_numbers(self):
        """The one that is wrong is named."""
        with pytest.raises(SpecError, match="LOCAL_RANK: is ''; a launcher"):
            read_place({"RANK": "0", "WORLD_SIZE": "2"})
        with pytest.raises(SpecError, match="RANK: is '-1'"):
            read_place({"RANK": "-1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
        assert read_place({}) is None

    @pytest.mark.parametrize(("device", "number"), [("cpu", 0), ("cpu", 10**6), ("cuda", 9)])
    def test_more_processes_than_there_are_devices_are_refused(self, device, number):
        """By how many there are."""
        torch = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 8))

        with (
            pytest.raises(SpecError, match=f"ranks: is {number}; expected 1 to "),
            joined_ranks(torch, device, number, seconds=1, command=()),
        ):
            pass

    def test_a_launcher_and_a_number_contradict_each_other(self, monkeypatch):
        """Who has started the processes knows how many."""
        for name, value in (("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
            monkeypatch.setenv(name, value)

        with (
            pytest.raises(SpecError, match="is 2, but a launcher has started 4 processes"),
            joined_ranks(None, "cpu", 2, seconds=1, command=()),
        ):
            pass


class TestMessages:
    """Which sizes are measured."""

    def test_messages_of_a_job_are_those_that_one_counts(self):
        """
        Two sequences of 64 tokens of width 32 in 16 bits are 8,192 bytes.

        Tensor-parallel ranks gather and scatter them with sequence parallelism, else reduce them; pipeline ranks send
        them, or each its half.
        """
        messages = job_shapes(a_problem(pin={"tp": 2, "mbs": 2})).messages
        of = {
            name: {one.nbytes for one in messages if one.operator == name and one.ranks == 2}
            for name in ("all_reduce", "send")
        }

        assert of == {"all_reduce": {8192}, "send": {8192, 4096}}
        assert {"all_gather", "reduce_scatter"} <= {one.operator for one in messages if one.nbytes == 8192}

    def test_they_are_measured_in_the_groups_that_there_are(self):
        """Two ranks on one host or on two; of four there are none here."""
        shapes = job_shapes(a_problem(pin={"mbs": 2}))
        found = message_points(shapes, ((2, 1), (2, 2)))

        assert any(one.ranks == 4 for one in shapes.messages)
        assert {(one.sizes.ranks, one.sizes.nodes) for one in found} == {(2, 1), (2, 2)}
        assert len(found) == len(set(found))

    def test_filling_messages_cover_the_sizes(self):
        """From 1 KiB to 256 MiB, in parts that are whole for 12 ranks, too; sends of two ranks alone."""
        found = list(filling_messages(((2, 1), (12, 2)), rounds=16))
        sizes = [one.sizes.nbytes for one in found]

        assert (min(sizes), max(sizes)) == (1024, 2**28 + -(2**28) % 48)
        assert all(one.sizes.nbytes % (one.sizes.ranks * 4) == 0 for one in found)
        assert {one.operator for one in found} == set(COLLECTIVES)
        assert {one.sizes.ranks for one in found if one.operator == "send"} == {2}
        assert {one.beside for one in found} == {"", "matmul"}
        assert len({one.sizes.nbytes for one in found if one.sizes.ranks == 2}) == 16

    def test_every_other_point_is_a_collective(self):
        """Whoever stops early has both; without others there are none."""
        found = points_to_measure(None, 80e9, group_sizes=((2, 1),))

        assert [one.operator in COLLECTIVES for one in found[:40]] == [False, True] * 20
        assert not any(one.operator in COLLECTIVES for one in points_to_measure(None, 80e9))


class SlowCompanion:
    """Another rank whose windows take twice as long, and whose neighbour ends too early at first."""

    def __init__(self, uncovered: int = 0) -> None:
        self.events: list[str] = []
        self.uncovered = uncovered

    def barrier(self) -> None:
        """Remembered."""
        self.events.append("barrier")

    def maximum(self, values) -> list[float]:
        """The other one's."""
        if list(values) == [0.0] and self.uncovered:
            self.uncovered -= 1
            return [1.0]
        return [2 * value for value in values]


class TestLockstep:
    """Clocks of processes that time together."""

    def test_the_slowest_rank_counts(self, monkeypatch):
        """A window of one second here and two there takes two; each begins behind a barrier."""
        times = iter([10.0, 11.0, 20.0, 21.0])
        monkeypatch.setattr("planner.measure.sample.timing.time.perf_counter", lambda: next(times))
        other = SlowCompanion()
        clock = HostClock(lockstep=other)

        found = clock.windows(iter([lambda: other.events.append("call")] * 2), size=1, number=2)

        assert found == [2.0, 2.0]
        assert other.events == ["barrier", "call", "barrier", "call"]

    def test_a_gpu_lines_up_behind_its_wait(self):
        """The collective that all wait for comes before the first event."""
        from tests.planner.test_sampling_timing import FakeGpu

        gpu, other = FakeGpu(), SlowCompanion()

        found = DeviceClock(gpu.torch, other).windows(iter([gpu.kernel] * 12), size=4, number=3)

        assert found == pytest.approx([2e-3] * 3)
        assert other.events[0] == "barrier"

    def test_all_try_again_where_one_was_not_covered(self):
        """The first rank was beside its neighbour, the other one was not: both double."""
        from tests.planner.test_sampling_timing import FakeGpu

        gpu = FakeGpu()
        clock = BesideClock(gpu.torch, [gpu.beside], SlowCompanion(uncovered=1))

        assert clock.windows(iter([gpu.kernel] * 4), size=1, number=1) == pytest.approx([2e-3])
        assert clock.number == 8


# --- processes that communicate ------------------------------------------------------------------------------------

FOLLOWER = """
import os
from planner.measure.sample.timing import UnavailableError
from planner.measure.sample.samples import require_torch
from planner.measure.sample.run import Sampler
from planner.measure.sample.ranks import joined_ranks

with joined_ranks(require_torch(), "cpu", None, seconds=60, command=()) as ranks:
    sampler = Sampler("cpu", ranks)
    {before}
    sampler.follow()
"""
"""Another process than those of the command, to which something happens."""

LACKS_MEMORY = """
    def require_memory(nbytes):
        if nbytes == 2 * 8192:
            raise UnavailableError("the other one has no memory")
    sampler.bench.require_memory = require_memory
"""

DIES = "ranks.listen(); os._exit(1)"


@pytest.fixture
def torch():
    """The library, where it is installed."""
    return pytest.importorskip("torch", reason="the extra 'sample' is not installed")


@pytest.fixture
def other_process(monkeypatch, torch):
    """A function that joins this process with one that follows, but for what happens to it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("planner.measure.sample.ranks.os.cpu_count", lambda: 2)

    def joined(before: str = "pass"):
        command = (sys.executable, "-c", FOLLOWER.format(before=before))
        return joined_ranks(torch, "cpu", 2, seconds=60, command=command)

    return joined


class TestProcesses:
    """Gloo between two processes of this host."""

    def test_a_point_that_one_cannot_measure_is_nobodys(self, other_process):
        """Its reason reaches the first rank, nobody waits, and the next point has a time."""
        from planner.measure.sample.run import Sampler
        from planner.measure.sample.samples import Timing

        with other_process(LACKS_MEMORY) as ranks:
            sampler = Sampler("cpu", ranks)
            skipped = sampler.measure(a_message(nbytes=8192))
            times = {name: sampler.measure(a_message(name), QUICK) for name in COLLECTIVES}
            wide = sampler.measure(a_message(dtype="fp8"))
            odd = sampler.measure(a_message(nbytes=4097))
            absent = sampler.measure(a_message(ranks=4))

        assert skipped == "the other one has no memory"
        assert all(isinstance(one, Timing) and 0 < one.seconds < 1 for one in times.values()), times
        assert wide == "operators in fp8 are not measured"
        assert odd == "the bytes do not divide into equal parts of whole elements"
        assert absent == "needs 4 processes on 1 hosts, and there are 2"

    def test_a_process_that_dies_is_noticed(self, other_process, monkeypatch):
        """Its answer is waited for, but not for ever."""
        from planner.measure.sample.ranks import LostRankError
        from planner.measure.sample.run import Sampler

        with other_process(DIES) as ranks:
            monkeypatch.setattr("planner.measure.sample.ranks.PATIENCE", timedelta(seconds=3))
            sampler = Sampler("cpu", ranks)
            with pytest.raises(LostRankError, match="rank 0 lost the others"):
                sampler.measure(a_message())

    def test_one_command_measures_collectives(self, torch, tmp_path, monkeypatch):
        """It starts the other process, which writes nothing; a second run goes on."""
        from planner.measure.sample.run import sample_operators

        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setattr("planner.measure.sample.ranks.os.cpu_count", lambda: 2)
        path = tmp_path / "samples.csv"

        with monkeypatch.context() as patches:
            shorten_runs(patches, 4)
            first = sample_operators(path, budget_seconds=60, device="cpu", ranks=2)
        shorten_runs(monkeypatch, 6)
        second = sample_operators(path, budget_seconds=60, device="cpu", ranks=2)

        rows = [one.point for one in read_samples(path)]
        collectives = [one for one in rows if one.operator in COLLECTIVES]
        assert collectives
        assert {(one.sizes.ranks, one.sizes.nodes) for one in collectives} == {(2, 1)}
        assert second.known == first.measured
        assert len(rows) == first.measured + second.measured

    def test_a_launcher_starts_processes_on_two_hosts(self, torch, tmp_path, monkeypatch, capsys):
        """As torchrun does, with its variables; the second rank says nothing and ends as well; this is the first."""
        path = tmp_path / "samples.csv"
        words = ["sample", "--device", "cpu", "--budget", "60s", "-o", str(path)]
        shared = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        other = subprocess.Popen(
            [sys.executable, "-m", "planner", *words],
            env=os.environ | shared | {"RANK": "1", "GROUP_RANK": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, value in (shared | {"RANK": "0", "GROUP_RANK": "0"}).items():
            monkeypatch.setenv(name, value)
        shorten_runs(monkeypatch, 4)
        code = main(words)
        second, errors = other.communicate(timeout=200)

        assert [code, other.returncode] == [0, 0], errors
        assert "points measured" in capsys.readouterr().out
        assert second == ""
        groups = {(one.point.sizes.ranks, one.point.sizes.nodes) for one in read_samples(path)}
        assert (2, 2) in groups


class TestCalls:
    """What a rank passes to the library."""

    @pytest.mark.parametrize(
        ("operator", "expected"),
        [
            ("all_reduce", [("all_reduce", [4096])]),
            ("all_gather", [("all_gather_single", [4096, 1024])]),
            ("reduce_scatter", [("reduce_scatter_single", [1024, 4096])]),
            ("all_to_all", [("all_to_all_single", [4096, 4096])]),
            ("broadcast", [("broadcast", [4096])]),
        ],
    )
    def test_bytes_are_those_of_the_whole_tensor(self, torch, operator, expected):
        """Four ranks have parts of a fourth of 4,096 bytes."""
        from planner.measure.sample.bench import Bench
        from planner.measure.sample.run import MEASURED_TOGETHER

        called: list[tuple[str, list[int]]] = []
        bench, group = Bench(torch, "cpu"), a_group(called, members=(0, 1, 2, 3))

        MEASURED_TOGETHER[operator](bench, a_message(operator, dtype="bf16", ranks=4), group).calls[0]()

        assert called == expected

    @pytest.mark.parametrize(("is_first", "order"), [(True, ["send", "recv"]), (False, ["recv", "send"])])
    def test_a_message_is_sent_back(self, torch, is_first, order):
        """One of two ranks sends first; a call is two messages."""
        from planner.measure.sample.bench import Bench
        from planner.measure.sample.kernels import send

        called: list[tuple[str, list[int]]] = []
        work = send(Bench(torch, "cpu"), a_message("send"), a_group(called, is_first=is_first))
        work.calls[0]()

        assert [name for name, _ in called] == order
        assert work.share == 2


class TestGroupOnGpus:
    """Which library sends what, with a stand-in for both."""

    def test_nccl_sends_and_gloo_agrees(self):
        """Two groups of the same members; their barrier is a sum on the device, as a stream waits for it."""
        made: list[str] = []
        called: list[tuple[object, object]] = []
        library = SimpleNamespace(
            new_group=lambda members, backend, timeout: made.append(backend) or backend,
            get_rank=lambda: 1,
            all_reduce=lambda tensor, group: called.append((tensor, group)),
        )
        torch = SimpleNamespace(distributed=library, zeros=lambda number, device: f"{number} on {device}")

        group = Group(torch, (0, 1), "cuda")
        group.barrier()

        assert (made, group.group, group.is_first) == (["gloo", "nccl"], "nccl", False)
        assert called == [("1 on cuda", "nccl")]


class Library:
    """Collectives that remember how they were called."""

    def __init__(self, called: list[tuple[str, list[int]]]) -> None:
        self._call_expression = called

    def __getattr__(self, name: str):
        def call(*given: object, **_: object) -> None:
            self._call_expression.append((name, [one.nbytes for one in given if hasattr(one, "nbytes")]))

        return call


def a_group(called: list, *, members: tuple[int, ...] = (0, 1), is_first: bool = True) -> SimpleNamespace:
    """Of processes that are not there."""
    return SimpleNamespace(dist=Library(called), group=None, members=members, is_first=is_first)
