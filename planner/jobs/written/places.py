"""Where entries were written: a line and a column of a file, or an option; and mistakes that say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from costmodel.errors import SpecError, mistakes_of, together


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """
    Where one entry was written.

    Parameters
    ----------
    where
        Such as ``job.yaml, line 4, column 16`` or ``--batch``.
    text
        A value as it is spelled there; empty: the entry has others inside.
    """

    where: str
    text: str = ""


Places = Mapping[str, Place]
"""By dotted path, in the order in which they were written."""

NOWHERE = Place(where="")
"""The place of what has none, such as an entry that was changed later."""


WHOLE = ""
"""The path of a whole document: where what is missing at its top would be, behind all that it has."""


def placed(errors: Iterable[SpecError], places: Places) -> SpecError:
    """
    Mistakes as one error that says where each was written.

    Parameters
    ----------
    errors
        Mistakes; of several on one entry, or inside an entry that is wrong itself, the first is kept.
    places
        Where entries were written.
    """
    kept: dict[str, SpecError] = {}
    for error in (one for several in errors for one in mistakes_of(several)):
        if not any(error.where == known or error.where.startswith(f"{known}.") for known in kept):
            kept[error.where] = error
    order = {path: index for index, path in enumerate(places)}
    ranked = sorted(kept.values(), key=lambda error: order.get(_nearest(error.where, places), len(order)))
    return together([_placed(error, places) for error in ranked])


def _placed(error: SpecError, places: Places) -> SpecError:
    path = _nearest(error.where, places)
    place = places.get(path, NOWHERE)
    if error.place or not place.where:
        return error
    problem = error.problem
    if path == error.where and _is_respelled(place.text) and place.text not in problem:
        problem = f"{problem.removesuffix('.')} (written {place.text})."
    return SpecError(error.where, problem, error.hint, place.where)


def _is_respelled(text: str) -> bool:
    """Whether a number is written with an exponent or a unit, which messages that compute with it do not repeat."""
    return text[:1].isdigit() and not text.isdigit()


def _nearest(path: str, places: Places) -> str:
    """The entry itself, or the nearest around it that was written; else the whole document."""
    while path and path not in places:
        path = path.rpartition(".")[0]
    return path
