"""Errors of learned times on samples that were left out, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.timing.gaussian_process import Rows
from costmodel.timing.sampled import NORMAL_90


@dataclass(frozen=True, kw_only=True, slots=True)
class Unseen:
    """
    Relative errors on samples that were left out.

    Parameters
    ----------
    systems
        Name of the system, or of the device, of each; shape (rows,).
    groups
        Operator, kind of collective or fold, by which a system's errors are reported; shape (rows,).
    of_laws
        Predicted over measured, less one, absolute, by law; shape (rows,); NaN where there is no datasheet.
    covered
        True where the 90 % interval holds the measured time; shape (rows,).
    outside
        1 where the sample is outside of the range of the known ones, else 0; NaN where it is not known; shape (rows,).
    nbytes
        Bytes of each collective; shape (rows,); 0 of others.
    """

    systems: NDArray[np.str_]
    groups: NDArray[np.str_]
    of_laws: Mapping[str, Rows]
    covered: NDArray[np.bool_]
    outside: Rows
    nbytes: Rows

    def __getitem__(self, rows: NDArray[np.bool_]) -> Unseen:
        """Return some of the rows."""
        return Unseen(
            systems=self.systems[rows],
            groups=self.groups[rows],
            of_laws={name: errors[rows] for name, errors in self.of_laws.items()},
            covered=self.covered[rows],
            outside=self.outside[rows],
            nbytes=self.nbytes[rows],
        )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.covered)

    def quantile(self, fraction: float, law: str = "learned") -> float:
        """Error that a fraction of the rows is within; NaN where the law has none."""
        return float(np.quantile(self.of_laws[law], fraction))

    def by_group(self) -> Iterator[tuple[str, str, Unseen]]:
        """Yield the rows of each system and group, with their names."""
        pairs = dict.fromkeys(zip(self.systems.tolist(), self.groups.tolist(), strict=True))
        for system, group in sorted(pairs):
            yield system, group, self[(self.systems == system) & (self.groups == group)]


def score(
    measured: Rows,
    seconds: Mapping[str, Rows],
    deviation: Rows,
    *,
    system: str,
    groups: NDArray[np.str_],
    outside: NDArray[np.bool_] | None = None,
    nbytes: Rows | None = None,
) -> Unseen:
    """
    Compare the seconds of laws with measured ones.

    Parameters
    ----------
    measured
        Measured seconds; shape (rows,).
    seconds, deviation
        Seconds by law, with ``learned``, whose logarithm has this standard deviation; shape (rows,).
    system, groups, outside, nbytes
        As in :class:`Unseen`.
    """
    logarithms = np.log(seconds["learned"] / measured)
    return Unseen(
        systems=np.full(len(measured), system),
        groups=groups,
        of_laws={name: np.abs(own / measured - 1) for name, own in seconds.items()},
        covered=np.abs(logarithms) <= NORMAL_90 * deviation,
        outside=np.full(len(measured), np.nan) if outside is None else outside.astype(float),
        nbytes=np.zeros(len(measured)) if nbytes is None else nbytes,
    )


def joined(parts: Sequence[Unseen]) -> Unseen:
    """Join parts with the same laws."""
    return Unseen(
        of_laws={name: np.concatenate([one.of_laws[name] for one in parts]) for name in parts[0].of_laws},
        **{
            name: np.concatenate([getattr(one, name) for one in parts])
            for name in ("systems", "groups", "covered", "outside", "nbytes")
        },
    )


def head(laws: Iterable[str]) -> str:
    """Return the heading of a table."""
    heads = "".join(f"{name:>18}" for name in laws)
    return f"{'system':28}{'errors of':28}{'rows':>7}{heads}{'in 90 %':>9}{'outside':>9}"


def group_lines(unseen: Unseen) -> Iterator[str]:
    """Yield a row for each system and group: median and 90th percentile of each law."""
    yield from (line(*one) for one in unseen.by_group())


def lines(unseen: Unseen) -> Iterator[str]:
    """Yield a table: a row for each system and group; then all together."""
    yield head(unseen.of_laws)
    yield from group_lines(unseen)
    yield line("all", "", unseen)


def line(system: str, group: str, unseen: Unseen) -> str:
    """Return one row of the table."""
    cells = "".join(f"{_cell(unseen, law):>18}" for law in unseen.of_laws)
    beyond = float(np.mean(unseen.outside))
    shares = f"{np.mean(unseen.covered):>9.0%}{'-' if np.isnan(beyond) else f'{beyond:.1%}':>9}"
    return f"{system[:27]:28}{group[:27]:28}{len(unseen):>7}{cells}{shares}"


def _cell(unseen: Unseen, law: str) -> str:
    middle, most = (unseen.quantile(fraction, law) for fraction in (0.5, 0.9))
    return "-" if np.isnan(middle) else f"{middle:.1%} / {most:.1%}"
