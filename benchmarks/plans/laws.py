"""Laws of measured over predicted peaks of memory, as :mod:`planner.uncertainty.peaks` has them, from measured runs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from costmodel.record import record
from planner.uncertainty.counts import ANY
from planner.uncertainty.peaks import ODD_DEVIATION, ODD_SHARE, OWN_ROWS, Law, share_below

MEANS = np.round(np.arange(-0.05, 0.1501, 0.005), 4)

DEVIATIONS = np.array((0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.13))
"""Grid of means and deviations for a law: a finer one would differ by less than a stack's runs can resolve."""


@record(frozen=True, kw_only=True, slots=True)
class Use:
    """
    Evidence of one run for memory.

    Parameters
    ----------
    stack
        Its software.
    group
        Group of runs with similar errors.
    log_peak
        Logarithm of the measured over the predicted peak; None where it was not measured.
    log_use
        Logarithm of the predicted peak over the memory of the device.
    has_run
        True where it ran; else it ran out of memory.
    source
        Publisher of the run.
    is_silent
        True where a setting that determines its memory is unknown: that it fitted is no evidence.
    """

    stack: str
    group: Hashable
    log_peak: float | None
    log_use: float
    has_run: bool
    source: Hashable = None
    is_silent: bool = False


def fit_laws(uses: Sequence[Use]) -> list[Law]:
    """
    Fit the likeliest laws of every stack and of all, where the other stacks' rows count as ``OWN_ROWS``.

    A run without a measured peak shows that the peak was below the memory of its device, or above it.

    Parameters
    ----------
    uses
        Evidence of the runs.
    """
    scores = np.array([_log_likelihoods(use) for use in uses])
    stacks = dict.fromkeys((*sorted({use.stack for use in uses}), ANY))
    return [_law(stack, uses, scores) for stack in stacks]


def fit_laws_without_groups(uses: Sequence[Use], key: Callable[[Use], Hashable] = lambda use: use.group) -> list[Law]:
    """
    Fit the law of every run's stack to the runs of other groups, in the order of the runs.

    Parameters
    ----------
    uses
        Evidence of the runs.
    key
        Function that returns the group to hold out: a run's group, or its source.
    """
    scores = np.array([_log_likelihoods(use) for use in uses])
    members: dict[tuple[Hashable, str], list[int]] = defaultdict(list)
    for number, use in enumerate(uses):
        members[key(use), use.stack].append(number)
    found: dict[int, Law] = {}
    for (group, stack), numbers in members.items():
        kept = [number for number, use in enumerate(uses) if key(use) != group]
        found |= dict.fromkeys(numbers, _law(stack, [uses[number] for number in kept], scores[kept]))
    return [found[number] for number in range(len(uses))]


def chances_without_groups(uses: Sequence[Use], key: Callable[[Use], Hashable] = lambda use: use.group) -> list[float]:
    """Return each run's chance to fit by laws of other groups (:func:`fit_laws_without_groups`), in their order."""
    pairs = zip(fit_laws_without_groups(uses, key), uses, strict=True)
    return [law.share_below(-use.log_use) for law, use in pairs]


def _law(stack: str, uses: Sequence[Use], scores: np.ndarray) -> Law:
    own = np.array([stack in (use.stack, ANY) for use in uses])
    shown = Counter(use.stack for use in uses if use.log_peak is not None or not use.has_run)
    others = max(len(shown.keys() - {stack}), 1)
    shares = np.array([OWN_ROWS / others / max(shown[use.stack], 1) for use in uses])
    is_known = np.array([not use.is_silent or use.log_peak is not None for use in uses])
    weights = is_known * np.where(own, 1.0, np.minimum(1.0, shares))
    best = int(np.argmax(weights @ scores))
    mean, deviation = divmod(best, len(DEVIATIONS))
    kinds = Counter(
        "failures" if not use.has_run else "fits" if use.log_peak is None else "peaks"
        for use, is_own in zip(uses, own, strict=True)
        if is_own and (not use.is_silent or use.log_peak is not None)
    )
    return Law(
        stack=stack,
        mean=float(MEANS[mean]) + 0.0,  # not -0.0
        deviation=float(DEVIATIONS[deviation]),
        **{kind: kinds[kind] for kind in ("peaks", "fits", "failures")},
    )


def _log_likelihoods(use: Use) -> list[float]:
    """Return the log-likelihood of one run under every law of the grid."""
    return [math.log(max(_likelihood(use, mean, deviation), 1e-12)) for mean, deviation in _grid()]


def _grid() -> Iterable[tuple[float, float]]:
    return ((float(mean), float(deviation)) for mean in MEANS for deviation in DEVIATIONS)


def _likelihood(use: Use, mean: float, deviation: float) -> float:
    if use.log_peak is not None:
        usual, odd = _density(use.log_peak, mean, deviation), _density(use.log_peak, 0.0, ODD_DEVIATION)
        return (1 - ODD_SHARE) * usual + ODD_SHARE * odd
    fits = share_below(-use.log_use, mean, deviation)
    return fits if use.has_run else 1 - fits


def _density(value: float, mean: float, deviation: float) -> float:
    return math.exp(-(((value - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))


JOBS: tuple[tuple[str, str, int, int, int], ...] = (
    ("gpt2-xl", "v100-32gb-sxm", 4, 128, 1024),
    ("llama3-8b", "h100-80gb-sxm", 8, 128, 8192),
    ("llama2-13b", "a100-40gb-sxm", 32, 256, 4096),
    ("llama3-8b", "v100-32gb-sxm", 32, 256, 2048),
    ("llama3-70b", "h100-80gb-sxm", 192, 1024, 8192),
    ("llama3-70b", "h100-80gb-sxm", 512, 1024, 8192),
    ("llama3-405b", "h100-80gb-sxm", 2048, 2048, 8192),
    ("llama3-405b", "h100-80gb-sxm", 16384, 2048, 8192),
    ("qwen3-30b-a3b", "h100-80gb-sxm", 16, 512, 4096),
    ("mixtral-8x7b", "a100-80gb-sxm", 64, 512, 4096),
    ("gpt-oss-120b", "gb200", 256, 1024, 4096),
    ("qwen3-235b-a22b", "b200", 128, 1024, 4096),
    ("deepseek-v3", "h100-80gb-sxm", 2048, 8192, 4096),
    ("nemotron-h-56b", "h200", 256, 768, 8192),
    ("nemotron-3-nano-30b-a3b", "h100-80gb-sxm", 64, 768, 8192),
)
"""Model, device, number of devices, sequences per step, tokens per sequence: dense, with experts, hybrid."""
