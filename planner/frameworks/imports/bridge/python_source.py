"""
Interpretation of recipes in Python: the fields that a function sets in its configuration, found without running it.

Statements are followed with values of the source itself. Values from elsewhere, such as a model's own sizes, are
unknown, and so are all values that depend on them.
"""

from __future__ import annotations

import ast
import operator
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeAlias
from warnings import catch_warnings

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown
from planner.frameworks.imports.documents import UNKNOWN, read_words

DATA = read_words("bridge.python_source")

MOST_STEPS = 200_000
MOST_CALLS = 24
MOST_ITEMS = 10_000
"""Limits of a recipe: statements and expressions, nested calls, entries of a list."""


@dataclass(eq=False, slots=True)
class Thing:
    """
    Object whose class is not read: the class or function that made it, its arguments and its attributes.

    Parameters
    ----------
    name
        Dotted name, as in the source.
    arguments
        Positional arguments.
    fields
        Attributes and keyword arguments.
    is_called
        True where it is the result of a call, and not a name alone.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    is_called: bool = False

    def get(self, name: str) -> Any:
        """Return an attribute: of a name the longer name, of an object an unknown value if it was never set."""
        if name not in self.fields:
            self.fields[name] = Thing(f"{self.name}.{name}", self.arguments)
        return self.fields[name]


@record(frozen=True, slots=True)
class Function:
    """Function of the source, with the names of its module."""

    node: ast.FunctionDef
    names: MutableMapping[str, Any]


class _Return(Exception):
    """Signal that ends a function."""

    def __init__(self, value: Any) -> None:
        self.value = value


Resolver: TypeAlias = Callable[[str, str], Any]
"""Function from module and name to the value, or to a partial that returns a call's result; None: it is not read."""


def read_module(source: str, where: str, resolver: Resolver = lambda module, name: None) -> dict[str, Any]:
    """
    Read the functions and constants of a module.

    Raises
    ------
    SpecError
        If it is not Python.
    """
    try:
        with catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpecError(where, f"is no Python: {str(error)[:120]}.") from None
    names: dict[str, Any] = {}
    reader = _Reader(where, resolver)
    for statement in tree.body:
        if not isinstance(statement, ast.ClassDef):
            reader.follow([statement], ChainMap(names))
    return names


def public_functions(names: Mapping[str, Any]) -> dict[str, Function]:
    """Return the functions of a module by the names under which it defines them, without private ones."""
    own = {name: one for name, one in names.items() if isinstance(one, Function) and one.node.name == name}
    return {name: function for name, function in own.items() if not name.startswith("_")}


def result_of(function: Function, where: str, resolver: Resolver = lambda module, name: None) -> Any:
    """
    Evaluate a function without arguments.

    Raises
    ------
    SpecError
        If it is longer, or nested more deeply, than is read.
    """
    try:
        return _Reader(where, resolver).call(function, (), {})
    except RecursionError:
        raise SpecError(where, f"{function.node.name} is nested too deeply to be read.") from None


OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    **{getattr(ast, node): getattr(operator, name) for node, name in DATA.operators.items()},
    **{ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many},
}
BUILT_IN: Mapping[str, Callable[..., Any]] = {
    **{one.__name__: one for one in (bool, dict, float, int, len, list, max, min, str, sum, tuple)},
    "range": lambda *ends: range(*ends)[:MOST_ITEMS],
}


def is_known(value: Any) -> bool:
    """Tell whether a value is plain data, and all of its parts are."""
    if isinstance(value, dict):
        return all(is_known(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, range)):
        return all(map(is_known, value))
    return value is None or isinstance(value, (bool, int, float, str))


Scope: TypeAlias = ChainMap[str, Any]
"""Names of a function, then names of its module."""


class _Reader:
    """Interpreter of one recipe."""

    def __init__(self, where: str, resolver: Resolver) -> None:
        self._where, self._resolver = where, resolver
        self._steps, self._depth = count(), 0

    # --- statements ----------------------------------------------------------------------------------------

    def follow(self, statements: Sequence[ast.stmt], scope: Scope) -> None:
        """Follow statements in their order."""
        for statement in statements:
            self._spend()
            match statement:
                case ast.FunctionDef(name=name):
                    scope[name] = Function(statement, scope.maps[-1])
                case ast.Import(names=imported):
                    for one in imported:
                        name = one.asname or one.name.partition(".")[0]
                        scope[name] = Thing(one.name if one.asname else name)
                case ast.ImportFrom(module=module, names=imported):
                    for one in imported:
                        found = self._resolver(module or "", one.name)
                        scope[one.asname or one.name] = Thing(one.name) if found is None else found
                case ast.Assign(targets=targets, value=value):
                    result = self.value(value, scope)
                    for target in targets:
                        self._assign(target, result, scope)
                case ast.AnnAssign(target=target, value=value) if value is not None:
                    self._assign(target, self.value(value, scope), scope)
                case ast.AugAssign(target=target, op=kind, value=value):
                    self._assign(target, _operate(kind, self.value(target, scope), self.value(value, scope)), scope)
                case ast.Expr(value=value):
                    self.value(value, scope)
                case ast.Return(value=value):
                    raise _Return(None if value is None else self.value(value, scope))
                case ast.If(test=test, body=body, orelse=orelse) if is_known(chosen := self.value(test, scope)):
                    self.follow(body if chosen else orelse, scope)
                case ast.Raise():
                    raise SpecError(f"{self._where}, line {statement.lineno}", "raises an error.")
                case ast.Pass() | ast.Assert() | ast.ClassDef() | ast.Global() | ast.Nonlocal():
                    pass
                case _:
                    self._forget(statement, scope)

    def _forget(self, statement: ast.stmt, scope: Scope) -> None:
        """Mark names and attributes that a skipped statement may set as unknown."""
        for node in ast.walk(statement):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                self._assign(node, UNKNOWN, scope)

    def _assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=owner, attr=name):
                thing = self.value(owner, scope)
                if isinstance(thing, Thing):
                    thing.fields[name] = value
            case ast.Subscript(value=owner, slice=key):
                holder, place = self.value(owner, scope), self.value(key, scope)
                if isinstance(holder, dict) and is_known(place) and not isinstance(place, (list, dict)):
                    holder[place] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                is_whole = isinstance(value, (tuple, list)) and len(value) == len(parts)
                for part, one in zip(parts, value if is_whole else [UNKNOWN] * len(parts), strict=True):
                    self._assign(part, one, scope)

    def _spend(self) -> None:
        if next(self._steps) > MOST_STEPS:
            raise SpecError(self._where, "is longer than a recipe that is read.")

    # --- expressions ---------------------------------------------------------------------------------------

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Evaluate an expression."""
        self._spend()

        def evaluate(part: ast.expr) -> Any:
            return self.value(part, scope)

        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return scope.get(name, Thing(name))
            case ast.Attribute(value=owner, attr=name):
                thing = evaluate(owner)
                return thing.get(name) if isinstance(thing, Thing) else UNKNOWN
            case ast.List(elts=parts):
                return self._items(parts, evaluate)
            case ast.Tuple(elts=parts):
                return tuple(self._items(parts, evaluate))
            case ast.Dict(keys=keys, values=values):
                return self._dict(keys, values, evaluate)
            case ast.UnaryOp(op=kind, operand=operand):
                return _operate(kind, evaluate(operand))
            case ast.BinOp(left=left, op=kind, right=right) | ast.Compare(left=left, ops=[kind], comparators=[right]):
                return _operate(kind, evaluate(left), evaluate(right))
            case ast.BoolOp(op=kind, values=parts):
                return self._either(isinstance(kind, ast.Or), parts, evaluate)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = evaluate(test)
                return evaluate(body if chosen else orelse) if is_known(chosen) else UNKNOWN
            case ast.Subscript(value=owner, slice=key):
                return _try_operation(operator.getitem, evaluate(owner), evaluate(key))
            case ast.ListComp(elt=part, generators=[ast.comprehension(target=ast.Name(id=name), iter=many, ifs=[])]):
                items = evaluate(many)
                is_listed = isinstance(items, (list, tuple, range))
                return [self.value(part, scope.new_child({name: one})) for one in items] if is_listed else UNKNOWN
            case ast.Call():
                return self._call_expression(node, evaluate)
        return UNKNOWN

    def _items(self, nodes: Sequence[ast.expr], evaluate: Callable[[ast.expr], Any]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            many = evaluate(node.value) if isinstance(node, ast.Starred) else [evaluate(node)]
            found += many if isinstance(many, (list, tuple)) else [UNKNOWN]
        return found

    def _dict(
        self, keys: Sequence[ast.expr | None], values: list[ast.expr], evaluate: Callable[[ast.expr], Any]
    ) -> Any:
        whole: dict[Any, Any] = {}
        for key, node in zip(keys, values, strict=True):
            value = evaluate(node)
            if key is None:
                whole |= value if isinstance(value, dict) else {}
            elif is_known(name := evaluate(key)) and not isinstance(name, (list, dict)):
                whole[name] = value
        return whole

    def _either(self, is_or: bool, parts: Sequence[ast.expr], evaluate: Callable[[ast.expr], Any]) -> Any:
        value: Any = UNKNOWN
        for part in parts:
            value = evaluate(part)
            if not is_known(value) or bool(value) == is_or:
                break
        return value if is_known(value) else UNKNOWN

    def _call_expression(self, node: ast.Call, evaluate: Callable[[ast.expr], Any]) -> Any:
        function = evaluate(node.func)
        arguments = self._items(node.args, evaluate)
        keys = [None if one.arg is None else ast.Constant(one.arg) for one in node.keywords]
        named = self._dict(keys, [one.value for one in node.keywords], evaluate)
        if isinstance(function, Function):
            return self.call(function, tuple(arguments), named)
        if isinstance(function, partial):
            return function()
        if not isinstance(function, Thing):
            return UNKNOWN
        plain = function.name
        if plain == "getattr" and len(arguments) > 1 and isinstance(arguments[0], Thing):
            known = arguments[0].fields
            return known.get(arguments[1], arguments[2] if len(arguments) == 3 and known else UNKNOWN)
        if plain in BUILT_IN and not named:
            return _try_operation(BUILT_IN[plain], *arguments)
        if plain.endswith("deepcopy") and arguments:
            return arguments[0]
        if plain == FLEXIBLE and len(arguments) + len(named) > 1:
            return _flexible(arguments[0], arguments[1] if len(arguments) > 1 else next(iter(named.values())))
        self._refuse_changes(node, plain, [*arguments, *named.values()])
        return Thing(plain, (*function.arguments, *arguments), named, is_called=True)

    def _refuse_changes(self, node: ast.Call, name: str, arguments: Sequence[Any]) -> None:
        """Refuse a call of an unknown function with the configuration, which it may change; classes and logs do not."""
        last = name.rsplit(".", 1)[-1]
        changes = last[:1].islower() and not last.startswith(DATA.harmless)
        things = [one for one in arguments if isinstance(one, Thing) and one.fields]
        handed = [one for one in things if not one.name.startswith("torch")]
        if handed and last in DATA.starting:
            raise _Return(handed[0])
        if handed and changes:
            problem = f"hands the configuration to {shown(name)}, which is not read and may change it."
            raise SpecError(f"{self._where}, line {node.lineno}", problem, "Write into the file what it sets.")

    def call(self, function: Function, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Call a function of the source."""
        if self._depth >= MOST_CALLS:
            raise SpecError(self._where, f"{shown(function.node.name)} is nested too deeply to be read.")
        local = self._parameters(function, arguments, named)
        self._depth += 1
        try:
            self.follow(function.node.body, local)
        except _Return as end:
            return end.value
        finally:
            self._depth -= 1
        return None

    def _parameters(self, function: Function, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Scope:
        """Return the values of parameters: arguments, else defaults, else unknown."""
        of = function.node.args
        plain, scope = [one.arg for one in (*of.posonlyargs, *of.args)], ChainMap({}, function.names)
        defaults = dict(zip(reversed(plain), reversed(of.defaults), strict=False))
        defaults |= {one.arg: node for one, node in zip(of.kwonlyargs, of.kw_defaults, strict=True) if node is not None}
        local: dict[str, Any] = dict.fromkeys((*plain, *(one.arg for one in of.kwonlyargs)), UNKNOWN)
        local |= {name: self.value(node, scope) for name, node in defaults.items()}
        local |= dict(zip(plain, arguments, strict=False))
        others = {name: value for name, value in named.items() if name not in local}
        local |= {name: value for name, value in named.items() if name in local}
        if of.kwarg is not None:
            local[of.kwarg.arg] = others
        return ChainMap(local, function.names)


FLEXIBLE = "apply_flex_dispatcher_backend"
"""Megatron-Bridge's function that chooses DeepEP or HybridEP where the device has it."""


def _flexible(model: Any, backend: Any) -> None:
    """Set the fields that ``FLEXIBLE`` sets (megatron/bridge/training/flex_dispatcher_backend.py)."""
    if isinstance(model, Thing) and backend in ("deepep", "hybridep"):
        more = {"moe_flex_dispatcher_backend": backend, "moe_shared_expert_overlap": False}
        model.fields |= {"moe_token_dispatcher_type": "flex", **more}


def _try_operation(function: Callable[..., Any], *arguments: Any) -> Any:
    """Apply a function to plain values; the result is unknown for other values, and for errors."""
    if all(map(is_known, arguments)):
        with suppress(TypeError, ValueError, KeyError, IndexError, ArithmeticError):
            return function(*arguments)
    return UNKNOWN


def _operate(kind: ast.AST, *values: Any) -> Any:
    """Apply an operator; results that would be long lists are unknown. The result of a call is never None."""
    function, left, right = OPERATORS.get(type(kind)), values[0], values[-1]
    if function is None:
        return UNKNOWN
    is_object = isinstance(left, Function) or (isinstance(left, Thing) and left.is_called)
    if isinstance(kind, (ast.Is, ast.IsNot)) and right is None and is_object:
        return isinstance(kind, ast.IsNot)
    if isinstance(kind, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return left + right if len(left) + len(right) <= MOST_ITEMS else UNKNOWN
    sizes = [len(one) for one in values if isinstance(one, (list, tuple, str))]
    factors = [abs(one) for one in values if isinstance(one, int)]
    if isinstance(kind, ast.Mult) and sizes and (not factors or sizes[0] * factors[0] > MOST_ITEMS):
        return UNKNOWN
    return _try_operation(function, *values)
