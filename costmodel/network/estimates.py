"""Constants of a law that were estimated from samples, and how sure they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from costmodel.operators.gaussian_process import Rows

Law = Callable[[Mapping[str, float]], Rows]
"""Seconds of each row, by the constants' names."""

STEP = 1e-3
"""Change of a logarithm by which a derivative is taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimates:
    """
    Positive constants by name, as normally distributed logarithms.

    Parameters
    ----------
    names
        Of the constants.
    logarithms
        Natural ones of the likeliest values; shape (names,).
    covariance
        Of the logarithms; shape (names, names).
    """

    names: tuple[str, ...]
    logarithms: Rows
    covariance: Rows

    @property
    def values(self) -> dict[str, float]:
        """The likeliest values."""
        return dict(zip(self.names, np.exp(self.logarithms).tolist(), strict=True))

    def deviation(self, name: str) -> float:
        """Standard deviation of a constant's logarithm."""
        place = self.names.index(name)
        return float(np.sqrt(self.covariance[place, place]))

    def variance(self, law: Law) -> Rows:
        r"""
        Variance of the logarithm of a law's seconds, as far as it comes from the constants; shape (rows,).

        .. math:: v = J \Sigma J^T, \qquad J_{ij} = \partial \log t_i / \partial \log c_j

        Derivation: a law is nearly a power of each constant within the constant's uncertainty.
        """
        slopes = jacobian(lambda logarithms: law(self.named(logarithms)), self.logarithms)
        variance: Rows = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        return variance

    def named(self, logarithms: Rows) -> dict[str, float]:
        """Constants of these logarithms by name."""
        return dict(zip(self.names, np.exp(logarithms).tolist(), strict=True))


def jacobian(seconds: Callable[[Rows], Rows], logarithms: Rows) -> Rows:
    """Derivatives of the logarithms of seconds by logarithms of constants; shape (rows, constants)."""
    here = np.log(seconds(logarithms))
    moved = [np.log(seconds(logarithms + STEP * unit)) for unit in np.eye(len(logarithms))]
    slopes: Rows = (np.column_stack(moved) - here[:, None]) / STEP
    return slopes
