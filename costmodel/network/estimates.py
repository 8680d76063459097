"""Constants of a law estimated from samples, with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from costmodel.timing.gaussian_process import Rows

Law = Callable[[Mapping[str, float]], Rows]
"""Function that returns the seconds of each row, from constants by name."""

STEP = 1e-3
"""Step in a logarithm for numerical derivatives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimates:
    """
    Positive constants by name, with normally distributed logarithms.

    Parameters
    ----------
    names
        Names of the constants.
    logarithms
        Natural logarithms of the most likely values; shape (names,).
    covariance
        Covariance of the logarithms; shape (names, names).
    """

    names: tuple[str, ...]
    logarithms: Rows
    covariance: Rows

    @property
    def values(self) -> dict[str, float]:
        """Most likely values by name."""
        return dict(zip(self.names, np.exp(self.logarithms).tolist(), strict=True))

    def deviation(self, name: str) -> float:
        """Standard deviation of a constant's logarithm."""
        place = self.names.index(name)
        return float(np.sqrt(self.covariance[place, place]))

    def variance(self, law: Law) -> Rows:
        r"""
        Variance of the logarithm of a law's seconds due to the constants; shape (rows,).

        .. math:: v = J \Sigma J^T, \qquad J_{ij} = \partial \log t_i / \partial \log c_j

        Derivation: within a constant's uncertainty, a law is nearly a power of the constant.
        """
        slopes = jacobian(lambda logarithms: law(self.named(logarithms)), self.logarithms)
        variance: Rows = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        return variance

    def named(self, logarithms: Rows) -> dict[str, float]:
        """Return the constants of these logarithms by name."""
        return dict(zip(self.names, np.exp(logarithms).tolist(), strict=True))


def jacobian(seconds: Callable[[Rows], Rows], logarithms: Rows) -> Rows:
    """Return derivatives of the logarithms of seconds by logarithms of constants; shape (rows, constants)."""
    here = np.log(seconds(logarithms))
    moved = [np.log(seconds(logarithms + STEP * unit)) for unit in np.eye(len(logarithms))]
    slopes: Rows = (np.column_stack(moved) - here[:, None]) / STEP
    return slopes
