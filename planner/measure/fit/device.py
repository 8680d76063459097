"""A device's file from samples of one machine: measured entries, learned times, and facts of the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.calibration import Fabric, SampledFabric, SampledOperator
from costmodel.facts.device import Network
from costmodel.network.sampled_fabric import SampledCollectives
from costmodel.record import record
from costmodel.validation import build, shown
from planner.measure.fit.communication import learn_fabric, report_unlearned_collectives
from planner.measure.fit.operators import FEWEST, Unlearned, learn_operators, round_digits
from planner.measure.sample.bench import least_flops, moved_bytes
from planner.measure.sample.samples import TRACED, Machine, Sample
from planner.measure.sample.table import is_gpu

Passes = Mapping[tuple[str, str, str], SampledOperator]

"""Learned operators, by operator, pass and dtype."""

LARGE_FLOPS, LARGE_BYTES = 1e9, 1e7

"""FLOPs and bytes from which on a rate counts."""

RUNTIME_SHARE = 0.06

"""Share of the memory that driver, communication library and allocator take: 5 of 80 GB, as in the catalog."""

ASSUMED: Mapping[str, float] = {
    "disk_write_bandwidth": 2.0e9,
    "disk_read_bandwidth": 2.0e9,
    "host_to_device_bandwidth": 5.5e10,
    "device_to_host_bandwidth": 5.5e10,
}

"""
Assumptions for unmeasured entries, in bytes per second: storage as in MoFa (arXiv 2511.09837), Table 3; pinned copies
over PCIe 5.0 as in the catalog.
"""

BETTER = (
    "memory_bytes",
    "devices_per_node",
    "num_processors",
    "host_to_device_bandwidth",
    "device_to_host_bandwidth",
    "host_processors",
)

"""Entries that samples override in the catalog, whose memory and link rates are nominal."""

FASTER, SLOWER = 1.1, 0.05

"""
Range of the fastest matmul's rate over the stated peak, for samples and facts of one device: from the worst device with
published matmuls to a clock above the datasheet's.
"""

LEAST_BANDWIDTH, MOST_LATENCY = 1e6, 1.0

LEAST = {
    "memory_bytes": (1e8, "bytes"),
    "host_memory_bytes": (1e8, "bytes"),
    "memory_bandwidth": (1e8, "bytes per second"),
    "host_to_device_bandwidth": (1e6, "bytes per second"),
    "device_to_host_bandwidth": (1e6, "bytes per second"),
}

"""Least plausible values; smaller ones are in GB or GB/s."""

EXAMPLE = (
    "A level is {name: links, num_peers: 8, bandwidth: 4.5e+11, latency: 4.0e-06}: reachable devices, bytes per "
    "second of one device, seconds."
)

NEEDED = ("memory_bytes", "memory_bandwidth", "devices_per_node", "networks")

"""Entries that a device's file needs, and samples may lack."""

CANNOT = (
    "Write them into a file and pass it with --device: any entries of a device, such as memory_bytes: 8.5e+10, or "
    "base: h100-80gb-sxm for the catalog's entries of one. Networks are a list of levels, such as [{name: links, "
    "num_peers: 8, bandwidth: 4.5e+11, latency: 4.0e-06}]."
)


@record(frozen=True, kw_only=True, slots=True)
class FittedDevice:
    """
    A device fitted to samples.

    Parameters
    ----------
    entry
        The device as plain data, for a job's ``cluster.device``.
    operators, collectives
        Learned operators and collectives.
    unlearned
        Operators that could not be learned, with reasons.
    num_samples, machine
        Number of samples, and their machine.
    """

    entry: Mapping[str, Any]
    operators: tuple[SampledOperator, ...]
    collectives: SampledFabric | None
    unlearned: tuple[Unlearned, ...]
    num_samples: int
    machine: str


def fit_device(
    samples: Sequence[Sample], *, name: str, facts: Mapping[str, Any] | None = None, host_seconds: float = 0.0
) -> FittedDevice:
    """
    Fit a device to samples.

    Parameters
    ----------
    samples
        Samples of one machine.
    name
        Name of the new device.
    facts
        Further entries of the device, on top of those of a ``base`` in the catalog.
    host_seconds
        Time of the thread outside of each pass of an operator: part of the operator's time, of no rate of the device.

    Raises
    ------
    SpecError
        If there are no samples of matmuls, a needed entry is neither measured nor stated, a stated entry is unknown, or
        samples are faster than a stated peak allows.
    """
    if not samples:
        raise SpecError("samples", "there are none.", "Give a table of 'planner sample'.")
    _require_matmuls(samples)
    machine, stated = samples[0].machine, {**(facts or {})}
    base = _base(stated.pop("base", None))
    _require_facts(stated)
    measured = {
        key: value for key, value in _entries_from_samples(samples, machine).items() if key not in base or key in BETTER
    }
    known = catalog.merge_mappings(catalog.merge_mappings(_set_node_size(base, measured), measured), stated)
    entry = {"name": name, **_assumptions(known), **known}
    collectives, links = learn_fabric(samples, _fabric(entry))
    if links is not None and "networks" not in stated:
        measured["networks"] = entry["networks"] = _networks(links, entry)
    missing = [one for one in NEEDED if one not in entry]
    if missing:
        raise SpecError("facts", f"the samples of {shown(machine.device)} lack {', '.join(missing)}.", CANNOT)
    entry["peak_flops"] = _peaks(samples, known.get("peak_flops", {}))
    processors = entry.get("num_processors")
    bare, unlearned = learn_operators(samples, num_processors=processors)
    operators = bare
    if host_seconds:
        operators, unlearned = learn_operators(samples, num_processors=processors, host_seconds=host_seconds)
    if not any((one.operator, one.of_pass) == ("matmul", "forward") for one in operators):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unlearned if name.startswith("matmul forward"))
        raise SpecError("samples", f"matmuls could not be learned: {reasons}.", "Sample again, on an idle machine.")
    source = _source(samples)
    entry["calibration"] = _calibration(entry, bare, samples, name, source)
    entry["sources"] = _sources(entry, base, measured, stated, source)
    unlearned = (*unlearned, *report_unlearned_collectives(samples))
    entry["calibration"]["samples"] = {
        "machine": str(machine),
        "operators": [_plain(one) for one in operators],
        **({"collectives": _plain(collectives)} if collectives else {}),
        **({"origin": "trace"} if machine.software.startswith(TRACED) else {}),
        "sources": {"operators": f"{source}; errors are medians over held-out families of shapes"},
    }
    catalog.device_of(entry, "facts")
    return FittedDevice(
        entry=entry,
        operators=operators,
        collectives=collectives,
        unlearned=unlearned,
        num_samples=len(samples),
        machine=str(machine),
    )


def _source(samples: Sequence[Sample]) -> str:
    """Return the source of entries from samples, for the file."""
    machine = samples[0].machine
    if machine.software.startswith(TRACED):
        return (
            f"planner trace extract: {len(samples)} samples of {machine.device} under the profiler, which slows hosts"
        )
    return f"planner calibrate: {len(samples)} samples of {machine.device}"


def change_device(facts: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """
    Return a device of the catalog with changed facts as plain data, with its own calibration for further constants.

    Parameters
    ----------
    facts
        Entries of a device, on top of those of the ``base`` that they name.
    name
        Name of the new device.

    Raises
    ------
    SpecError
        If a stated entry is unknown.
    """
    stated = {**facts}
    base = _base(stated.pop("base", None))
    _require_facts(stated)
    known = {**catalog.merge_mappings(base, stated), "name": name}
    sources = _sources(known, base, {}, stated, "")
    return {**known, "calibration": {"base": known["calibration"], "name": name, "sources": {}}, "sources": sources}


def num_matmuls(samples: Iterable[Sample]) -> int:
    """Count different sizes of forward matmuls that ran alone, of the dtype with most."""
    points = {one.point for one in samples}
    alone = (one for one in points if (one.operator, one.pass_, one.beside) == ("matmul", "forward", ""))
    return max(Counter(one.dtype for one in alone).values(), default=0)


def _require_matmuls(samples: Sequence[Sample]) -> None:
    """Refuse tables from which no device can be fitted, before the user writes facts for them."""
    most = num_matmuls(samples)
    if most < FEWEST:
        raise SpecError(
            "samples",
            f"have {most} different forward matmuls of one dtype among {len(samples)} rows; {FEWEST} are needed.",
            "'planner sample' measures some of each dtype that its job has.",
        )


def _require_facts(stated: Mapping[str, Any]) -> None:
    """Refuse facts that are not entries of a device, or are in other units."""
    networks = stated.get("networks")
    if networks is not None and (not isinstance(networks, list) or not networks):
        raise SpecError("facts.networks", f"expected a list of levels, got {shown(networks)}.", EXAMPLE)
    for number, level in enumerate(networks or ()):
        one = build(Network, level, f"facts.networks.{number}")
        if one.bandwidth < LEAST_BANDWIDTH or one.latency > MOST_LATENCY:
            where = f"facts.networks.{number}"
            problem = f"has {one.bandwidth:g} bytes per second and {one.latency:g} s."
            raise SpecError(where, problem, "Bandwidths are in bytes per second, latencies in seconds.")
    if not isinstance(stated.get("sources", {}), Mapping):
        raise SpecError("facts.sources", f"expected a mapping, got {shown(stated['sources'])}.")
    for field, (least, unit) in LEAST.items():
        value = stated.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool) and value < least:
            raise SpecError(f"facts.{field}", f"is {value:g}; the unit is {unit}.")


def _set_node_size(base: Mapping[str, Any], measured: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the catalog's device with the sampled devices per node; its innermost network still spans a node."""
    node = measured.get("devices_per_node")
    if not base or node is None or base["networks"][0]["num_peers"] != base["devices_per_node"]:
        return base
    inner, *others = base["networks"]
    return {**base, "networks": [{**inner, "num_peers": node}, *others]}


def _base(name: object) -> dict[str, Any]:
    """Return the entries of the facts' base in the catalog; {} without a base."""
    if name is None:
        return {}
    if not isinstance(name, str):
        raise SpecError("facts.base", f"expected a name, got {shown(name)}.")
    return {key: value for key, value in catalog.device_entry(name).items() if key not in ("name", "left_out_errors")}


MANY_DEVICES = 1048576

"""Devices that the outermost level of sampled networks reaches: samples show no limit."""


def _fabric(entry: Mapping[str, Any]) -> Fabric:
    """Return the facts of the links."""
    inner, *others = entry.get("networks", ({},))
    return Fabric(
        bandwidth=inner.get("bandwidth"),
        is_mesh=inner.get("is_mesh", False),
        network_bandwidth=others[0]["bandwidth"] if others else None,
    )


def _networks(links: SampledCollectives, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return network levels from samples; outer ones from the facts where no sample crossed nodes."""
    per_node = entry.get("devices_per_node", 1)
    reach = MANY_DEVICES if links.between else per_node
    levels = links.networks(devices_per_node=per_node, num_devices=reach)
    found = [
        {
            "name": level.name,
            "num_peers": level.num_peers,
            "bandwidth": round_digits(level.bandwidth),
            "latency": round_digits(level.latency),
            **({"is_mesh": True} if level.is_mesh else {}),
        }
        for level in levels
    ]
    return found if links.between else [*found, *list(entry.get("networks", ()))[1:]]


# --- what was measured --------------------------------------------------------------------------------------
def _entries_from_samples(samples: Sequence[Sample], machine: Machine) -> dict[str, Any]:
    """Return the entries of a device that samples contain."""
    found: dict[str, Any] = {}
    for field in ("memory_bytes", "num_processors", "devices_per_node"):
        value = getattr(machine, field, None)
        if value is not None:
            found[field] = value
    streamed = _fastest(samples, ("copy", "residual", "rms_norm", "adam"), moved_bytes, LARGE_BYTES)
    if streamed:
        found["memory_bandwidth"] = round_digits(streamed)
    for field in ("host_to_device", "device_to_host"):
        rate = _fastest(samples, (field,), lambda point: point.sizes.nbytes or 0, LARGE_BYTES)
        if rate:
            found[f"{field}_bandwidth"] = round_digits(rate)
    update = _fastest(samples, ("host_adam",), moved_bytes, LARGE_BYTES)
    if update:
        found["host_processors"] = {"memory_bandwidth": round_digits(update)}
    if not is_gpu(machine) and not machine.software.startswith(TRACED):
        found["host_link"] = "none"
    return found


def _fastest(
    samples: Iterable[Sample], operators: Sequence[str], amount: Callable[[Any], float], least: float
) -> float:
    """Return the best rate of large samples that ran alone; 0 if there are none."""
    rates = (
        amount(one.point) / one.timing.seconds
        for one in samples
        if one.point.operator in operators and not one.point.beside and amount(one.point) >= least
    )
    return max(rates, default=0.0)


def _best_rates(samples: Sequence[Sample]) -> dict[str, float]:
    """Return each dtype's fastest matmul in FLOP/s, a large one if possible, for MFU without a datasheet."""
    dtypes = dict.fromkeys(one.point.dtype for one in samples if one.point.operator == "matmul")
    of_dtype = {dtype: [one for one in samples if one.point.dtype == dtype] for dtype in dtypes}
    rates = {
        dtype: _fastest(own, ("matmul",), least_flops, LARGE_FLOPS) or _fastest(own, ("matmul",), least_flops, 0.0)
        for dtype, own in of_dtype.items()
    }
    return {dtype: round_digits(rate) for dtype, rate in rates.items() if rate}


def _peaks(samples: Sequence[Sample], stated: Mapping[str, float]) -> dict[str, float]:
    """Return the stated peaks; for other dtypes the rate of the fastest matmul."""
    best = _best_rates(samples)
    for dtype, rate in best.items():
        if rate > FASTER * stated.get(dtype, np.inf) or rate < SLOWER * stated.get(dtype, 0.0):
            raise SpecError(
                f"facts.peak_flops.{dtype}",
                f"is {stated[dtype]:.3g}, but the fastest sampled matmul reaches {rate:.3g} FLOP/s.",
                "Samples and facts are of different devices, or the samples' times or the unit of the peak are wrong.",
            )
    return best | dict(stated)


def _assumptions(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return assumptions for entries that are neither measured nor stated; the file names them."""
    memory, bandwidth = known.get("memory_bytes", 0), known.get("memory_bandwidth", 0.0)
    return {
        "host_memory_bytes": memory,
        "runtime_bytes": round_digits(RUNTIME_SHARE * memory),
        "host_processors": {"memory_bandwidth": bandwidth},
        **ASSUMED,
    }


def _calibration(
    entry: Mapping[str, Any], operators: Sequence[SampledOperator], samples: Sequence[Sample], name: str, source: str
) -> dict[str, Any]:
    """Return efficiencies for unsampled operators, on top of the facts' calibration."""
    peaks = entry["peak_flops"]
    found: Passes = {(one.operator, one.of_pass, one.dtype): one for one in operators}
    rates = {
        dtype: found["matmul", "forward", dtype].flops_per_second or peak
        for dtype, peak in peaks.items()
        if ("matmul", "forward", dtype) in found
    }
    dtype = next(iter(rates))
    constants: dict[str, Any] = {
        "times": "sampled",
        "matmul_efficiency": {one: _share(rate, peaks[one]) for one, rate in rates.items()},
        "attention_efficiency": _share(_rate_of(found, "attention", dtype) or rates[dtype], peaks[dtype]),
        "memory_efficiency": _share(_streaming_rate(operators) or entry["memory_bandwidth"], entry["memory_bandwidth"]),
        "kernel_gap_seconds": found["matmul", "forward", dtype].smallest_seconds,
        "launch_overhead_seconds": _launch_seconds(samples),
    }
    grouped = _rate_of(found, "grouped_matmul", dtype)
    if grouped:
        constants["grouped_matmul_efficiency"] = _share(grouped, rates[dtype])
    constants |= _slowdowns(samples)
    base = entry.get("calibration")
    return {
        **({"base": base} if base else {}),
        "name": name,
        **constants,
        "sources": dict.fromkeys(constants, source),
    }


def _share(rate: float, whole: float) -> float:
    return round_digits(min(rate / whole, 1.0))


def _rate_of(found: Passes, operator: str, dtype: str) -> float | None:
    one = found.get((operator, "forward", dtype))
    return one.flops_per_second if one else None


def _streaming_rate(operators: Sequence[SampledOperator]) -> float | None:
    """Return the median rate of single kernels that only move bytes; sequences of kernels move more than is counted."""
    rates = [
        one.bytes_per_second
        for one in operators
        if one.operator in ("residual", "rms_norm", "layer_norm", "gelu", "softmax") and one.of_pass == "forward"
    ]
    return float(np.median(rates)) if rates else None


def _launch_seconds(samples: Sequence[Sample]) -> float:
    seconds = [one.timing.seconds for one in samples if one.point.operator == "launch"]
    return round_digits(float(np.median(seconds))) if seconds else 0.0


def _slowdowns(samples: Sequence[Sample]) -> dict[str, float]:
    """Return MoFa's k and c: time of a matmul that overlaps with copies over its time alone, and the reverse."""
    alone = {
        (one.point.operator, one.point.pass_, one.point.dtype, one.point.sizes): one.timing.seconds
        for one in samples
        if not one.point.beside
    }
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for one in samples:
        point = one.point
        reference = alone.get((point.operator, point.pass_, point.dtype, point.sizes))
        if point.beside and reference:
            ratios[point.operator == "matmul"].append(one.timing.seconds / reference)
    names = {True: "overlap_slowdown_compute", False: "overlap_slowdown_communication"}
    return {names[key]: round_digits(min(max(float(np.median(own)), 1.0), 10.0)) for key, own in ratios.items() if own}


def _sources(
    entry: Mapping[str, Any],
    base: Mapping[str, Any],
    measured: Mapping[str, Any],
    stated: Mapping[str, Any],
    source: str,
) -> dict[str, str]:
    """Return the source of each entry: stated, measured, from the catalog, or assumed."""
    own: dict[str, str] = stated.get("sources", {})
    found = {key: text for key, text in base.get("sources", {}).items() if key not in (*measured, *stated)}
    for field in entry:
        if field in ("name", "calibration", "sources"):
            continue
        if field in stated:
            found[field] = own.get(field, "facts given to planner calibrate")
        elif field in measured or (field == "peak_flops" and field not in base):
            found[field] = f"{source}; the best seen"
        elif field not in base:
            found[field] = "assumption: neither measured nor stated"
    return found | own


def _plain(one: SampledOperator | SampledFabric) -> dict[str, Any]:
    """Convert a record to YAML's types: lists instead of tuples, without defaults."""
    return {key: _plain_value(value) for key, value in asdict(one).items() if value is not None}


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain_value(one) for key, one in value.items() if one is not None}
    return list(value) if isinstance(value, tuple) else value


WELL_KNOWN = 0.05

"""Median error up to which an operator needs no more samples."""


def render_fit(found: FittedDevice, path: str) -> str:
    """Write the report of a device file."""
    return "\n".join(_lines(found, path))


def _lines(found: FittedDevice, path: str) -> Iterator[str]:
    yield f"{found.num_samples} samples of {found.machine}; device written to {path}"
    yield ""
    if found.operators:
        yield f"{'operator':<34} {'samples':>7} {'error':>7}  rates"
    for one in sorted(found.operators, key=lambda one: (one.operator, one.of_pass, one.dtype)):
        yield _operator(one)
    if found.collectives:
        yield _collectives(found.collectives)
    if found.operators:
        yield "error: of the median sample, with its family of shapes held out (collectives: none held out)"
    for name, reason in found.unlearned:
        yield f"  not learned: {name}: {reason}; the roofline times it"
    assumed = [name for name, source in found.entry["sources"].items() if source.startswith("assumption")]
    if assumed:
        yield f"  assumed, neither measured nor stated: {', '.join(assumed)} (state them with --device)"
    yield ""
    yield f"Use it as cluster: {{device: {path if '/' in path else f'./{path}'}}} of a job."


def _operator(one: SampledOperator) -> str:
    name = f"{one.operator} {one.of_pass} {one.dtype}"
    computing = f"{one.flops_per_second / 1e12:,.3g} TFLOP/s, " if one.flops_per_second else ""
    rates = f"{computing}{one.bytes_per_second / 1e9:,.3g} GB/s, at least {one.smallest_seconds * 1e6:,.3g} us"
    return f"{name:<34} {one.num_samples:>7} {one.error:>7.1%}  {rates}"


def _collectives(links: SampledFabric) -> str:
    inside = f"{links.constants['bandwidth'] / 1e9:,.3g} GB/s inside a node"
    between = f"{links.constants['network_bandwidth'] / 1e9:,.3g} GB/s of a device between nodes"
    rates = ", ".join(text for text, tier in ((inside, links.inside), (between, links.between)) if tier)
    return f"{'collectives':<34} {links.num_samples:>7} {links.error:>7.1%}  {rates}"
