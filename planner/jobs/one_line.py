"""A job in one line: a model, a cluster such as ``64x8xh100``, and three numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from costmodel.catalog.aliases import find_unique_device
from costmodel.errors import SpecError
from costmodel.quantities import COUNT, whole
from costmodel.validation import shown
from planner.jobs.cluster import device_of
from planner.jobs.document import NOWHERE, Document, Place, Plain, nest_entries, parse
from planner.jobs.entries import OPTIONS

EXAMPLE = "512xh100"
SPELLING = f"Write devices and device, such as {EXAMPLE}, or nodes, devices of each and device: 64x8xh100."

CLUSTER = re.compile(r"([0-9][^x\s]*)x(?:([0-9][^x\s]*)x)?([A-Za-z]\S*(?: \S+)*)")
SWAPPED = re.compile(r"([A-Za-z]\S*?)x([0-9]+)")
SPACED = re.compile(r"([0-9]+)[\s*x\u00d7]+(?:([0-9]+)[\s*x\u00d7]+)?([A-Za-z][^\s*\u00d7]*)")
JOINED = re.compile(r"((?:[0-9]+x)?[0-9]+)(?!e[0-9])([A-WYZa-wyz][A-WYZa-wyz-]*[0-9]\S*)")
DEEPER = re.compile(r"(?:[0-9]+x){3,}[A-Za-z].*")
DEVICE = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
NO_DEVICES = ("gpu", "gpus", "device", "devices", "node", "nodes")
"""Words that count devices without naming them."""


def one_line(model: str, cluster: str, numbers: Mapping[str, str]) -> Document:
    """
    Build the job of one line.

    Parameters
    ----------
    model
        Name in the catalog or on the Hugging Face hub, or path of a ``config.json``.
    cluster
        Such as ``512xh100``.
    numbers
        Texts by option of ``OPTIONS``.

    Returns
    -------
    Document
        Mistakes in the spelling of the cluster are among its mistakes.

    Raises
    ------
    SpecError
        If the model and the cluster are swapped.
    """
    if CLUSTER.fullmatch(model) and not CLUSTER.fullmatch(cluster):
        fix = f"The model comes first: {cluster} {model}."
        raise SpecError("model", f"{shown(model)} is a cluster, and {shown(cluster)} is none.", fix)
    mistakes: list[SpecError] = []
    entries: dict[str, Plain] = {"model": model}
    try:
        entries["cluster"] = cluster_entries(cluster)
    except SpecError as error:
        mistakes.append(error)
    places = {"model": NOWHERE, "cluster": NOWHERE}
    places |= {entry: Place(where=f"--{option}", text=numbers.get(option, "")) for option, entry in OPTIONS.items()}
    entries.update(
        nest_entries({"training": {}, **{OPTIONS[option]: _plain(text) for option, text in numbers.items()}})
    )
    return Document(entries=entries, folder=Path(), name=_name(model, cluster), places=places, mistakes=tuple(mistakes))


def _plain(text: str) -> Plain:
    """Return the number that a text means, or the text where it has a unit or is no YAML."""
    try:
        return parse(text, "")
    except SpecError:
        return text


def cluster_entries(text: str) -> dict[str, Plain]:
    """
    Read a cluster in one word as the section of a job.

    Nodes smaller than the device's own get NVLink domains of their size, where the device's domain is a node.

    >>> cluster_entries("64x8xh100")
    {'device': 'h100', 'num_devices': 512, 'devices_per_node': 8}
    >>> cluster_entries("128x4xh100-80gb-sxm")
    {'device': 'h100-80gb-sxm', 'num_devices': 512, 'devices_per_node': 4, 'scale_up_size': 4}

    Names of machines, instead of devices, count their devices:

    >>> cluster_entries("32xp5.48xlarge")
    {'device': 'p5.48xlarge', 'num_devices': 256}

    Raises
    ------
    SpecError
        If it is spelled in another way; the hint gives the right spelling.
    """
    found = CLUSTER.fullmatch(text)
    if found is None or found[3].lower() in NO_DEVICES or JOINED.fullmatch(text):
        raise SpecError("cluster", f"{shown(text)} is no cluster.", _spelling(text))
    first, second, device = _count(found[1], text), found[2], found[3]
    if second is None:
        machine = find_unique_device(device)
        return {"device": device, "num_devices": first * (machine.num_devices if machine else 1)}
    node = _count(second, text)
    return {"device": device, "num_devices": first * node, "devices_per_node": node, **_domain(device, node)}


def _domain(device: str, node: int) -> dict[str, Plain]:
    try:
        known = device_of(device)
    except SpecError:
        return {}
    domain = known.networks[0].num_peers
    return {"scale_up_size": node} if node < domain == known.devices_per_node else {}


def _count(text: str, cluster: str) -> int:
    """Read a number of nodes or devices."""
    try:
        return whole(text, COUNT, "cluster")
    except SpecError as error:
        raise SpecError("cluster", f"{shown(cluster)} is no cluster: {error.problem}", error.hint or SPELLING) from None


def _spelling(text: str) -> str:
    """Suggest the cluster that was probably meant."""
    if found := SWAPPED.fullmatch(text):
        return f"Write {found[2]}x{found[1]}."
    if found := JOINED.fullmatch(text):
        return f"Write {found[1]}x{found[2]}."
    if DEEPER.fullmatch(text):
        return f"It has a count too many. {SPELLING}"
    found = SPACED.fullmatch(text.strip())
    if found and found[3].lower() not in NO_DEVICES:
        return f"Write {'x'.join(filter(None, found.groups()))}."
    devices = re.match(r"[0-9]+", text.strip())
    named = f"{devices[0]}xh100-80gb-sxm" if devices else f"512x{text}" if DEVICE.fullmatch(text) else ""
    example = f"Write the device, too, such as {named}" if devices else f"Write how many, such as {named}"
    return f"{example} (planner catalog devices lists them)." if named else SPELLING


def _name(model: str, cluster: str) -> str:
    """Name the job for reports."""
    path = Path(model)
    stem = Path(os.path.realpath(path)).parent.name if path.name == "config.json" else path.name
    return f"{stem}-{cluster}"
