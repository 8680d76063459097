"""Places of entries: a line and a column of a file, or an option; and errors that name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from costmodel.errors import SpecError, mistakes_of, together
from costmodel.record import record


@record(frozen=True, kw_only=True, slots=True)
class Place:
    """
    Place in which one entry was written.

    Parameters
    ----------
    where
        File, line and column, or an option, such as ``job.yaml, line 4, column 16`` or ``--batch``.
    text
        The value as it is spelled there; empty for an entry with entries inside.
    """

    where: str
    text: str = ""


Places = Mapping[str, Place]
"""Places by dotted path, in the order in which they were written."""

NOWHERE = Place(where="")
"""Place of an entry that was not written, such as one that was changed later."""


WHOLE = ""
"""Path of a whole document. Missing entries at its top are reported there, after all others."""


def add_places(errors: Iterable[SpecError], places: Places) -> SpecError:
    """
    Merge mistakes into one error that names the place of each.

    Parameters
    ----------
    errors
        Mistakes. Only the first of several on one entry is kept, and none inside an entry that is wrong itself.
    places
        Place of each entry.
    """
    kept: dict[str, SpecError] = {}
    for error in (one for several in errors for one in mistakes_of(several)):
        if not any(error.where == known or error.where.startswith(f"{known}.") for known in kept):
            kept[error.where] = error
    order = {path: index for index, path in enumerate(places)}
    ranked = sorted(kept.values(), key=lambda error: order.get(_nearest(error.where, places), len(order)))
    return together([_add_place(error, places) for error in ranked])


def _add_place(error: SpecError, places: Places) -> SpecError:
    path = _nearest(error.where, places)
    place = places.get(path, NOWHERE)
    if error.place or not place.where:
        return error
    problem = error.problem
    if path == error.where and _is_respelled(place.text) and place.text not in problem:
        problem = f"{problem.removesuffix('.')} (written {place.text})."
    return SpecError(error.where, problem, error.hint, place.where)


def _is_respelled(text: str) -> bool:
    """Tell whether a number is written with an exponent or a unit; messages repeat that spelling."""
    return text[:1].isdigit() and not text.isdigit()


def _nearest(path: str, places: Places) -> str:
    """Return the path of the entry itself, or of the nearest written entry around it; else the whole document."""
    while path and path not in places:
        path = path.rpartition(".")[0]
    return path
