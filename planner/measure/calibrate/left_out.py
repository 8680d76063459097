"""Accuracy of a fit: predictions of whole groups of rows that it did not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.events import log_progress
from planner.measure.calibrate.cases import Array, Predictor, log_measured_seconds
from planner.measure.calibrate.fit import Fit, Priors, fit
from planner.measure.runs.predictions import Case

Weights: TypeAlias = Callable[[Sequence[Case]], Array]


def predict_left_out(
    predictor: Predictor,
    whole: Fit,
    weights: Weights,
    priors: Priors,
    *,
    folds: NDArray[np.int64],
) -> Array:
    """
    Return logarithms of the seconds of every row, predicted by a fit to the other folds.

    Parameters
    ----------
    predictor
        The rows and the constants.
    whole
        A fit to all rows, where each fit starts, which saves its first derivatives. It does not leak held-out rows:
        their weight is zero, and the search continues until it converges.
    weights
        Function that returns square roots of the weights of fitted rows.
    priors
        As in :func:`planner.measure.calibrate.fit.fit`.
    folds
        Fold of every row.
    """
    measured = log_measured_seconds(predictor.cases)
    left_out = np.zeros(len(measured))
    numbers = sorted(set(folds.tolist()))
    for fold in numbers:
        log_progress(__name__, "fits without a group", numbers.index(fold), len(numbers))
        is_out = folds == fold
        row_weights = np.zeros(len(measured))
        row_weights[~is_out] = weights([case for case, out in zip(predictor.cases, is_out, strict=True) if not out])
        fitted = fit(
            predictor.logarithms,
            predictor.jacobian,
            measured,
            weights=row_weights,
            priors=priors,
            start=whole,
            num_refreshes=0,
        )
        left_out[is_out] = predictor.estimate_logarithms(fitted.logs, is_out)
    return left_out
