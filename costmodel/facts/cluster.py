"""Devices of one kind and their software."""

from __future__ import annotations

from dataclasses import field, replace

from pydantic.dataclasses import dataclass

from costmodel.facts.device import EquippedDevice
from costmodel.facts.fields import STRICT, Count
from costmodel.facts.framework import Framework, Settings


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
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
    """

    device: EquippedDevice
    num_devices: Count
    framework: Framework | None = None
    settings: Settings = field(default_factory=Settings)
    unknown_release: str = ""
    device_note: str = ""

    @property
    def scale_up_size(self) -> int:
        """Number of devices in one scale-up domain."""
        return self.device.networks[0].num_peers

    @property
    def single_domain(self) -> Cluster:
        """Cluster of the same devices in one scale-up domain with the same links."""
        innermost = replace(self.device.networks[0], num_peers=max(self.num_devices, self.scale_up_size), is_mesh=False)
        return replace(self, device=replace(self.device, networks=(innermost,)))

    @property
    def num_nodes(self) -> int:
        """Number of hosts, the last one possibly in part."""
        return -(-self.num_devices // self.device.devices_per_node)
