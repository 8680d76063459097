"""Processes that measure collectives: joined or started here, their groups, and their lockstep."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any

from costmodel.errors import PlanningError, SpecError
from costmodel.record import record
from costmodel.validation import shown
from planner.measure.sample.timing import Lockstep

PATIENCE = timedelta(seconds=120)
"""Time that a process waits for another one in a collective before the run ends."""

END_SECONDS = 10
"""Seconds that started processes have to end by themselves."""

LOCALHOST = "127.0.0.1"


class LostRankError(PlanningError):
    """
    A process that takes part in collectives failed or does not answer: the run cannot continue.

    Parameters
    ----------
    rank
        Rank that noticed.
    reason
        Reason of the library.
    """

    def __init__(self, rank: int, reason: str) -> None:
        line = (reason.strip().splitlines() or ["no reason"])[0]
        first = re.sub(r"^\[\S+\] ", "", line).partition(". ")[0].rstrip(".")  # the library names a line of its sources
        super().__init__(f"rank {rank} lost the others: {first[:160]}. The table keeps the measured samples.")


@record(frozen=True, kw_only=True, slots=True)
class Place:
    """
    One process of those that measure together.

    Parameters
    ----------
    rank, world_size
        Its number from 0, and the number of processes.
    local_rank
        Its number on its host, and the number of its GPU.
    host
        Name of the host, equal for all processes of one host.
    address
        Address of the rendezvous, for ``torch.distributed.init_process_group``.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    address: str = "env://"


def read_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """
    Read the place of this process from the variables of torchrun or a similar launcher; None without a launcher.

    Raises
    ------
    SpecError
        If a variable is missing or not a number.

    Examples
    --------
    >>> read_place({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "GROUP_RANK": "1"})
    Place(rank=9, world_size=16, local_rank=1, host='1', address='env://')
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        seen = environment.get(name, "")
        if not (seen.isascii() and seen.isdigit()):
            problem = f"is {shown(seen)}; a launcher of several processes sets it to a number."
            raise SpecError(name, problem, "Start with torchrun, or unset RANK and WORLD_SIZE.")
        numbers[name] = int(seen)
    host = environment.get("GROUP_RANK") or socket.gethostname()
    rank, world_size, local_rank = numbers.values()
    return Place(rank=rank, world_size=world_size, local_rank=local_rank, host=host)


# --- groups ------------------------------------------------------------------------------------------------------


def members_of(hosts: Sequence[str], *, ranks: int, nodes: int) -> tuple[int, ...]:
    """
    Return the ranks of a group with equally many on each of its nodes; () if there is no such group with rank 0.

    Parameters
    ----------
    hosts
        Host of each rank.
    ranks, nodes
        Size of the group, and number of its hosts.

    Examples
    --------
    >>> members_of("aaaabbbb", ranks=4, nodes=2), members_of("aaaabbbb", ranks=4, nodes=1)
    ((0, 1, 4, 5), (0, 1, 2, 3))
    >>> members_of("ab", ranks=2, nodes=1)
    ()
    """
    on_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        on_host.setdefault(host, []).append(rank)
    share, rest = divmod(ranks, nodes)
    chosen = [some[:share] for some in on_host.values() if len(some) >= share][:nodes]
    found = tuple(sorted(rank for some in chosen for rank in some))
    return () if rest or len(chosen) < nodes or 0 not in found else found


def group_sizes(hosts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """
    List groups to measure, as ranks and nodes: powers of two, one host's ranks and all, over several numbers of nodes.

    >>> group_sizes("aaaabbbb")
    ((2, 1), (2, 2), (4, 1), (4, 2), (8, 2))
    """
    number, nodes = len(hosts), len(set(hosts))
    sizes = {2**power for power in range(1, number.bit_length()) if 2**power <= number}
    sizes |= {one for one in (number, hosts.count(hosts[0])) if one > 1}
    counts = {2**power for power in range(nodes.bit_length())} | {nodes}
    pairs = ((ranks, count) for ranks in sorted(sizes) for count in sorted(counts))
    return tuple(pair for pair in pairs if members_of(hosts, ranks=pair[0], nodes=pair[1]))


class Group(Lockstep):
    """
    Processes that take part in a collective.

    Parameters
    ----------
    torch
        The library.
    members
        Their ranks.
    device
        ``cuda`` communicates with NCCL, ``cpu`` with Gloo. Agreements between processes always use Gloo.

    Attributes
    ----------
    dist, group
        The library's collectives, and their group.
    members, is_first
        As given; True where this process is the first one, which sends or broadcasts.
    """

    def __init__(self, torch: Any, members: Sequence[int], device: str) -> None:
        self.dist: Any = torch.distributed
        self.members = tuple(members)
        self.is_first = self.dist.get_rank() == members[0]
        self._torch = torch
        self._control = self.dist.new_group(list(members), backend="gloo", timeout=PATIENCE)
        is_gpu = device == "cuda"
        self.group = self.dist.new_group(list(members), backend="nccl", timeout=PATIENCE) if is_gpu else self._control
        self._token = torch.zeros(1, device=device) if is_gpu else None

    def barrier(self) -> None:
        """Begin together: on a GPU the stream waits, on a CPU the process."""
        if self._token is None:
            self.dist.barrier(group=self.group)
        else:
            self.dist.all_reduce(self._token, group=self.group)

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Return the largest value over the processes, entry by entry."""
        found = self._torch.tensor(list(values), dtype=self._torch.float64)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX, group=self._control)
        return [float(one) for one in found.tolist()]

    def first_reason(self, reason: str) -> str:
        """Return the reason of the first process that has one; "" if none has."""
        reasons: list[Any] = [""] * len(self.members)
        self.dist.all_gather_object(reasons, reason, group=self._control)
        return next((str(one) for one in reasons if one), "")


class Ranks:
    """
    All processes of a run: the first one decides on points, the others follow it.

    Parameters
    ----------
    torch, device
        The library, and its device: ``cuda`` or ``cpu``.
    place
        This process.
    seconds
        Seconds that the others wait for the first one while it measures alone.

    Raises
    ------
    SpecError
        If the library has no collectives, or the others do not come.
    """

    def __init__(self, torch: Any, place: Place, device: str, *, seconds: float) -> None:
        self.place = place
        self._torch, self._device = torch, device
        self._groups: dict[tuple[int, ...], Group | None] = {}
        dist: Any = torch.distributed
        if not (dist.is_available() and dist.is_gloo_available()):
            raise SpecError("ranks", f"torch {torch.__version__} comes without Gloo's collectives.")
        try:
            dist.init_process_group(
                "gloo",
                init_method=place.address,
                rank=place.rank,
                world_size=place.world_size,
                timeout=PATIENCE,
            )
            self._messages = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds) + PATIENCE)
            hosts: list[Any] = [""] * place.world_size
            dist.all_gather_object(hosts, place.host)
        except (RuntimeError, ValueError) as error:
            raise LostRankError(place.rank, str(error)) from None
        self.hosts: tuple[str, ...] = tuple(hosts)

    @property
    def is_first(self) -> bool:
        """True where this process decides, and writes the table."""
        return self.place.rank == 0

    @property
    def group_sizes(self) -> tuple[tuple[int, int], ...]:
        """Ranks and nodes of the groups that can be measured."""
        return group_sizes(self.hosts)

    def say(self, message: object) -> None:
        """Send a message from the first process to all others."""
        self._torch.distributed.broadcast_object_list([message], src=0, group=self._messages)

    def listen(self) -> Any:
        """Receive a message of the first process."""
        said = [None]
        self._torch.distributed.broadcast_object_list(said, src=0, group=self._messages)
        return said[0]

    def group(self, *, ranks: int, nodes: int) -> Group | None:
        """
        Return the group of some ranks on some nodes; None where this process is not in it.

        Every process must ask for the same groups in the same order.
        """
        members = members_of(self.hosts, ranks=ranks, nodes=nodes)
        if members not in self._groups:
            made = Group(self._torch, members, self._device)
            self._groups[members] = made if self.place.rank in members else None
        return self._groups[members]

    def dismiss(self) -> None:
        """Release the other processes, if this is the first one; lost processes need no release."""
        if self.is_first:
            with suppress(RuntimeError):
                self.say(None)


# --- joined or started -------------------------------------------------------------------------------------------


@contextmanager
def joined_ranks(
    torch: Any, device: str, number: int | None, *, seconds: float, command: Sequence[str]
) -> Iterator[Ranks | None]:
    """
    Join the processes of a launcher, else start processes on this host; yield None if this one is alone.

    Parameters
    ----------
    torch, device
        The library, and its device.
    number
        Processes on this host; None uses all of the launcher's, else one for each GPU, or one on a CPU.
    seconds
        As in :class:`Ranks`.
    command
        Command of another process, which gets the variables of a launcher.

    Raises
    ------
    SpecError
        If there are fewer GPUs or processors.
    LostRankError
        If the others do not come.
    """
    launched = read_place()
    if launched and number is not None:
        problem = f"is {number}, but a launcher has started {launched.world_size} processes."
        raise SpecError("ranks", problem, "Leave it out.")
    if launched and device == "cuda":  # with launchers that show each process one GPU, it is that one
        torch.cuda.set_device(launched.local_rank % torch.cuda.device_count())
    number = launched.world_size if launched else _number_here(torch, device, number)
    if number == 1:
        yield None
        return
    with ExitStack() as stack:
        stack.callback(_leave, torch)  # after the started processes have ended
        place = launched or stack.enter_context(_start_processes(number, command))
        ranks = Ranks(torch, place, device, seconds=seconds)
        try:
            yield ranks
        except LostRankError:
            raise
        except Exception:
            ranks.dismiss()
            raise
        ranks.dismiss()


def _number_here(torch: Any, device: str, number: int | None) -> int:
    has, what = (torch.cuda.device_count(), "GPUs") if device == "cuda" else (os.cpu_count() or 1, "processors")
    if number is None:
        return max(1, has) if device == "cuda" else 1
    if not 1 <= number <= has:
        raise SpecError("ranks", f"is {number}; expected 1 to {has}, the {what} of this host.")
    return number


@contextmanager
def _start_processes(number: int, command: Sequence[str]) -> Iterator[Place]:
    """Start the other processes, which end with this one; yield the place of this one, the first."""
    port = _free_port()
    shared = os.environ | {"WORLD_SIZE": str(number), "GROUP_RANK": "0", "MASTER_ADDR": LOCALHOST}
    others: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(1, number):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
            others.append(
                subprocess.Popen(
                    list(command),
                    env=shared | own,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # an interrupt reaches only this process, which ends the others
                )
            )
        yield Place(rank=0, world_size=number, local_rank=0, host="0", address=f"tcp://{LOCALHOST}:{port}")
        for one in others:
            with suppress(subprocess.TimeoutExpired):
                one.wait(END_SECONDS)
    finally:
        for one in others:
            one.terminate()
        for one in others:
            try:
                one.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                one.kill()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((LOCALHOST, 0))
        port: int = found.getsockname()[1]
        return port


def _leave(torch: Any) -> None:
    with suppress(RuntimeError, ValueError):
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
