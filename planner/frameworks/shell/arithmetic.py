"""Arithmetic of a shell on whole numbers, with the variables that it reads and sets."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import NoReturn, TypeAlias

Later: TypeAlias = Callable[[], int]
"""A part of an expression, computed where its value counts: the other side of a choice changes nothing."""

NAME = r"[A-Za-z_]\w*(?:\[[^\]]*\])?"
SIGNS = r"<<=|>>=|\*\*|\+\+|--|[-+*/%&|^]=|<<|>>|[<>=!]=|&&|\|\||[-+*/%<>=!~&^|?:(),]"
TOKEN = re.compile(rf"\s*(\d+#\w+|0[xX][\da-fA-F]+|\d+|{NAME}|{SIGNS})")

TARGETS = re.compile(rf"({NAME})\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))|(?:\+\+|--)\s*({NAME})")
"""Names that an expression sets."""

MOST_LETTERS, MOST = 500, 2**63
"""A shell's numbers have 64 bits; longer expressions are not a script's."""


def _quotient(first: int, second: int) -> int:
    quotient = abs(first) // abs(second)
    return quotient if (first < 0) == (second < 0) else -quotient


def _bound(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """A shift or a power by no more than the number has bits."""
    return lambda first, second: function(first, second) if 0 <= second < 64 else _refuse()


def _refuse() -> NoReturn:
    raise ValueError


BINARY: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"<<": _bound(operator.lshift), ">>": _bound(operator.rshift)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda first, second: first - second * _quotient(first, second)},
    {"**": _bound(operator.pow)},
)
"""Operators from those that bind least."""

LAZY = (",", "?", "||", "&&")
RANKS = {sign: rank for rank, signs in enumerate((*([one] for one in LAZY), *BINARY)) for sign in signs}
FUNCTIONS = {sign: function for signs in BINARY for sign, function in signs.items()}
UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "!": operator.not_,
}


def _nothing(_: str) -> str:
    raise ValueError


def value_of(
    expression: str, read: Callable[[str], str] = _nothing, put: Callable[[str, str], None] = lambda *_: None
) -> int | None:
    """
    The value of an expression; None: it is none, one that is not read here, or of what is not known.

    Parameters
    ----------
    expression
        Its text, with parameters in place.
    read
        The text of a variable, which is an expression, too.
    put
        Sets a variable.

    >>> value_of("8*(2+1) / 5"), value_of("16 % 8 == 0 && !0"), value_of("a"), value_of("2 ** 99"), value_of("010")
    (4, 1, None, None, 8)
    """
    try:
        return _Expression(expression, read, put).value()
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


class _Expression:
    """Words of an expression from the left, each with what stands behind it."""

    def __init__(self, text: str, read: Callable[[str], str], put: Callable[[str, str], None]) -> None:
        self.read, self.put = read, put
        self.tokens, place, text = list[str](), 0, text.strip()
        while place < len(text):
            found = TOKEN.match(text, place)
            if found is None or len(text) > MOST_LETTERS:
                raise ValueError
            self.tokens.append(found[1])
            place = found.end()
        self.tokens.reverse()

    def value(self) -> int:
        """The value of the whole."""
        whole = self._parse_operators(0) if self.tokens else lambda: 0
        return whole() if not self.tokens else _refuse()

    def _next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def _take(self, expected: str = "") -> str:
        return self.tokens.pop() if self.tokens and expected in ("", self._next()) else _refuse()

    def _parse_operators(self, least: int) -> Later:
        """An operand with the operators behind it that bind no less than that."""
        left = self._operand()
        while RANKS.get(self._next(), -1) >= least:
            left = self._join(left, self._take())
        return left

    def _join(self, left: Later, sign: str) -> Later:
        if sign == "?":
            then = self._parse_operators(0)
            self._take(":")
            other = self._parse_operators(RANKS["?"])
            return lambda: then() if left() else other()
        right = self._parse_operators(RANKS[sign] + (sign != "**"))
        match sign:
            case ",":
                return lambda: (left(), right())[1]
            case "&&":
                return lambda: int(bool(left() and right()))
            case "||":
                return lambda: int(bool(left() or right()))
        return lambda: _check_range(FUNCTIONS[sign](left(), right()))

    def _operand(self) -> Later:
        token = self._take()
        if token == "(":
            inner = self._parse_operators(0)
            self._take(")")
            return inner
        if token in ("++", "--"):
            return self._set(self._take(), token[0], lambda: 1)
        if token in UNARY:
            operand = self._operand()
            return lambda: int(UNARY[token](operand()))
        if token[0].isdecimal():
            base, _, digits = token.rpartition("#")
            number = int(digits, int(base or (8 if re.fullmatch(r"0\d+", digits) else 0)))
            return lambda: _check_range(number)
        if not re.fullmatch(NAME, token):
            raise ValueError
        if (sign := self._next()) in ("++", "--"):
            change = self._set(token, self._take()[0], lambda: 1)
            return lambda: change() - (1 if sign == "++" else -1)
        if sign == "=" or (sign[-1:] == "=" and sign[:-1] in FUNCTIONS and sign not in FUNCTIONS):
            return self._set(token, self._take()[:-1], self._parse_operators(RANKS["?"]))
        return lambda: self._read_variable(token)

    def _read_variable(self, name: str) -> int:
        return _Expression(self.read(name), self.read, self.put).value()

    def _set(self, name: str, sign: str, right: Later) -> Later:
        def value() -> int:
            number = right() if not sign else _check_range(FUNCTIONS[sign](self._read_variable(name), right()))
            self.put(name, str(number))
            return number

        return value


def _check_range(number: int) -> int:
    return int(number) if -MOST <= number < MOST else _refuse()
