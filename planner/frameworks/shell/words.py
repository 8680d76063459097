"""Text with unknown parts: a variable without a value is marked in it by its name."""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown

if TYPE_CHECKING:
    from tree_sitter import Node

OPEN, CLOSE = "\ue000", "\ue001"
"""Marks around a name without a value; of Unicode's private use area, so that no script has them."""

NAMES = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")

LETTERS = {code: 0xE100 + code for code in range(128) if not chr(code).isalnum() and chr(code) != "_"}
"""Replacements of letters that are special to a shell, which may read the word again (``bash -c``)."""

SHELLS = {other: code for code, other in LETTERS.items()}


def unknown(name: str) -> str:
    """Return the mark of a variable or command whose value is unknown."""
    return f"{OPEN}{strip_marks(restore_variables(name)).translate(LETTERS)}{CLOSE}"


def unknown_names(text: str) -> list[str]:
    """Return the names of the unknown parts of a text, each once."""
    return list(dict.fromkeys(name.translate(SHELLS) for name in NAMES.findall(text)))


def strip_unknown(text: str) -> str:
    """Remove the unknown parts of a text: an unset variable of a shell is empty."""
    return NAMES.sub("", text)


def restore_variables(text: str) -> str:
    """
    Return a text as the script writes it.

    >>> restore_variables("a" + unknown("TP") + unknown("$(nproc)"))
    'a$TP$(nproc)'
    """
    plain = re.compile(r"[A-Za-z_0-9]+")
    return NAMES.sub(lambda one: f"${one[1]}" if plain.fullmatch(one[1]) else one[1].translate(SHELLS), text)


def refuse_unknown(text: str, where: str) -> None:
    """
    Refuse a value with unknown parts.

    Raises
    ------
    SpecError
        Names the variables to give, where variables are what is unknown.
    """
    if names := unknown_names(text):
        settable = " ".join(f"--set {name}=VALUE" for name in names if name.isidentifier() or name.isdecimal())
        problem = f"is {restore_variables(text)}, which the script leaves open."
        raise SpecError(where, problem, f"Say it: {settable}." if settable else "")


def strip_marks(text: str) -> str:
    """Remove the two characters that mark unknown names here from a given text."""
    return text.replace(OPEN, "").replace(CLOSE, "")


LONGEST_LIST = 100_000
"""Letters of a list of arguments; the time to split one word grows with the square of its length."""


def argument_words(text: str) -> list[str]:
    """
    Split a list of arguments without variables into words, and drop comments.

    Raises
    ------
    ValueError
        If a quotation mark is left open, or if it is longer than any list of arguments.
    """
    if len(text) > LONGEST_LIST:
        raise ValueError(f"it has {len(text):,} letters, expected {LONGEST_LIST:,} at most")
    return shlex.split(text, comments=True)


@record(frozen=True, slots=True)
class Piece:
    """
    Part of a word.

    Parameters
    ----------
    text
        Its text.
    splits
        True where blanks in it end a word, as in an expansion outside quotation marks.
    ends
        True where the word ends after it, as for an element of an array.
    is_quoted
        True where it makes a word even if it is empty.
    """

    text: str
    splits: bool = False
    ends: bool = False
    is_quoted: bool = False


def join_pieces(pieces: Iterable[Piece]) -> str:
    """Join pieces to one text, as in an assignment, with a blank between the elements of an array."""
    return "".join(piece.text + (" " if piece.ends else "") for piece in pieces)


def split(pieces: Iterable[Piece]) -> Iterator[str]:
    """
    Split pieces into words.

    >>> list(split([Piece("--a="), Piece("1 --b", splits=True), Piece("2", is_quoted=True)]))
    ['--a=1', '--b2']
    """
    word, is_open = "", False
    for piece in pieces:
        for number, part in enumerate(re.split(r"[ \t\n]+", piece.text) if piece.splits else [piece.text]):
            if number and is_open:
                yield word
                word, is_open = "", False
            word += part
            is_open = is_open or bool(part) or piece.is_quoted
        if piece.ends and is_open:
            yield word
            word, is_open = "", False
    if is_open:
        yield word


Value: TypeAlias = str | dict[str, str]
"""Text, or the elements of an array by their keys; those of a list by their numbers."""

Expanded: TypeAlias = str | list[str]
"""Text of a parameter, or those of several elements."""

SHELLS_OWN = {"#": "", "?": "0", "-": "", "BASH_VERSION": "5.2.0", "OSTYPE": "linux-gnu", "IFS": " "}
"""Parameters that every shell sets itself; ``#`` is the number of arguments."""


LISTS = ("PYTHONPATH",)
"""Variables of folders, of which some are known."""


@dataclass(slots=True)
class Variables:
    """
    Variables by name.

    Parameters
    ----------
    given
        Values that the user gives for the script; arguments of the script by their number.
    outer_line
        Line that starts the script inside this one whose lines are followed; 0: none does.
    values
        Values that the script sets.
    arguments
        Arguments of the script, or of the function that runs.
    uses
        Lines that use a name without a value, by name.
    asked
        Lines of conditions that use such a name, which is empty to a shell there.
    required
        Names that the script itself requires (``${NAME:?}``).
    seen
        Names that the script reads or sets.
    own
        Names that the script sets somewhere, also where it does not come along.
    tables
        Names that the script declares to be arrays with keys.
    calls
        Functions that run, inside each other: an argument that one does not get is empty.
    states
        Lines of commands and of tests whose outcome the machine decides: a file, an exit status, an output.
    decisions
        Lines of conditions that are such, with their text and what to give for it.
    opposite
        Lines of such conditions that are taken as the opposite.
    compared
        Texts that conditions compare a missing argument of the script with, by its number.
    """

    given: Mapping[str, str]
    outer_line: int = 0
    values: dict[str, Value] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    uses: dict[str, dict[int, None]] = field(default_factory=dict)
    asked: dict[str, dict[int, None]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    calls: int = 0
    compared: dict[str, set[str]] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)
    decisions: dict[int, tuple[str, str]] = field(default_factory=dict)
    opposite: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        numbers = [int(name) for name in self.given if name.isdecimal() and 0 < int(name) < 1000]
        names = map(str, range(1, max(numbers, default=0) + 1))
        self.arguments = [strip_marks(self.given[one]) if one in self.given else unknown(one) for one in names]

    def get(self, name: str) -> Value | None:
        """Return the value of a name; None: it has none."""
        self.seen.add(name)
        if name.isdecimal() and int(name):
            index = int(name) - 1
            return self.arguments[index] if index < len(self.arguments) else None
        if name == "#":
            return str(len(self.arguments))
        if name in "@*":
            return list_elements(self.arguments)
        if name in self.values:
            return self.values[name]
        return strip_marks(self.given[name]) if name in self.given else SHELLS_OWN.get(name)

    def missing(self, name: str, line: int) -> str:
        """Text in place of a name without value, whose use is remembered."""
        if self.calls and name.isdecimal():
            return ""
        text = unknown(name)
        self.uses.setdefault(unknown_names(text)[0], {})[self.outer_line or line] = None
        return text

    def ask(self, names: list[str], line: int, *, compares: Iterable[str] = ()) -> None:
        """Record that a condition uses unknown names, with the texts that it compares arguments of the script with."""
        if not all(map(str.isidentifier, names)):
            self.states.add(line)
        for name in names:
            if name.isdecimal():
                self.compared.setdefault(name, set()).update(compares)
            self.asked.setdefault(name, {})[line] = None

    def assign(self, name: str, value: Value, *, source: str) -> None:
        """
        Set a variable. A given value has precedence, unless the script refers to the variable itself.

        Parameters
        ----------
        name
            Name of the variable.
        value
            Its value in the script.
        source
            The value as the script writes it.
        """
        self.seen.add(name)
        refers = re.search(rf"\$\{{?[!#]?{re.escape(name)}\b", source)
        given = self.given.get(name)
        if refers or given is None:
            self.values[name] = value
        else:
            words = strip_marks(given)
            self.values[name] = list_elements(_split_given(words)) if isinstance(value, dict) else words

    def append(self, name: str, value: Value) -> None:
        """Append to a variable, as ``+=`` does."""
        old = self.get(name)
        elements = elements_of(old)
        if isinstance(value, str):
            text = f"{elements.get('0', '')}{value}"
            self.values[name] = elements | {"0": text} if isinstance(old, dict) else text
        elif [*value] == [*list_elements(value)]:
            self.values[name] = list_elements([*elements.values(), *value.values()])
        else:
            self.values[name] = elements | value

    def holder(self, name: str) -> str | None:
        """Return the variable to give for an unknown name: itself, or the shortest that holds it; None: none does."""
        if name.isalnum() or name.isidentifier():
            return name
        texts = {one: " ".join(elements_of(value).values()) for one, value in self.values.items()}
        holding = [one for one, text in texts.items() if one.isidentifier() and name in unknown_names(text)]
        return min(holding, key=lambda one: len(texts[one]), default=None)

    def texts(self) -> dict[str, str]:
        """Return every known variable that is one text, as the environment of a process."""
        known = {name: text for name, text in {**self.given, **self.values}.items() if isinstance(text, str)}
        plain = {name: strip_unknown(text) for name, text in known.items()}
        return {name: text for name, text in plain.items() if text == known[name] or name in LISTS}


def list_elements(elements: Iterable[str]) -> dict[str, str]:
    """Return the elements of a list by their numbers."""
    return {str(number): element for number, element in enumerate(elements)}


def elements_of(value: Value | None) -> dict[str, str]:
    """Return the elements of a value; a text is the first one of an array."""
    return value if isinstance(value, dict) else {"0": value} if value else {}


def _split_given(text: str) -> list[str]:
    """Split the given value of an array into words; at blanks where a quotation mark is not closed."""
    with suppress(ValueError):
        return argument_words(text)
    return text.split()


Later: TypeAlias = Callable[[], int]
"""A part of an expression, computed where its value counts: the other side of a choice changes nothing."""

NAME = r"[A-Za-z_]\w*(?:\[[^\]]*\])?"
SIGNS = r"<<=|>>=|\*\*|\+\+|--|[-+*/%&|^]=|<<|>>|[<>=!]=|&&|\|\||[-+*/%<>=!~&^|?:(),]"
TOKEN = re.compile(rf"\s*(\d+#\w+|0[xX][\da-fA-F]+|\d+|{NAME}|{SIGNS})")

TARGETS = re.compile(rf"({NAME})\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))|(?:\+\+|--)\s*({NAME})")
"""Names that an expression sets."""

LONGEST_SUM, LARGEST = 500, 2**63
"""A shell's numbers have 64 bits; longer expressions are not a script's."""


def _quotient(first: int, second: int) -> int:
    quotient = abs(first) // abs(second)
    return quotient if (first < 0) == (second < 0) else -quotient


def _bound(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """A shift or a power by no more than the number has bits."""
    return lambda first, second: function(first, second) if 0 <= second < 64 else _refuse()


def _refuse(*_: str) -> NoReturn:
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
UNARY: dict[str, Callable[[int], int]] = {"-": operator.neg, "+": operator.pos, "~": operator.inv, "!": operator.not_}


def value_of(
    expression: str, read: Callable[[str], str] = _refuse, put: Callable[[str, str], None] = lambda *_: None
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
    with suppress(ValueError, ZeroDivisionError):
        return _Expression(expression, read, put).value()
    return None


class _Expression:
    """Words of an expression from the left, each with what stands after it."""

    def __init__(self, text: str, read: Callable[[str], str], put: Callable[[str, str], None]) -> None:
        tokens: list[str] = TOKEN.findall(text)
        if "".join("".join(tokens).split()) != "".join(text.split()) or len(text.strip()) > LONGEST_SUM:
            raise ValueError
        self.read, self.put, self.tokens = read, put, ["", *reversed(tokens)]

    def value(self) -> int:
        """The value of the whole."""
        whole = self._parse_operators(0) if self.tokens[1:] else lambda: 0
        return whole() if self.tokens == [""] else _refuse()

    def _take(self, expected: str = "") -> str:
        return self.tokens.pop() if self.tokens[1:] and expected in ("", self.tokens[-1]) else _refuse()

    def _parse_operators(self, least: int) -> Later:
        """An operand with the operators that launched it that bind no less than that."""
        left = self._operand()
        while RANKS.get(self.tokens[-1], -1) >= least:
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
        if (sign := self.tokens[-1]) in ("++", "--"):
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
    return int(number) if -LARGEST <= number < LARGEST else _refuse()


PARAMETER = re.compile(r"([!#]?)([A-Za-z_]\w*|\d+|[@*#?$!-])")
EXPANSION = re.compile(rf"{PARAMETER.pattern}(?:\[([^\]]*)\])?(:?[-=?+]|\^\^?|,,?|##?|%%?|//?|:)?")
"""Begin of ``${...}``: a sign in front, a name, an index, an operator."""

EXPANSIONS = ("simple_expansion", "expansion", "arithmetic_expansion", "command_substitution")

ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}

SHOWN_LETTERS = 60

KEYED = re.compile(r"\[([^\]]+)\]=(.*)", re.DOTALL)
"""An element of an array with its key."""

LONGEST_WORD = 131_072
"""Letters of an argument that Linux takes (MAX_ARG_STRLEN); a longer one comes from a loop that appends to itself."""

MOST_WRITTEN = 20_000_000
"""Letters of all words of a script together."""


def line_of(node: Node) -> int:
    """The number of the line that a node begins on, from 1."""
    return node.start_point[0] + 1


def source_of(node: Node) -> str:
    """The text of a node."""
    return (node.text or b"").decode()


def _spans(node: Node, start: int, end: int, skipped: str = "") -> Iterator[bytes | Node]:
    """Yield a node's children from a place on, and the text between them that the parser leaves out."""
    text, first, place = node.text or b"", node.start_byte, start
    for child in node.children:
        if child.start_byte >= start and child.type != skipped:
            yield from [text[place - first : child.start_byte - first]] if child.start_byte > place else []
            yield child
            place = child.end_byte
    yield from [text[place - first : end - first]] if place < end else []


class Words:
    """
    Expansion of words with the current variables.

    Parameters
    ----------
    variables
        Variables to read, and to set by ``${NAME:=value}``.
    """

    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self._written = 0

    def fields(self, node: Node) -> list[str]:
        """Expand one word of a script to none, one or several."""
        return list(split(self._limit_pieces(node)))

    def value(self, node: Node) -> str:
        """Expand a word to one text, as in an assignment or a condition."""
        return join_pieces(self._limit_pieces(node))

    def _limit_pieces(self, node: Node) -> Iterator[Piece]:
        """Yield the parts of a word; refuse one that is longer than an operating system takes."""
        letters = 0
        for piece in self.pieces(node):
            letters += len(piece.text)
            self._written += len(piece.text)
            if letters > LONGEST_WORD or self._written > MOST_WRITTEN:
                allowed = f"{LONGEST_WORD:,} letters, or {MOST_WRITTEN:,} of all together"
                where = f"script, line {line_of(node)}"
                raise SpecError(where, f"makes a word of more than {allowed}.", "Does it append to itself?")
            yield piece

    def array(self, node: Node) -> dict[str, str]:
        """Return the elements of ``(...)`` by their keys, ``[key]=value``, or their numbers."""
        found: dict[str, str] = {}
        for child in (child for child in node.named_children if child.type != "comment"):
            keyed = KEYED.fullmatch(self.value(child)) if source_of(child).startswith("[") else None
            if keyed is not None:
                found[keyed[1].strip("\"'")] = keyed[2]
            else:
                found |= {str(len(found) + place): field for place, field in enumerate(self.fields(child))}
        return found

    def document(self, node: Node) -> str:
        """Return a here-document, unexpanded where its delimiter is quoted."""
        parts = {child.type: child for child in node.named_children}
        body, start = parts.get("heredoc_body"), parts.get("heredoc_start")
        if body is None:
            return ""
        is_quoted = start is not None and source_of(start)[:1] in "'\"\\"
        return source_of(body) if is_quoted else self.value(body)

    def pieces(self, node: Node, *, is_quoted: bool = False) -> Iterator[Piece]:
        """Yield the parts of a word."""
        if node.type in EXPANSIONS and (blanks := source_of(node).partition("$")[0]) and not blanks.startswith("`"):
            yield Piece(blanks.replace("\\\n", ""))  # inside quotation marks they belong to the parser's node
        if node.type == "ERROR" or (node.children and node.children[-1].is_missing):
            where = f"script, line {line_of(node)}"
            raise SpecError(where, f"is no Bash that is read here: {shown(source_of(node)[:SHOWN_LETTERS])}.")
        match node.type:
            case "string":
                yield Piece("", is_quoted=True)
                yield from self._parts(node, is_quoted=True)
            case "raw_string":
                yield Piece(source_of(node)[1:-1], is_quoted=True)
            case "ansi_c_string":
                yield Piece(_escape(source_of(node)[2:-1]), is_quoted=True)
            case "concatenation" | "command_name" | "heredoc_body":
                yield from self._parts(node, is_quoted=is_quoted or node.type == "heredoc_body")
            case "simple_expansion":
                name = source_of(node).partition("$")[2]  # of an array its first element
                if not PARAMETER.fullmatch(name):  # the grammar joins a sign without a name with what follows
                    yield Piece(f"${name}", splits=not is_quoted)
                    return
                name, more = (name[0], name[1:]) if name[0].isdecimal() else (name, "")  # $12 is ${1}2
                value = self._or_missing(self.look_up(name, ""), name, node)
                yield from self._value_pieces(value, name, is_quoted=is_quoted)
                yield from [Piece(more)] if more else []
            case "expansion":
                yield from self._expansion(node, is_quoted=is_quoted)
            case "arithmetic_expansion":
                yield Piece(self.arithmetic(node))
            case "command_substitution" | "process_substitution":
                yield Piece(self._command(node), splits=not is_quoted)
            case _ if is_quoted:
                yield _unescape(node.text or b"")
            case _:
                yield Piece(re.sub(r"\\(\n?)(.?)", lambda found: found[2], source_of(node), flags=re.DOTALL))

    def _parts(self, node: Node, *, is_quoted: bool) -> Iterator[Piece]:
        """Yield the pieces of a node's children and of the text between them."""
        marks = int(node.type == "string")
        for part in _spans(node, node.start_byte + marks, node.end_byte - marks, '"'):
            yield from [_unescape(part)] if isinstance(part, bytes) else self.pieces(part, is_quoted=is_quoted)

    # --- parameters ----------------------------------------------------------------------------------------

    def _value_pieces(self, value: Expanded, index: str, *, is_quoted: bool) -> Iterator[Piece]:
        """Yield a value as parts of a word; elements of an array are separate words, unless ``*`` joins them."""
        joined = value if isinstance(value, str) else " ".join(value)
        elements = [joined] if isinstance(value, str) or (index == "*" and is_quoted) else value
        for number, element in enumerate(elements):
            yield Piece(element, splits=not is_quoted, ends=number < len(elements) - 1, is_quoted=is_quoted)

    def _expansion(self, node: Node, *, is_quoted: bool) -> Iterator[Piece]:
        """Expand ``${...}``: a length, a default (without a colon empty counts as set), or a change."""
        blanks, _, braced = source_of(node).partition("$")
        found = EXPANSION.match(braced[1:-1])
        if found is None or found[1] == "!":
            yield Piece(self.variables.missing(source_of(node)[:SHOWN_LETTERS], line_of(node)))
            return
        sign, name, index, operator = (part or "" for part in found.groups())
        if sign == "#":
            yield Piece(self._length(name, index), splits=not is_quoted)
            return
        value = self.look_up(name, index)
        place = node.start_byte + len(f"{blanks}${{{found[0]}".encode())
        kind, is_set = operator[-1:], value is not None and (":" not in operator or bool("".join(value)))
        if kind == "+":
            yield from self._rest(node, place, is_quoted=is_quoted) if is_set else []
        elif kind in ("-", "=") and not is_set:
            pieces = list(self._rest(node, place, is_quoted=is_quoted))
            if kind == "=":
                self.variables.assign(name, join_pieces(pieces), source="")
            yield from pieces or [Piece("", is_quoted=is_quoted)]
        elif kind == "?" and not is_set:
            self.variables.required.add(name)
            yield Piece(self.variables.missing(name, line_of(node)))
        else:
            changes = kind not in ("", "-", "=", "?")
            pattern = join_pieces(self._rest(node, place, is_quoted=False)) if changes else ""
            if operator == ":":
                pattern = ":".join(self.number(bound, line_of(node)) for bound in pattern.split(":"))
            known = self._or_missing(value, name, node)
            if operator == ":" and isinstance(known, list):  # the script's own name stands in front of its arguments
                known = _slice([unknown("0"), *known] if name in ("@", "*") else known, pattern)
            elif changes:
                each = [_transform(one, operator, pattern) for one in ([known] if isinstance(known, str) else known)]
                known = each[0] if isinstance(known, str) else each
            yield from self._value_pieces(known, index, is_quoted=is_quoted)

    def _rest(self, node: Node, place: int, *, is_quoted: bool) -> Iterator[Piece]:
        """Yield the parts of a word after an operator, up to the closing brace."""
        for part in _spans(node, place, node.end_byte - 1, "}"):
            if isinstance(part, bytes):
                yield Piece(part.decode(), splits=not is_quoted)
                continue
            for piece in self.pieces(part, is_quoted=is_quoted):
                splits = piece.splits or not (is_quoted or piece.is_quoted)
                yield Piece(piece.text, splits, piece.ends, piece.is_quoted)

    def _or_missing(self, value: Expanded | None, name: str, node: Node) -> Expanded:
        return self.variables.missing(name, line_of(node)) if value is None else value

    def look_up(self, name: str, index: str) -> Expanded | None:
        """Return the text of a parameter, an element or all elements; None: it has none."""
        value = self.variables.get(name)
        if value is None:
            return None
        elements = value if isinstance(value, dict) else {"0": value}
        if (index or name) in ("@", "*"):
            return [*elements.values()]
        key = re.sub(r"\$\{?(\w+)\}?", lambda found: str(self.variables.get(found[1]) or ""), index.strip("\"'"))
        if key in elements or name in self.variables.tables:
            return elements.get(key)
        number = value_of(self.number(key, 0))
        if number is not None and -len(elements) <= number < len(elements):
            return [*elements.values()][number]
        return None if index else ""

    def _length(self, name: str, index: str) -> str:
        value = self.look_up(name, index) or ""
        return unknown(f"${{#{name}}}") if unknown_names("".join(value)) else str(len(value))

    # --- numbers and commands ------------------------------------------------------------------------------

    def arithmetic(self, *nodes: Node) -> str:
        """The value of ``$((...))`` and its kin; not known where a variable of it is not, or where it is none."""
        text = "".join(map(self._expression, nodes))
        if found := re.fullmatch(r"\s*(?:\$?\(\((.*)\)\)|\$\[(.*)\])\s*", text, re.DOTALL):
            text = found[1] or found[2] or ""
        return self.number(text, line_of(nodes[0]), "".join(map(source_of, nodes)))

    def number(self, text: str, line: int, source: str = "") -> str:
        """The value of an expression, which may set variables."""
        names = unknown_names(text)

        def read(name: str) -> str:
            one, _, index = name.partition("[")
            value = self.look_up(one, index.removesuffix("]"))
            found = self.variables.missing(name, line) if value is None else "".join(value)
            names.extend(unknown_names(found))
            return found

        def put(name: str, number: str) -> None:
            name, is_element, index = name.partition("[")
            if is_element:
                raise SpecError(f"script, line {line}", f"sets {name}[{index}, which is not read here.")
            self.variables.assign(name, number, source=f"${name}")

        value = None if names else value_of(text, read, put)
        if value is not None:
            return str(value)
        for one, other in TARGETS.findall(text):
            name = (one or other).partition("[")[0]
            put(name, self.variables.missing(name, line))
        return unknown(names[0]) if names else self.variables.missing((source or text)[:SHOWN_LETTERS], line)

    def _expression(self, node: Node) -> str:
        """An expression with its parameters in place, whose variables may be names alone."""
        if node.type in (*EXPANSIONS, "string") and node.type != "arithmetic_expansion":
            return self.value(node)
        text = ""
        for part in _spans(node, node.start_byte, node.end_byte):
            if isinstance(part, bytes):
                text += part.decode()
            else:
                text += self.arithmetic(part) if part.type == "arithmetic_expansion" else self._expression(part)
        return text

    def _command(self, node: Node) -> str:
        """Return the output of a command that only prints its words, or of a here-document's ``cat``."""
        commands = [child for child in node.named_children if child.type != "comment"]
        if source_of(node).startswith("$((") and commands[0].type == "subshell":  # the grammar's reading inside ${...}
            return self.number(self._expression(commands[0]), line_of(node), source_of(node))
        if len(commands) == 1 and commands[0].type == "redirected_statement":
            parts = commands[0].named_children
            if source_of(parts[0]) == "cat" and len(parts) == 2 and parts[1].type == "heredoc_redirect":
                return self.document(parts[1]).rstrip("\n")
        if node.type == "command_substitution" and len(commands) == 1 and commands[0].type == "command":
            said = output_of([field for child in commands[0].children for field in self.fields(child)])
            if said is not None:
                return said
        return self.variables.missing(" ".join(source_of(node).split())[:SHOWN_LETTERS], line_of(node))


def output_of(words: Sequence[str]) -> str | None:
    r"""
    Return the output of a command without its last newline; None: it is not known.

    >>> output_of(["echo", "-n", "--tp 2"]), output_of(["expr", "2", "*", "3"]), output_of(["nproc"])
    ('--tp 2', '6', None)
    """
    name, *rest = words or [""]
    if name == "echo":
        flags = "".join(takewhile(re.compile("-[neE]+").fullmatch, rest))
        text = " ".join(dropwhile(re.compile("-[neE]+").fullmatch, rest))
        return _escape(text) if "e" in flags else text
    if name == "expr":
        decimals = [re.sub(r"^0+(?=\d)", "", word) for word in rest]  # octal numbers are arithmetic's alone
        number = value_of(" ".join(decimals))
        return None if number is None else str(number)
    if name == "seq" and rest and all(re.fullmatch(r"-?\d{1,5}", word) for word in rest[:3]) and len(rest) <= 3:
        numbers = [*map(int, rest)]  # the last one alone, or first, step and last
        first, step, last = {1: (1, 1, *numbers), 2: (numbers[0], 1, numbers[-1])}.get(len(numbers), numbers)
        return "\n".join(map(str, range(first, last + (1 if step > 0 else -1), step or 1)))
    return None


def _escape(text: str) -> str:
    """Replace escapes, as in ``$'...'``."""
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[0]), text)


def _unescape(text: bytes) -> Piece:
    """Return a part of a quoted text without its escapes; a backslash at the end of a line joins it with the next."""
    return Piece(re.sub(r'\\(["\\$`\n])', lambda found: found[1].strip("\n"), text.decode()))


def _slice(elements: list[str], bounds: str) -> list[str]:
    first, _, number = bounds.partition(":")
    start, count = value_of(first), value_of(number or str(len(elements)))
    if start is None or count is None:
        return [unknown(bounds)]
    start += len(elements) if start < 0 else 0
    return elements[start : count if count < 0 else start + count]


CASES: Mapping[str, Callable[[str], str]] = {",": str.lower, "^": str.upper}
"""Changes of the first letter; of all, where the operator is written twice."""


def _transform(text: str, operator: str, pattern: str) -> str:
    """Apply ``${NAME,,}``, ``${NAME%pattern}`` or a like operator to a text; unknown text is returned as it is."""
    if unknown_names(text):
        return text
    if operator[0] in CASES:
        end = len(text) if len(operator) == 2 else 1
        return CASES[operator[0]](text[:end]) + text[end:]
    if operator == ":":
        return "".join(_slice(list(text), pattern))
    if operator[0] == "/":
        return _replace(text, *pattern.partition("/")[::2], is_all=operator == "//")
    return _strip_pattern(text, operator, pattern)


def _replace(text: str, old: str, new: str, *, is_all: bool) -> str:
    """Replace the first part that matches a pattern, or all of them; after ``#`` or ``%`` the beginning or the end."""
    anchor = old[:1] if old[:1] in ("#", "%") and not is_all else ""
    inner = _expression(old.removeprefix(anchor))
    sought = {"#": rf"\A{inner}", "%": rf"{inner}\Z"}.get(anchor, inner)
    return re.sub(sought, lambda _: new, text, count=0 if is_all else 1) if old else text


def _expression(pattern: str) -> str:
    """Translate a shell's pattern to a regular expression without anchors."""
    return translate(pattern).removesuffix(r"\z").removesuffix(r"\Z")


def _strip_pattern(text: str, operator: str, pattern: str) -> str:
    """Remove the shortest (one sign) or longest (two signs) beginning or end that matches a pattern."""
    is_front, whole = operator[0] == "#", len(text)
    parts = (text[:size] if is_front else text[whole - size :] for size in range(whole + 1))
    sizes = (len(part) for part in parts if fnmatchcase(part, pattern))
    size = (max if len(operator) == 2 else min)(sizes, default=0)
    return text[size:] if is_front else text[: whole - size]
