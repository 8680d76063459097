"""Ratios of steps: predicted beside measured, and how far they are off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.accuracy.metrics import APART, Errors, errors, grouped
from benchmarks.effects.pairs import Pair
from planner.measure.runs.predictions import Prediction

MOST_MEDIAN = 0.04
MOST_P90 = 0.12
"""What the median and the 90th percentile of the errors may be, without pairs that change the release alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """
    What a change does to a step.

    Parameters
    ----------
    pair
        Both runs.
    measured_seconds, predicted_seconds
        Seconds of the first run's step, and of the second one's.
    model, device, num_devices
        Of both.
    """

    pair: Pair
    measured_seconds: tuple[float, float]
    predicted_seconds: tuple[float, float]
    model: str
    device: str
    num_devices: int

    @property
    def measured(self) -> float:
        """Measured seconds of the second run's step over those of the first one."""
        return self.measured_seconds[1] / self.measured_seconds[0]

    @property
    def predicted(self) -> float:
        """The same as predicted."""
        return self.predicted_seconds[1] / self.predicted_seconds[0]

    @property
    def error(self) -> float:
        """The predicted ratio over the measured one, minus 1."""
        return self.predicted / self.measured - 1

    @property
    def error_without(self) -> float:
        """The same of the ratio 1, the answer of whoever knows no effect."""
        return 1 / self.measured - 1

    @property
    def is_clear(self) -> bool:
        """Whether the measured steps differ by more than 5 %."""
        return abs(self.measured - 1) > APART

    @property
    def is_on_the_wrong_side(self) -> bool:
        """Whether a clear effect is predicted as its opposite, or as none."""
        return self.is_clear and (self.measured - 1) * (self.predicted - 1) <= 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """
    How far the ratios of some effects are off.

    Parameters
    ----------
    predicted, without
        Errors of the predicted ratios; of the ratio 1.
    clear, wrong
        Effects above 5 %; those of them that come out on the wrong side.
    """

    predicted: Errors
    without: Errors
    clear: int
    wrong: int

    @property
    def hold(self) -> bool:
        """Whether both goals hold."""
        return self.predicted.median <= MOST_MEDIAN and self.predicted.p90 <= MOST_P90


def effects(pairs: Iterable[Pair], predicted: Mapping[str, Prediction]) -> Iterator[Effect]:
    """
    The effects of pairs whose runs both have a measured and a predicted step.

    Parameters
    ----------
    pairs
        Pairs.
    predicted
        Predictions by id of the run.
    """
    for pair in pairs:
        first, second = predicted.get(pair.first), predicted.get(pair.second)
        if first is None or second is None or not first.run.step_seconds or not second.run.step_seconds:
            continue
        yield Effect(
            pair=pair,
            measured_seconds=(first.run.step_seconds, second.run.step_seconds),
            predicted_seconds=(first.step_seconds, second.step_seconds),
            model=second.run.model,
            device=second.run.device,
            num_devices=second.run.num_devices,
        )


def figures(found: Sequence[Effect]) -> Figures:
    """
    Summarise effects.

    Parameters
    ----------
    found
        At least one.
    """
    return Figures(
        predicted=errors([one.error for one in found]),
        without=errors([one.error_without for one in found]),
        clear=sum(one.is_clear for one in found),
        wrong=sum(one.is_on_the_wrong_side for one in found),
    )


def figures_by(found: Sequence[Effect], key: Callable[[Effect], str]) -> dict[str, Figures]:
    """The same for each group, the largest first."""
    groups = sorted(grouped(found, key).items(), key=lambda item: -len(item[1]))
    return {name: figures(same) for name, same in groups}
