"""An accelerator, its links and its share of the host: as in datasheets, and as a framework uses it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from costmodel.facts.calibration import Calibration, Constants, Samples
from costmodel.facts.fields import (
    NARROW,
    Architecture,
    Bandwidth,
    Bytes,
    BytesOrZero,
    BytesPerSecond,
    Count,
    Dtype,
    Fraction,
    NotNegative,
    Number,
    Positive,
    Seconds,
    Watts,
)
from costmodel.facts.framework import Behaviour, Framework, Settings
from costmodel.record import strict_record


@strict_record(frozen=True, kw_only=True, slots=True)
class Network:
    """
    One level of interconnect, as seen by one device.

    Parameters
    ----------
    name
        ``nvlink``, ``infinity_fabric``, ``node``, ``rail``, ``spine`` ...
    num_peers
        Devices reachable on this level, itself included.
    bandwidth
        Bytes per second that a device can send, one direction, measured between ``reference_peers`` devices.
    latency
        Seconds before the first byte of a message arrives, in each step of a gather.
    decay
        Factor on the bandwidth for each doubling of the ranks beyond ``reference_peers``: MoFa's gamma, equation (3).
    reference_peers
        Ranks at which ``bandwidth`` holds.
    parallel_links
        Links of this level that one group can use at once from one scale-up domain; None: one per member there.
    reduce_scatter_latency, all_reduce_latency
        Seconds of latency in each step of a reduce-scatter, and of an all-reduce, which switches may sum (NVLink
        SHARP); None: as ``latency``.
    is_mesh
        True if each device has a link to every peer instead of links to a switch: a group then uses only the links
        between its members.
    is_half_duplex
        True if sending and receiving share the bandwidth, so that sending alone has twice as much: NCCL over sockets,
        whose bytes pass the host's memory both ways.
    """

    name: str
    num_peers: Count
    bandwidth: BytesPerSecond
    latency: Seconds
    decay: Annotated[Fraction, Field(gt=0)] = 1.0
    reference_peers: Count = 1
    parallel_links: Count | None = None
    reduce_scatter_latency: Seconds | None = None
    all_reduce_latency: Seconds | None = None
    is_mesh: bool = False
    is_half_duplex: bool = False


@strict_record(frozen=True, kw_only=True, slots=True)
class Silicon:
    """
    Properties of all devices of a generation, of any size.

    Parameters
    ----------
    name
        Name of the architecture.
    maker
        Company that makes the devices; empty: not known.
    exponential_width
        Width of an attention head whose matmuls take as long as the exponentials of its scores.
    older_kernels_fraction
        Fraction of the Tensor Core peak reached by attention kernels that were written for the previous generation.
    unaligned_fraction, unaligned_logits_fraction
        Share of the matmul rate that remains for sizes that Tensor Cores do not divide: of matmuls that accumulate in
        FP32, and of the head's logits.
    multiplies_any_layout
        True if 8-bit Tensor Cores multiply rows with columns, rows with rows and columns with columns.
    captures_graphs
        True if kernels are launched as CUDA graphs, or as HIP graphs.
    sources
        Source of each number, by field name.
    """

    name: str = ""
    maker: str = ""
    exponential_width: NotNegative = 0.0
    older_kernels_fraction: Annotated[Fraction, Field(gt=0)] = 1.0
    unaligned_fraction: Annotated[Fraction, Field(gt=0)] = 19.5 / 312
    unaligned_logits_fraction: Annotated[Fraction, Field(gt=0)] = 78 / 250
    multiplies_any_layout: bool = False
    captures_graphs: bool = True
    sources: dict[str, str] = field(default_factory=dict)


@strict_record(frozen=True, kw_only=True, slots=True)
class HostProcessors:
    """
    One device's share of the host's processors.

    Parameters
    ----------
    memory_bandwidth
        Bytes per second that these processors read and write in host memory together.
    threads
        Number of cores; None: as many as the memory needs.
    thread_memory_bandwidth
        Bytes per second that one core reads and writes; None: not known, and no number of threads is too small.
    """

    memory_bandwidth: BytesPerSecond
    threads: Count | None = None
    thread_memory_bandwidth: BytesPerSecond | None = None

    def stream_bandwidth(self, threads: int | None = None) -> float:
        """
        Host memory bandwidth available to a number of threads of a device's process, in bytes per second.

        Derivation: n threads of B_1 each, at most the rate of all of the device's cores; more threads than cores share
        them. None: one thread on each core.

        >>> HostProcessors(memory_bandwidth=50e9, threads=14, thread_memory_bandwidth=12e9).stream_bandwidth(2)
        24000000000.0
        """
        number = threads or self.threads
        if number is None or self.thread_memory_bandwidth is None:
            return self.memory_bandwidth
        return min(min(number, self.threads or number) * self.thread_memory_bandwidth, self.memory_bandwidth)


Population: TypeAlias = Literal["dense", "moe", "hybrid", "untuned"]
"""Runs whose errors are alike: of an architecture, or with experts and without the features of tuned recipes."""


@strict_record(frozen=True, kw_only=True)
class Device:
    """
    One accelerator and its share of the host, as in datasheets.

    Parameters
    ----------
    name
        Name of the device in the catalog.
    architecture
        Architecture (generation) of the device, whose measured runs give the error of predictions for it; None: not
        known.
    silicon
        Properties that all devices of its architecture share; taken from the catalog if an architecture is named.
    calibration
        Constants of its architecture; or a mapping of those that differ, such as ``launch_overhead_seconds``.
    peak_flops
        Dense peak per dtype in FLOPs per second.
    memory_bytes, memory_bandwidth
        Bytes of device memory, and its bandwidth in bytes per second.
    devices_per_node
        Devices that share a host.
    networks
        Levels of interconnect, from the innermost outwards; the first is the scale-up domain. Bandwidths are
        nominal; the calibration knows the achieved fraction.
    host_memory_bytes
        Bytes of host memory per device.
    host_to_device_bandwidth, device_to_host_bandwidth
        Bytes per second of copies from the host and to the host.
    host_link
        Link of copies from and to the host: ``pcie``, whose port is also that of the network adapter; ``nvlink_c2c``, a
        link of their own. ``none``: the device is the host's processors (a CPU), without CUDA graphs and offload.
    disk_write_bandwidth, disk_read_bandwidth
        Bytes per second per device to checkpoint storage.
    runtime_bytes
        Bytes of device memory that the driver, the communication library and the allocator take.
    host_processors
        Its share of the host's processors, which update parameters whose optimizer states are in host memory.
    power_clock
        Clock expected from its power limit, over the clock of the device whose calibration it shares.
    num_processors
        Number of processors (SMs); None: not known.
    power_watts
        Most power of the device in watts (thermal design power), from its datasheet; None: not published.
    socket_bandwidth
        Bytes per second and direction between the processors of a host; None: no traffic passes there.
    framework
        Framework of a job that names none; None: the newest default release.
    left_out_errors
        Logarithms of measured over predicted step time of runs that the constants were not fitted to; empty: no such
        run. By population: dense, moe, hybrid, untuned (runs with experts without the features of tuned recipes).
    sources
        Source of each number, by field name.
    """

    name: str
    architecture: Architecture | None = None
    silicon: Silicon = field(default_factory=Silicon)
    calibration: Calibration
    peak_flops: Annotated[dict[Dtype, Positive], Field(min_length=1)]
    memory_bytes: Bytes
    memory_bandwidth: BytesPerSecond
    devices_per_node: Count
    networks: Annotated[tuple[Network, ...], Field(min_length=1)]
    host_memory_bytes: Bytes
    host_to_device_bandwidth: BytesPerSecond
    device_to_host_bandwidth: BytesPerSecond
    host_link: Literal["pcie", "nvlink_c2c", "none"] = "pcie"
    disk_write_bandwidth: BytesPerSecond
    disk_read_bandwidth: BytesPerSecond
    runtime_bytes: BytesOrZero
    host_processors: HostProcessors
    power_clock: Positive = 1.0
    num_processors: Count | None = None
    power_watts: Watts | None = None
    socket_bandwidth: BytesPerSecond | None = None
    framework: str | None = None
    left_out_errors: dict[Population, tuple[float, ...]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


MOST_SITES = 8
NumSites: TypeAlias = Annotated[int, Number(ge=2, le=MOST_SITES)]


@strict_record(frozen=True, kw_only=True, slots=True)
class Sites:
    """
    Several data centres that train one model together, each with an equal share of the devices.

    Only data parallelism crosses their links. Quality is not modelled: local steps train another optimizer, whose loss
    per token is not that of synchronous training.

    Parameters
    ----------
    count
        Number of sites.
    bandwidth
        Bytes per second that all devices of a site together send to another site, one direction; null: unlimited.
    latency
        Seconds before the first byte of a message arrives.
    local_steps
        Steps of the inner optimizer from one synchronization of the weights to the next (DiLoCo's H); 1: gradients are
        reduced over all sites in every step.
    sent_bytes
        Bytes per parameter that are reduced after local steps, and then gathered once more: 4 for FP32, 0.5 for 4 bits.
        Without local steps gradients and weights have the precision's own bytes.
    streams
        Number of fragments of the weights (Streaming DiLoCo): above 1 they are sent while the next steps compute.

    References
    ----------
    Douillard et al., DiLoCo, arXiv:2311.08105; Streaming DiLoCo, arXiv:2501.18512.
    """

    count: NumSites
    bandwidth: Bandwidth | None
    latency: Seconds = 0.0
    local_steps: Count = 1
    sent_bytes: Annotated[Positive, Field(le=8)] = 4.0
    streams: Count = 1


class Slowdowns(TypedDict):
    """
    Slow-downs of computation and communication that run at the same time (:mod:`costmodel.step.overlap`).

    Parameters
    ----------
    slowdown_communication, slowdown_compute
        MoFa's c and k, both at least 1.
    processors_taken
        Share of the device's processors that communication occupies.
    """

    slowdown_communication: float
    slowdown_compute: float
    processors_taken: float | NDArray[np.float64]


@strict_record(frozen=True, kw_only=True)
class EquippedDevice(Device):
    """
    A device as a framework uses it, with networks at achieved bandwidths.

    Parameters
    ----------
    constants
        Constants of its calibration, times the framework's factors.
    behaviour
        Behaviour of the framework's code on it, with its settings.
    """

    constants: Constants
    behaviour: Behaviour

    @property
    def samples_used(self) -> Samples | None:
        """Samples that time its operators and collectives; None: it was not sampled, or other times count."""
        return self.calibration.samples if self.constants.times == "sampled" else None

    @property
    def achieved_memory_bandwidth(self) -> float:
        """Bytes per second of kernels that are limited by device memory."""
        return self.memory_bandwidth * self.constants.memory_efficiency

    @property
    def host_stream_bandwidth(self) -> float:
        """Host memory bandwidth of the threads of a device's process, in bytes per second."""
        return self.host_processors.stream_bandwidth(self.behaviour.offload.host_threads)

    def wide_dtype(self, compute: Dtype) -> Dtype:
        """Return the dtype outside a recipe's matmuls: the recipe's own from 16 bits on, otherwise bf16 or fp16."""
        if compute not in NARROW:
            return compute
        return "bf16" if "bf16" in self.peak_flops else "fp16"

    @property
    def slowdowns(self) -> Slowdowns:
        """Slow-downs of collectives and computation that run at the same time."""
        return {
            "slowdown_communication": self.constants.overlap_slowdown_communication,
            "slowdown_compute": self.constants.overlap_slowdown_compute,
            "processors_taken": self.constants.communication_sm_fraction,
        }


@strict_record(frozen=True, kw_only=True)
class Cluster:
    """
    Devices of one kind with their nodes, their network and their software.

    Parameters
    ----------
    device
        The accelerator with its framework.
    num_devices
        Number of devices that the job gets.
    framework
        Training framework; None: unknown, and no rule of a framework applies.
    settings
        Settings of the framework, its recipes' defaults included.
    unknown_release
        Name of a release that the catalog does not know, with ``framework`` in its place; empty: the release is known.
    device_note
        Sentence on an ambiguous name of the device in the job; empty: the name is unambiguous.
    sites
        Data centres over which the devices are spread; None: all are in one.
    """

    device: EquippedDevice
    num_devices: Count
    framework: Framework | None = None
    settings: Settings = field(default_factory=Settings)
    unknown_release: str = ""
    device_note: str = ""
    sites: Sites | None = None

    @property
    def num_sites(self) -> int:
        """Number of data centres."""
        return self.sites.count if self.sites else 1

    @property
    def scale_up_size(self) -> int:
        """Number of devices in one scale-up domain."""
        return self.device.networks[0].num_peers

    @cached_property
    def single_domain(self) -> Cluster:
        """Cluster of the same devices in one scale-up domain with the same links."""
        innermost = replace(self.device.networks[0], num_peers=max(self.num_devices, self.scale_up_size), is_mesh=False)
        return replace(self, device=replace(self.device, networks=(innermost,)))

    @cached_property
    def coefficients(self) -> dict[Hashable, Any]:
        """Coefficients of collectives between these devices that were computed last, by ranks and strides."""
        return {}

    @property
    def num_nodes(self) -> int:
        """Number of hosts, the last one possibly in part."""
        return -(-self.num_devices // self.device.devices_per_node)
