"""
Records whose entries pydantic checks, as dataclasses.

Pydantic's decorator makes its schema for each class, and dataclasses write and compile six methods for it. Together a
millisecond for each of 60 classes that every command loads. Here a schema is made for the first record, and the methods
are written once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import FrozenInstanceError, dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import ArgsKwargs, CoreSchema

__all__ = ["adapter_of", "validated"]

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Checks of all records: no entries but the fields, and finite numbers."""


ADAPTERS: dict[Hashable, TypeAdapter[Any] | None] = {}
"""Checks that were made, by type; None: they are being made."""


def adapter_of(annotation: Hashable) -> TypeAdapter[Any]:
    """Return pydantic's checks of a record or another type."""
    made = ADAPTERS.get(annotation)
    if made is None:
        ADAPTERS[annotation] = None
        ADAPTERS[annotation] = made = TypeAdapter(cast(Any, annotation))
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass as validated
else:

    def validated(*, slots: bool = False, **others: bool) -> Any:
        """Make a frozen dataclass whose entries are checked; dataclasses.replace checks them again."""
        assert others == {"frozen": True, "kw_only": True}, "so is every validated record"

        def make(record_type: type) -> type:
            made = dataclass(init=False, repr=False, eq=False, kw_only=True, slots=slots)(record_type)
            made.__pydantic_config__ = STRICT
            made.compared = attrgetter(*(one.name for one in fields(made) if one.compare))
            for name, method in METHODS.items():
                if name not in vars(record_type):
                    setattr(made, name, method)
            return made

        return make


def _check(self: object, **entries: object) -> None:
    adapter_of(cast(Hashable, type(self))).validator.validate_python(ArgsKwargs((), entries), self_instance=self)


def _find_schema(cls: type[Any], source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a record in that of another one: its own, so that it is made once."""
    key = cast(Hashable, cls)
    is_asked_for_itself = key in ADAPTERS and ADAPTERS[key] is None
    return handler(source) if is_asked_for_itself else adapter_of(key).core_schema


def _show(self: Any) -> str:
    texts = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(texts)})"


def _is_equal(self: Any, other: Any) -> bool:
    kind = type(self)
    return kind.compared(self) == kind.compared(other) if kind is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(type(self).compared(self))


def _refuse(self: object, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _restore(self: object, state: Any) -> None:
    """Set what pickle or copy kept: the entries of a record with a dictionary, or with slots beside one."""
    for part in state if isinstance(state, tuple) else (state,):
        for name, value in (part or {}).items():
            object.__setattr__(self, name, value)


METHODS: dict[str, Any] = {
    "__init__": _check,
    "__get_pydantic_core_schema__": classmethod(_find_schema),
    "__repr__": _show,
    "__eq__": _is_equal,
    "__hash__": _hash,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__setstate__": _restore,
}
