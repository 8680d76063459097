"""Errors of collective times on samples that were left out, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.timing.gaussian_process import Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Unseen:
    """
    Relative errors on samples that were left out.

    Parameters
    ----------
    systems
        Name of the system of each; shape (rows,).
    groups
        What is reported together within a system; shape (rows,).
    nbytes
        Bytes of each collective; shape (rows,); nought where they are not known.
    of_laws
        Predicted over measured, less one, absolute, by law; shape (rows,).
    covered
        Whether the 90 % interval holds the measured time; shape (rows,).
    """

    systems: NDArray[np.str_]
    groups: NDArray[np.str_]
    nbytes: Rows
    of_laws: Mapping[str, Rows]
    covered: NDArray[np.bool_]

    def __getitem__(self, rows: NDArray[np.bool_]) -> Unseen:
        """Some of the rows."""
        return Unseen(
            systems=self.systems[rows],
            groups=self.groups[rows],
            nbytes=self.nbytes[rows],
            of_laws={name: errors[rows] for name, errors in self.of_laws.items()},
            covered=self.covered[rows],
        )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.covered)

    def quantile(self, fraction: float, law: str = "learned") -> float:
        """Error that a fraction of the rows is within."""
        return float(np.quantile(self.of_laws[law], fraction))


def joined(parts: Sequence[Unseen]) -> Unseen:
    """Several as one; they have the same laws."""
    return Unseen(
        systems=np.concatenate([one.systems for one in parts]),
        groups=np.concatenate([one.groups for one in parts]),
        nbytes=np.concatenate([one.nbytes for one in parts]),
        of_laws={name: np.concatenate([one.of_laws[name] for one in parts]) for name in parts[0].of_laws},
        covered=np.concatenate([one.covered for one in parts]),
    )


def lines(unseen: Unseen) -> Iterator[str]:
    """A table in text: a row for each system and group, median and 90th percentile of each law; then all together."""
    heads = "".join(f"{name:>17}" for name in unseen.of_laws)
    yield f"{'system':24}{'what':28}{'rows':>7}{heads}{'in 90 %':>9}"
    pairs = list(dict.fromkeys(zip(unseen.systems.tolist(), unseen.groups.tolist(), strict=True)))
    for system, group in sorted(pairs):
        yield line(system, group, unseen[(unseen.systems == system) & (unseen.groups == group)])
    yield line("all", "", unseen)


def line(system: str, group: str, unseen: Unseen) -> str:
    """One row of the table."""
    cells = "".join(
        f"{f'{unseen.quantile(0.5, law):.1%} / {unseen.quantile(0.9, law):.1%}':>17}" for law in unseen.of_laws
    )
    return f"{system[:23]:24}{group[:27]:28}{len(unseen):>7}{cells}{np.mean(unseen.covered):>9.0%}"
