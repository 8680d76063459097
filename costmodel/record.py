"""
Records: frozen dataclasses that are made fast, checked by pydantic or not.

A command loads some 250 of them. Dataclasses write and compile six methods for each, and pydantic's decorator makes its
schema: together 150 ms. Here all records share their methods, a plain one compiles its ``__init__`` alone, and the
schema of a checked one is made for its first instance.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from operator import attrgetter
from reprlib import Repr
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema

__all__ = ["adapter_of", "cut_line", "record", "replace", "strict_record", "write_out"]

Class = TypeVar("Class", bound=type)
Record = TypeVar("Record")

STRICT: ConfigDict = {"extra": "forbid", "allow_inf_nan": False}
"""Checks of all records: no entries but the fields, and finite numbers."""

ADAPTERS: dict[Hashable, TypeAdapter[Any] | None] = {}
"""Checks that were made, by type; None: they are being made."""


def adapter_of(annotation: Hashable) -> TypeAdapter[Any]:
    """Return pydantic's checks of a record or another type."""
    made = ADAPTERS.get(annotation)
    if made is None:
        from pydantic import TypeAdapter  # which plain records do not need

        ADAPTERS[annotation] = None
        ADAPTERS[annotation] = made = TypeAdapter(cast(Any, annotation))
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass as record
    from dataclasses import dataclass as strict_record
else:

    def record(**options: bool) -> Callable[[Class], Class]:
        """Make a frozen dataclass, with the options of dataclasses."""

        def make(own: Class) -> Class:
            made = _make(own, **options)
            if "__init__" not in vars(own):
                made.__init__ = _write_init(made, kw_only=options.get("kw_only", False))
            return made

        return make

    def strict_record(**options: bool) -> Callable[[Class], Class]:
        """Make a frozen dataclass whose entries are checked; dataclasses.replace checks them again."""

        def make(own: Class) -> Class:
            made = _make(own, **options)
            made.__pydantic_config__, made.__init__ = STRICT, _check
            made.__get_pydantic_core_schema__ = classmethod(_find_schema)
            return made

        return make


def _make(own: Any, *, frozen: bool, **options: bool) -> Any:
    assert frozen, "so is every record"
    made: Any = dataclass(init=False, repr=False, eq=False, **options)(own)
    compared = [one for one in fields(made) if one.compare]
    made.compared = _getter(one.name for one in compared)
    made.hashed = _getter(one.name for one in compared if one.hash is not False)
    made.init_names = tuple(one.name for one in fields(made) if one.init)
    made.init_values = _getter(made.init_names)
    for name, method in METHODS.items():
        if name not in vars(own):
            setattr(made, name, method)
    return made


def _getter(names: Iterable[str]) -> Callable[[object], object]:
    """Return a function that reads some fields as a tuple."""
    several = tuple(names)
    return attrgetter(*several) if len(several) > 1 else lambda self: tuple(getattr(self, name) for name in several)


def replace(one: Record, **changes: Any) -> Record:
    """Return a record with some entries changed: :func:`dataclasses.replace` in half the time."""
    kind: Any = type(one)
    changed: Record = kind(**dict(zip(kind.init_names, kind.init_values(one), strict=True)) | changes)
    return changed


def _write_init(made: Any, *, kw_only: bool) -> Any:
    """Compile a constructor with the parameters of the one that dataclasses would write."""
    known: dict[str, Any] = {"MISSING": MISSING, "set_field": object.__setattr__}
    parameters, values = ["self"], {}
    if kw_only and any(one.init for one in fields(made)):
        parameters.append("*")
    for one in fields(made):
        name = value = one.name
        is_open = one.default is MISSING and one.default_factory is MISSING
        known[f"default_of_{name}"] = one.default
        if one.default_factory is not MISSING:
            known[f"make_{name}"] = one.default_factory
            value = f"make_{name}() if {name} is MISSING else {name}" if one.init else f"make_{name}()"
        elif not one.init:
            value = f"default_of_{name}"
        if one.init:
            parameters.append(name if is_open else f"{name}=default_of_{name}")
        if one.init or not is_open:
            values[name] = value
    # Slots by their own descriptors, a dict as a whole: object.__setattr__ for each field takes half as long again.
    if made.__dictoffset__:
        entries = ", ".join(f"{name!r}: {value}" for name, value in values.items())
        lines = [f"set_field(self, '__dict__', {{{entries}}})"]
    else:
        known |= {f"set_{name}": getattr(made, name).__set__ for name in values}
        lines = [f"set_{name}(self, {value})" for name, value in values.items()]
    lines += ["self.__post_init__()"] if hasattr(made, "__post_init__") else ["pass"]
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines), known)
    known["__init__"].__qualname__ = f"{made.__qualname__}.__init__"
    return known["__init__"]


# --- methods of all records --------------------------------------------------------------------------------


def _check(self: object, **entries: object) -> None:
    from pydantic_core import ArgsKwargs

    adapter_of(cast(Hashable, type(self))).validator.validate_python(ArgsKwargs((), entries), self_instance=self)


def _find_schema(cls: type[Any], source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a record in that of another one: its own, so that it is made once."""
    key = cast(Hashable, cls)
    is_asked_for_itself = key in ADAPTERS and ADAPTERS[key] is None
    return handler(source) if is_asked_for_itself else adapter_of(key).core_schema


def _show(self: Any) -> str:
    """Return the fields in one line; a console or notebook prints it after every expression."""
    text = f"{type(self).__qualname__}("
    for one in (one for one in fields(self) if one.repr):
        if len(text) > LONGEST_LINE:
            break
        text += f"{one.name}={BRIEF.repr(getattr(self, one.name))}, "
    return cut_line(f"{text.removesuffix(', ')})")


def write_out(value: Any) -> str:
    """Return all fields of a record, and of records inside it, as text: equal ones have the same."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {write_out(one)}' for name, one in value.items())}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(write_out, value))})"
    if not hasattr(type(value), "compared"):
        return repr(value)
    shown = (f"{one.name}={write_out(getattr(value, one.name))}" for one in fields(value) if one.repr)
    return f"{type(value).__qualname__}({', '.join(shown)})"


def cut_line(text: str) -> str:
    """Return a text as one line of at most ``LONGEST_LINE`` characters, which ends with its last one."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 4]}...{line[-1]}"


def _is_equal(self: Any, other: Any) -> bool:
    kind = type(self)
    return kind.compared(self) == kind.compared(other) if kind is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(type(self).hashed(self))


def _refuse(self: object, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _keep(self: Any) -> dict[str, Any]:
    """Return the fields for pickle and copy."""
    return {one.name: getattr(self, one.name) for one in fields(self)}


def _restore(self: object, kept: dict[str, Any]) -> None:
    for name, value in kept.items():
        object.__setattr__(self, name, value)


LONGEST_LINE = 200
"""Characters of a record as text."""

BRIEF = Repr()
BRIEF.maxlevel, BRIEF.maxother, BRIEF.maxstring = 3, LONGEST_LINE, 80
"""Text of values: of long ones beginning and end, of containers the first entries."""

METHODS: dict[str, Any] = {
    "__repr__": _show,
    "__eq__": _is_equal,
    "__hash__": _hash,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _keep,
    "__setstate__": _restore,
}
