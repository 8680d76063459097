"""Published recipes of the catalog: model, device, precision, work, layout, and the releases that have each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache

from costmodel import catalog
from costmodel.catalog.files import read_table
from costmodel.catalog.releases import Release, release_of
from costmodel.errors import SpecError, did_you_mean
from costmodel.models.patterns import Shape, shape_in
from costmodel.record import record
from costmodel.validation import shown

TABLES = ("recipes/megatron-bridge.csv", "recipes/dgxc-benchmarking.csv")

PUBLISHER = "NVIDIA"
"""Publisher of the recipes in both tables."""

SEPARATOR = ";"


@record(frozen=True, kw_only=True, slots=True)
class Recipe:
    """
    One published layout; it is not known to be measured, or to be the best one.

    Parameters
    ----------
    cells
        Row of the table: job and decisions, by the columns of tables of measured runs.
    """

    cells: Mapping[str, str] = field(hash=False)

    @property
    def id(self) -> str:
        """Unique name."""
        return self.cells["id"]

    @property
    def name(self) -> str:
        """Published name."""
        return self.cells["recipe"]

    @property
    def source(self) -> str:
        """Project, tag and file that publish it."""
        return f"{self.cells['source']} {self.cells['source_ref']}"

    @property
    def releases(self) -> tuple[str, ...]:
        """Numbers of the releases that have it, oldest first."""
        return tuple(self.cells["releases"].split(SEPARATOR))

    @property
    def stack(self) -> str:
        """Software, such as ``megatron-bridge``."""
        return self.cells["cluster.framework"].rpartition("-")[0]

    @property
    def scales(self) -> tuple[int, ...]:
        """Numbers of devices for which it is published."""
        return tuple(map(int, self.cells["scales"].split(SEPARATOR)))

    @property
    def model(self) -> str:
        """Name of its model."""
        return self.cells["model"]

    @property
    def shape(self) -> Shape | None:
        """Shape of its model; None where the model is not known."""
        return shape_in(self.cells)

    @property
    def device(self) -> str:
        """Name of its device."""
        return self.cells["cluster.device"]

    @property
    def precision(self) -> str:
        """Name of its precision recipe."""
        return self.cells["training.precision"]

    @property
    def sequence_length(self) -> int | None:
        """Tokens per sequence; None where the source does not say."""
        return int(self.cells["training.sequence_length"]) if self.cells["training.sequence_length"] else None

    @property
    def batch_per_device(self) -> float:
        """Sequences per step and device."""
        return int(self.cells["training.global_batch_size"]) / int(self.cells["cluster.num_devices"])

    @property
    def refused(self) -> str:
        """Reason why it cannot run or be read; empty where it can."""
        return self.cells.get("refused", "")

    def framework(self, release: str) -> Release:
        """Return one of its releases, to be compared with others."""
        found = release_of(f"{self.stack}-{release}")
        assert found is not None, f"{self.id} names the release {release}"
        return found


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return every published recipe."""
    return tuple(Recipe(cells=row) for table in TABLES for row in read_table(table))


def recipe(name: str, among: Sequence[Recipe] = ()) -> Recipe:
    """
    Return the recipe with an id or a published name; with several layouts of one name, the newest.

    Parameters
    ----------
    name
        The id or the published name.
    among
        Recipes to suggest where there is no such name; empty: all.

    Raises
    ------
    SpecError
        If there is none; the hint suggests a name.
    """
    same = [one for one in recipes() if one.id == name]
    same = same or [one for one in recipes() if one.name.lower() == name.lower()]
    if not same:
        meant = among or recipes()
        known = [one.id for one in meant] + [one.name for one in meant]
        some = f"For this job: {', '.join(one.id for one in among[:MOST_LISTED])}." if among else LISTED
        raise SpecError("recipe", f"{shown(name)} is not known.", did_you_mean(name, known) or some)
    return max(same, key=lambda one: one.framework(one.releases[-1]).number)


MOST_LISTED = 5
"""Recipes that a message lists."""

LISTED = "planner catalog recipes MODEL DEVICE lists them."


def select_recipes(words: Sequence[str]) -> tuple[Recipe, ...]:
    """
    Return the recipes that all words describe: a model, a device, a precision or a release.

    Raises
    ------
    SpecError
        If a word is none of these.

    >>> {one.device for one in select_recipes(["llama3-70b", "h100", "bf16"])}
    {'h100-80gb-sxm'}
    """
    return tuple(one for one in recipes() if all(_says(one, word) for word in map(_spell, words)))


def _says(one: Recipe, word: str) -> bool:
    return word in (one.model, one.device, one.precision, *one.releases)


def _spell(word: str) -> str:
    """Spell a word as the recipes do: devices and models may have any of their names."""
    own = _words(recipes())
    if word in own:
        return word
    found = catalog.find_unique_device(word)
    if found is not None and found.device in own:
        return found.device
    if (model := catalog.hub_names().get(word)) in own:
        return str(model)
    if (
        found is not None
        or catalog.means_several(word)
        or word in catalog.model_names()
        or word in catalog.precisions()
    ):
        raise SpecError("catalog", f"no published recipe is for {shown(word)}.", LISTED)
    raise SpecError("catalog", f"{shown(word)} is no model, device, precision or release.", did_you_mean(word, own))


def _words(of: Iterable[Recipe]) -> dict[str, None]:
    return dict.fromkeys(word for one in of for word in (one.model, one.device, one.precision, *one.releases))
