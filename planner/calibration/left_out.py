"""What a fit is worth: predictions of whole groups of rows that it did not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.events import log_progress
from planner.calibration.cases import Predictor, measured_logarithms
from planner.calibration.fit import Array, Fit, Priors, fit
from planner.runs.predictions import Case

Weights: TypeAlias = Callable[[Sequence[Case]], Array]


def left_out_logarithms(
    predictor: Predictor,
    whole: Fit,
    weights: Weights,
    priors: Priors,
    *,
    folds: NDArray[np.int64],
) -> Array:
    """
    Logarithms of the seconds of every row, predicted by a fit to the folds that it is not in.

    Parameters
    ----------
    predictor
        The rows and the constants.
    whole
        A fit to all rows: where each fit begins, which saves its first derivatives. What it saw of the rows left out
        does not stay: their weight is zero and the search goes on until it converges.
    weights
        Square roots of the weights of the rows that are fitted.
    priors
        As in :func:`planner.calibration.fit.fit`.
    folds
        Of every row.
    """
    measured = measured_logarithms(predictor.cases)
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
        left_out[is_out] = predictor.estimated(fitted.logs, is_out)
    return left_out
