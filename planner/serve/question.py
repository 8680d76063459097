"""A question of the page: the fields of its form as texts, read from the query of a URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlencode

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown

MAX_LETTERS = 16_384
"""Most letters of a query: a link that browsers and proxies pass on."""

MAX_KEPT = 3
"""Most plans that are kept to compare with the shown one."""

KEPT = "with"
"""Name of the queries of kept plans."""


@record(frozen=True, kw_only=True, slots=True)
class Field:
    """
    A field of the form.

    Parameters
    ----------
    name, label
        Name in the query, and label of the field.
    default
        Text of an empty form.
    hint
        Text below the field.
    scale
        Powers of two between which a slider moves; None: no slider.
    """

    name: str
    label: str
    default: str = ""
    hint: str = ""
    scale: tuple[int, int] | None = None


FIELDS = (
    Field(name="model", label="Model", default="llama3-70b", hint="a name of the catalog"),
    Field(name="device", label="Device", default="h100-80gb-sxm", hint="a name of the catalog, or such as h100"),
    Field(name="devices", label="Devices", default="512", scale=(3, 14)),
    Field(name="batch", label="Global batch size", default="1024", hint="sequences", scale=(4, 14)),
    Field(name="sequence", label="Sequence length", default="8k", hint="tokens"),
    Field(name="tokens", label="Tokens", default="15T", hint="of the whole training"),
    Field(name="price", label="Price", hint="per device and hour; empty: no money"),
    Field(name="target", label="Target", hint="the plan must run on it; empty: any"),
    Field(name="more", label="Words and entries", hint="such as TP8 recompute=none search.tolerance=0"),
)


@record(frozen=True, kw_only=True, slots=True)
class Question:
    """
    A job as the form has it, and the wanted answer.

    Parameters
    ----------
    fields
        Text of each field, in the order of :data:`FIELDS`.
    wanted
        ``answer``, ``page``, ``report`` or ``export``.
    """

    fields: tuple[str, ...]
    wanted: str = "answer"

    def __getitem__(self, name: str) -> str:
        """Return the text of a field."""
        return self.fields[NAMES.index(name)]

    @property
    def query(self) -> str:
        """The query that reads as this question; empty fields are left out."""
        return urlencode([(name, text) for name, text in zip(NAMES, self.fields, strict=True) if text])

    @property
    def title(self) -> str:
        """The job in a few words."""
        words = [self["model"], f"{self['devices']} x {self['device']}", f"batch {self['batch']}", self["more"]]
        return ", ".join(word for word in words if word)


NAMES = tuple(field.name for field in FIELDS)


def read_questions(query: str) -> tuple[Question, tuple[Question, ...]]:
    """
    Read the shown question and the kept ones from the query of a URL.

    Raises
    ------
    SpecError
        If the query is too long, or has a name that no field has.
    """
    if len(query) > MAX_LETTERS:
        raise SpecError("URL", f"its query has {len(query):,} letters; at most {MAX_LETTERS:,} are read.")
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    kept = [text for name, text in pairs if name == KEPT]
    if len(kept) > MAX_KEPT:
        raise SpecError(KEPT, f"{len(kept)} plans are kept; at most {MAX_KEPT} can be compared with the shown one.")
    shown_one = _read([(name, text) for name, text in pairs if name != KEPT])
    return shown_one, tuple(_read(parse_qsl(text, keep_blank_values=True, max_num_fields=100)) for text in kept)


def _read(pairs: Sequence[tuple[str, str]]) -> Question:
    unknown = [name for name, _ in pairs if name not in NAMES]
    if unknown:
        raise SpecError("URL", f"{shown(unknown[0])} is no field; fields are {', '.join(NAMES)}.")
    given: Mapping[str, str] = dict(pairs)
    texts = {field.name: given.get(field.name, "" if given else field.default) for field in FIELDS}
    return Question(fields=tuple(" ".join(text.split()) for text in texts.values()))
