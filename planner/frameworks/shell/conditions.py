"""Conditions of a script: ``[ ... ]``, ``[[ ... ]]``, ``((...))``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from planner.frameworks.shell.arithmetic import value_of
from planner.frameworks.shell.text import strip_unknown, unknown_names
from planner.frameworks.shell.words import Words, line_of, source_of

if TYPE_CHECKING:
    from tree_sitter import Node

NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}

SKIPPED = ("[", "[[", "]", "]]", "((", "))", "(", ")", "comment")


class Verdict(NamedTuple):
    """
    Result of a condition or command.

    Parameters
    ----------
    holds
        True where the condition is true, or the command succeeds.
    is_certain
        True where the result follows from the script and the given values alone. Otherwise it depends on a file, on
        the exit status of a program, or on an unset variable.
    """

    holds: bool
    is_certain: bool

    def negate(self) -> Verdict:
        """Return the opposite result, equally certain."""
        return Verdict(not self.holds, self.is_certain)

    def and_also(self, other: Verdict) -> Verdict:
        """Combine two results by and; one that is certainly false decides alone."""
        for one in (self, other):
            if one.is_certain and not one.holds:
                return one
        return Verdict(self.holds and other.holds, self.is_certain and other.is_certain)

    def or_else(self, other: Verdict) -> Verdict:
        """Combine two results by or; one that is certainly true decides alone."""
        return self.negate().and_also(other.negate()).negate()


def decide(node: Node, words: Words) -> Verdict:
    """Evaluate a condition: unset variables are empty, as in a shell, and files are assumed to exist."""
    inner = [child for child in node.children if child.type not in SKIPPED]
    if node.type in ("arithmetic_expansion",) or source_of(node).startswith("(("):
        return decide_number(words.arithmetic(node), line_of(node), words)
    if node.type in ("test_command", "parenthesized_expression"):
        return decide(inner[0], words) if len(inner) == 1 else Verdict(bool(inner), False)
    if node.type == "unary_expression" and len(inner) == 2:
        return _unary(source_of(inner[0]), inner[1], words)
    if node.type == "negation_expression" and len(inner) == 2:
        return decide(inner[1], words).negate()
    if node.type == "binary_expression" and len(inner) == 3:
        return _binary(inner[0], source_of(inner[1]), inner[2], words)
    text, is_known = _text(node, words)
    return Verdict(bool(text), is_known)


def _text(node: Node, words: Words, other: Node | None = None) -> tuple[str, bool]:
    """
    Return the text of an operand without its unknown parts, and True where it has none.

    Unknown variables are recorded as asked for, with the text of ``other``, the operand on the other side.
    """
    text = words.value(node)
    names = unknown_names(text)
    if names:
        words.variables.ask(names, line_of(node), compares=() if other is None else [words.value(other)])
    return strip_unknown(text), not names


def decide_number(text: str, line: int, words: Words) -> Verdict:
    """A number as a condition: not zero."""
    if names := unknown_names(text):
        words.variables.ask(names, line)
        return Verdict(False, False)
    return Verdict(text != "0", True)


def _unary(sign: str, operand: Node, words: Words) -> Verdict:
    if sign == "!":
        return decide(operand, words).negate()
    if sign in ("-z", "-n"):
        if strip_unknown(words.value(operand)):
            return Verdict(sign == "-n", True)
        text, is_known = _text(operand, words)
        return Verdict(bool(text) == (sign == "-n"), is_known)
    if sign == "-v":
        return Verdict(words.variables.get(source_of(operand)) is not None, True)
    words.variables.states.add(line_of(operand))
    return Verdict(sign in ("-e", "-f", "-d", "-r", "-x", "-s", "-w"), False)


def _binary(left: Node, sign: str, right: Node, words: Words) -> Verdict:
    if sign in ("&&", "-a"):
        first = decide(left, words)
        return first if first == Verdict(False, True) else first.and_also(decide(right, words))
    if sign in ("||", "-o"):
        first = decide(left, words)
        return first if first == Verdict(True, True) else first.or_else(decide(right, words))
    one, one_known = _text(left, words, right)
    other, other_known = _text(right, words, left)
    is_known = one_known and other_known
    if (not one and _vanishes(left)) or (not other and _vanishes(right)):
        return Verdict(False, is_known)
    if sign in NUMBERS:
        numbers = [_number(text, words, left) for text in (one, other)]
        if numbers[0] is None or numbers[1] is None:
            return Verdict(False, False)
        return Verdict(NUMBERS[sign](numbers[0], numbers[1]), is_known)
    if sign == "=~":
        return _matches(one, other, is_known)
    if sign in ("<", ">"):
        return Verdict(one < other if sign == "<" else one > other, is_known)
    same = one == other if "string" in right.type else fnmatchcase(one, other)
    return Verdict(same == (sign != "!="), is_known)


def _number(text: str, words: Words, node: Node) -> int | None:
    """A decimal number of ``[ ... ]``, an expression of ``[[ ... ]]``."""
    if _is_single(node):
        return int(text) if re.fullmatch(r"\s*[-+]?\d{1,18}\s*", text) else None
    return value_of(words.number(text, line_of(node)))


def _is_single(node: Node | None) -> bool:
    while node is not None and node.type != "test_command":
        node = node.parent
    return node is not None and node.children[0].type == "["


def _vanishes(node: Node) -> bool:
    """Tell whether an empty operand is no word: ``[ $A != b ]`` without quotation marks is then false."""
    return node.type in ("simple_expansion", "expansion") and _is_single(node)


MOST_LETTERS = 200


def _matches(text: str, expression: str, is_known: bool) -> Verdict:
    """
    Match a text with a regular expression.

    Long expressions and nested repetitions are not evaluated, as they may take exponential time.
    """
    if len(text) + len(expression) > MOST_LETTERS or re.search(r"[+*}]\s*\)\s*[+*{]", expression):
        return Verdict(False, False)
    try:
        return Verdict(re.search(expression, text) is not None, is_known)
    except re.error:
        return Verdict(False, False)
