"""Text of a fit to samples."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.facts.samples import SampledFabric, SampledOperator
from planner.measure.fit.device import FittedDevice

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
    for other in found.unlearned:
        yield f"  not learned: {other.name}: {other.reason}; the roofline times it"
    assumed = [name for name, source in found.entry["sources"].items() if source.startswith("assumption")]
    if assumed:
        yield f"  assumed, neither measured nor stated: {', '.join(assumed)} (state them with --facts)"
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
