"""Text of an extraction's result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.measure.fit.device import FittedDevice
from planner.measure.fit.learning import FEWEST
from planner.measure.fit.wording import render_fit
from planner.measure.traces.report.device_file import Constant, HostTime
from planner.measure.traces.report.extraction import Extracted

PROFILED = (
    "All times are of steps under the profiler, which slows the host: predicted steps are longer than those without. "
    "One step measured without it corrects that: planner trace project (docs/guides/traces.md, section 5)."
)

MOST_OTHERS = 12
"""Names of unconverted operators that are listed, the longest first."""


def write_extraction_text(
    found: Extracted, path: str, *, hosts: Sequence[HostTime] = (), missing: Sequence[str] | None = None
) -> str:
    """
    Write the report of a table.

    Parameters
    ----------
    found, path
        The extracted samples, and the path of their table.
    hosts
        Times of threads outside of operators, of traces without a device.
    missing
        Operators of a job that the traces do not time; None where no job was given.
    """
    return "\n".join(_lines(found, path, hosts, missing))


def _lines(found: Extracted, path: str, hosts: Sequence[HostTime], missing: Sequence[str] | None) -> Iterator[str]:
    machine = found.samples[0].machine.device if found.samples else "nothing"
    yield f"{len(found.samples)} samples of {machine} from {len(found.by_trace)} traces; table written to {path}"
    yield f"{found.known_fraction:.1%} of the recorded computation became samples."
    total = sum(one.nanoseconds for one in found.by_trace)
    if found.others and total:
        yield ""
        yield f"{'not converted':<50} {'times':>7} {'share':>7}  why"
        for one in found.others[:MOST_OTHERS]:
            yield f"{_short(one.name):<50} {one.count:>7} {one.nanoseconds / total:>7.2%}  {one.reason}"
        rest = found.others[MOST_OTHERS:]
        if rest:
            share = sum(one.nanoseconds for one in rest) / total
            yield f"{f'{len(rest)} other names':<50} {sum(one.count for one in rest):>7} {share:>7.2%}"
    for name, number in found.unknown_messages.items():
        yield f"{_short(name):<50} {number:>7} {'':>7}  communication without a size, or of a kind that is not sampled"
    for one_host in hosts[:1]:
        yield ""
        layer = f", {one_host.per_layer * 1e3:,.3g} ms for each layer" if one_host.per_layer else ""
        yield (
            f"between operators the thread takes {one_host.per_microbatch * 1e3:,.3g} ms for each micro-batch{layer}, "
            f"and {one_host.per_step * 1e3:,.3g} ms for each step"
        )
    if missing is not None:
        yield ""
        said = (
            f"operators of the job missing in all traces: {', '.join(missing)}"
            if missing
            else "the traces have all operators"
        )
        yield f"{said} (of its sizes over tp, ep and micro-batches)"
    for sentence in (PROFILED, *found.doubts):
        yield f"  {sentence}"


def _short(name: str, most: int = 50) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."


def device_report(fitted: FittedDevice, constants: Sequence[Constant], path: str) -> str:
    """Write the report of a device's file: learned operators, and constants from the traces."""
    lines = [render_fit(fitted, path)]
    if any(one.num_samples < FEWEST for one in fitted.operators):
        lines.append(
            f"Errors of operators with fewer than {FEWEST} samples are assumed: none of their shapes was held out."
        )
    if constants:
        lines += ["", f"{'constant from the traces':<34} {'value':>12}  from"]
        lines += [f"{one.name:<34} {one.value:>12.4g}  {one.meaning}" for one in constants]
    return "\n".join(lines)
