"""Integer arithmetic of a shell."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}

COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

PYTHONS = (("&&", " and "), ("||", " or "), ("\n", " "))

CHOICE = re.compile(r"([^?:]*)\?([^?:]*):(.*)", re.DOTALL)
"""``condition ? value : value``; the last value may itself be such a choice."""

MOST_DIGITS, MOST_LETTERS = 18, 500
"""Digits of a value and letters of an expression; numbers of a shell have 64 bits."""


def value_of(expression: str) -> int | None:
    """
    Evaluate an expression without variables; None: it is not arithmetic, or not supported here.

    >>> value_of("8*(2+1) / 5"), value_of("16 % 8 == 0 && !0"), value_of("a"), value_of("2 ** 99")
    (4, 1, None, None)
    """
    if found := CHOICE.fullmatch(expression):
        condition = value_of(found[1])
        return None if condition is None else value_of(found[2 if condition else 3])
    text = expression.strip()
    for shells, pythons in PYTHONS:
        text = text.replace(shells, pythons)
    text = re.sub(r"!(?!=)", " not ", text)
    text = re.sub(r"\b0+(?=\d)", "", text).strip()
    if not text:
        return 0
    if len(text) > MOST_LETTERS:
        return None
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return value if value is not None and len(str(abs(value))) <= MOST_DIGITS else None


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return int(number)
        case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv(), right=right):
            first, second = _value(left), _value(right)
            quotient = abs(first) // abs(second)
            return quotient if (first < 0) == (second < 0) else -quotient
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            first, second = _value(left), _value(right)
            if isinstance(op, ast.LShift | ast.RShift) and not 0 <= second < 64:
                raise ValueError
            return BINARY[type(op)](first, second)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return int(not _value(operand))
        case ast.BoolOp(op=op, values=values):
            truths = [bool(_value(one)) for one in values]
            return int(all(truths) if isinstance(op, ast.And) else any(truths))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            return int(COMPARISONS[type(op)](_value(left), _value(right)))
    raise ValueError
