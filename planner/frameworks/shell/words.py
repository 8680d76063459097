"""Expansion of words as a shell does it; commands in them are never run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase, translate
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.shell.arithmetic import TARGETS, value_of
from planner.frameworks.shell.text import Piece, join_pieces, split, strip_unknown, unknown, unknown_names
from planner.frameworks.shell.variables import Value, Variables

if TYPE_CHECKING:
    from tree_sitter import Node

PARAMETER = re.compile(r"([!#]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?")
"""Parameter of ``${...}``: a sign in front, a name, an index."""

OPERATOR = re.compile(r":?[-=?+]|\^\^?|,,?|##?|%%?|//?|:")

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
    """The line of a node, from one."""
    return node.start_point[0] + 1


def source_of(node: Node) -> str:
    """The text of a node."""
    return (node.text or b"").decode()


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

    def array(self, node: Node) -> list[str]:
        """Return the elements of ``(...)``."""
        return [field for child in node.named_children if child.type != "comment" for field in self.fields(child)]

    def elements_by_key(self, node: Node) -> dict[str, str]:
        """Return the elements of ``([key]=value ...)`` by their keys; empty for any other array."""
        found: dict[str, str] = {}
        for child in node.named_children:
            match = KEYED.fullmatch(self.value(child)) if source_of(child).startswith("[") else None
            if match is not None:
                found[match[1].strip("\"'")] = match[2]
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
                value = self._or_missing(self._look_up_index(name, ""), name, node)
                yield from self._value_pieces(value, name, is_quoted=is_quoted)
                yield from [Piece(more)] if more else []
            case "expansion":
                yield from self._expansion(node, is_quoted=is_quoted)
            case "arithmetic_expansion":
                yield Piece(self.arithmetic(node))
            case "command_substitution" | "process_substitution":
                yield Piece(self._command(node), splits=not is_quoted)
            case "ERROR":
                where = f"script, line {line_of(node)}"
                raise SpecError(where, f"is no Bash that is read here: {shown(source_of(node)[:SHOWN_LETTERS])}.")
            case _ if is_quoted:
                yield _unescape(node.text or b"")
            case _:
                yield Piece(re.sub(r"\\(\n?)(.?)", lambda found: found[2], source_of(node), flags=re.DOTALL))

    def _parts(self, node: Node, *, is_quoted: bool) -> Iterator[Piece]:
        """Yield the children of a node, and the text between them that the parser leaves out."""
        text = node.text or b""
        start, end = node.start_byte, node.end_byte
        if node.type == "string":
            start, end = start + 1, end - 1
        place = start
        for child in node.children:
            if child.type == '"':
                continue
            if child.start_byte > place:
                yield _unescape(text[place - node.start_byte : child.start_byte - node.start_byte])
            yield from self.pieces(child, is_quoted=is_quoted)
            place = child.end_byte
        if place < end:
            yield _unescape(text[place - node.start_byte : end - node.start_byte])

    # --- parameters ----------------------------------------------------------------------------------------

    def _look_up(self, name: str, node: Node) -> Value:
        value = self.variables.get(name)
        return self.variables.missing(name, line_of(node)) if value is None else value

    def _value_pieces(self, value: Value, index: str, *, is_quoted: bool) -> Iterator[Piece]:
        """Yield a value as parts of a word; elements of an array are separate words, unless ``*`` joins them."""
        if isinstance(value, str):
            yield Piece(value, splits=not is_quoted, is_quoted=is_quoted)
            return
        if index == "*" and is_quoted:
            yield Piece(" ".join(value), is_quoted=True)
            return
        for number, element in enumerate(value):
            yield Piece(element, splits=not is_quoted, ends=number < len(value) - 1, is_quoted=is_quoted)

    def _expansion(self, node: Node, *, is_quoted: bool) -> Iterator[Piece]:
        blanks, _, braced = source_of(node).partition("$")
        inner = braced[1:-1]
        found = PARAMETER.match(inner)
        if found is None:
            yield Piece(self.variables.missing(source_of(node)[:SHOWN_LETTERS], line_of(node)))
            return
        sign, name, index = found[1], found[2], (found[3] or "")[1:-1]
        rest = inner[found.end() :]
        if sign == "#" or (sign == "!" and not index):
            yield Piece(self._length(name, index) if sign == "#" else self._indirect(name, node), splits=not is_quoted)
            return
        value = self.variables.keys(name) if sign == "!" else self._look_up_index(name, index)
        sought = OPERATOR.match(rest)
        if not sought:
            yield from self._value_pieces(self._or_missing(value, name, node), index, is_quoted=is_quoted)
            return
        place = node.start_byte + len((blanks + "${" + inner[: found.end() + sought.end()]).encode())
        yield from self._apply_operator(node, (name, index, sought[0], place), value, is_quoted=is_quoted)

    def _apply_operator(
        self, node: Node, what: tuple[str, str, str, int], value: Value | None, *, is_quoted: bool
    ) -> Iterator[Piece]:
        name, index, operator, place = what
        if operator.lstrip(":") and operator.lstrip(":") in "-=?+":
            yield from self._default(node, what, value, is_quoted=is_quoted)
            return
        pattern = join_pieces(self._rest(node, place, is_quoted=False))
        if operator == ":":
            pattern = ":".join(self.number(bound, line_of(node)) for bound in pattern.split(":"))
        known = self._or_missing(value, name, node)
        if name in ("@", "*") and operator == ":" and isinstance(known, list):
            known = [unknown("0"), *known]  # the script's own name stands in front
        changed = (
            [_transform(one, operator, pattern) for one in known]
            if isinstance(known, list) and operator != ":"
            else _slice(known, pattern)
            if isinstance(known, list)
            else _transform(known, operator, pattern)
        )
        yield from self._value_pieces(changed, index, is_quoted=is_quoted)

    def _default(
        self, node: Node, what: tuple[str, str, str, int], value: Value | None, *, is_quoted: bool
    ) -> Iterator[Piece]:
        """Apply ``-``, ``=``, ``?`` or ``+``; without a colon an empty value counts as set."""
        name, index, operator, place = what
        is_set = value is not None and (":" not in operator or bool(strip_unknown("".join(value)) or _names(value)))
        if is_set and value is not None:
            instead = operator.endswith("+")
            yield from (
                self._rest(node, place, is_quoted=is_quoted)
                if instead
                else self._value_pieces(value, index, is_quoted=is_quoted)
            )
        elif operator.endswith("?"):
            self.variables.required.add(name)
            yield Piece(self.variables.missing(name, line_of(node)))
        elif not operator.endswith("+"):
            pieces = list(self._rest(node, place, is_quoted=is_quoted))
            if operator.endswith("="):
                self.variables.assign(name, join_pieces(pieces), source="")
            yield from pieces or [Piece("", is_quoted=is_quoted)]

    def _rest(self, node: Node, place: int, *, is_quoted: bool) -> Iterator[Piece]:
        """Yield the parts of a word behind an operator, up to the closing brace."""
        text, start = node.text or b"", node.start_byte
        for child in node.children:
            if child.start_byte < place or child.type == "}":
                continue
            if child.start_byte > place:
                yield Piece(text[place - start : child.start_byte - start].decode(), splits=not is_quoted)
            for piece in self.pieces(child, is_quoted=is_quoted):
                splits = piece.splits or not (is_quoted or piece.is_quoted)
                yield Piece(piece.text, splits, piece.ends, piece.is_quoted)
            place = child.end_byte
        if place < node.end_byte - 1:
            yield Piece(text[place - start : -1].decode(), splits=not is_quoted)

    def _or_missing(self, value: Value | None, name: str, node: Node) -> Value:
        return self.variables.missing(name, line_of(node)) if value is None else value

    def _look_up_index(self, name: str, index: str) -> Value | None:
        value = self.variables.get(name)
        key = re.sub(r"\$\{?(\w+)\}?", lambda found: str(self.variables.get(found[1]) or ""), index.strip("\"'"))
        if index and f"{name}[{key}]" in self.variables.values:
            return self.variables.values[f"{name}[{key}]"]
        if index in ("@", "*"):
            return [value] if isinstance(value, str) else value
        if index:
            number = value_of(self.number(index, 0))
            elements = [value] if isinstance(value, str) else value
            if elements is None or number is None:
                return None
            return elements[number] if -len(elements) <= number < len(elements) else None
        return value if isinstance(value, str) or name in ("@", "*") or value is None else (value or [""])[0]

    def _length(self, name: str, index: str) -> str:
        value = self._look_up_index(name, index)
        if value is not None and _names(value):
            return unknown(f"${{#{name}}}")
        return str(len(value)) if value is not None else "0"

    def _indirect(self, name: str, node: Node) -> str:
        target = self.variables.get(name)
        if not isinstance(target, str) or _names(target):
            return self.variables.missing(name, line_of(node))
        value = self._look_up(target, node)
        return value if isinstance(value, str) else " ".join(value)

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
            value = self._element(name)
            found = self.variables.missing(name, line) if value is None else "".join(value)
            names.extend(unknown_names(found))
            return found

        def put(name: str, number: str) -> None:
            name, is_element, index = name.partition("[")
            if not is_element:
                self.variables.assign(name, number, source=f"${name}")
            elif name in self.variables.tables or not self.variables.set_element(
                name, self.number(index[:-1], line), number
            ):
                raise SpecError(f"script, line {line}", f"sets {name}[{index}, which is not read here.")

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
        text, place, start = "", node.start_byte, node.start_byte
        for child in node.children:
            text += (node.text or b"")[place - start : child.start_byte - start].decode()
            text += self.arithmetic(child) if child.type == "arithmetic_expansion" else self._expression(child)
            place = child.end_byte
        return text + (node.text or b"")[place - start :].decode()

    def _element(self, name: str) -> Value | None:
        name, _, index = name.partition("[")
        return self._look_up_index(name, index.removesuffix("]"))

    def _command(self, node: Node) -> str:
        """Return the output of a command that only prints its words, or of a here-document's ``cat``."""
        commands = [child for child in node.named_children if child.type != "comment"]
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

    >>> output_of(["echo", "-n", "--tp 2"]), output_of(["printf", "%s=%02d ", "a", "1", "b", "2"]), output_of(["nproc"])
    ('--tp 2', 'a=01 b=02 ', None)
    """
    name, *rest = words or [""]
    if name == "echo":
        flags = "".join(takewhile(re.compile("-[neE]+").fullmatch, rest))
        text = " ".join(dropwhile(re.compile("-[neE]+").fullmatch, rest))
        return _escape(text) if "e" in flags else text
    if name == "printf" and rest:
        return _print(_escape(rest[0]), rest[1:])
    if name == "expr":
        decimals = [re.sub(r"^0+(?=\d)", "", word) for word in rest]  # octal numbers are arithmetic's alone
        number = value_of(" ".join(decimals))
        return None if number is None else str(number)
    if name == "seq" and rest and all(re.fullmatch(r"-?\d{1,5}", word) for word in rest[:3]) and len(rest) <= 3:
        return "\n".join(map(str, _sequence(*map(int, rest))))
    return None


CONVERSION = re.compile(r"(%-?\d{0,3}[sd]|%%)")
"""Conversion of ``printf``: a text or a number, with its width."""


def _print(form: str, values: Sequence[str]) -> str | None:
    """Return the output of ``printf``, whose format is used again while values are left."""
    parts, left, text = CONVERSION.split(form), list(values), ""
    holes = sum(part != "%%" for part in parts[1::2])
    if any("%" in part for part in parts[::2]):
        return None
    for part in parts * (max(1, -(-len(left) // holes)) if holes else 1):
        if part == "%%" or not CONVERSION.fullmatch(part):
            text += part[:1] if part == "%%" else part
            continue
        is_number = part.endswith("d")
        value = left.pop(0) if left else "0" if is_number else ""
        is_plain = bool(re.fullmatch(r"0|-?[1-9]\d{0,17}", value)) if is_number else not unknown_names(value)
        if not is_plain and (len(part) > 2 or not unknown_names(value)):
            return None
        text += part % (int(value) if is_number else value) if is_plain else value
    return text


def _escape(text: str) -> str:
    """Replace escapes, as in ``$'...'``."""
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[0]), text)


def _unescape(text: bytes) -> Piece:
    """Return a part of a quoted text without its escapes; a backslash at the end of a line joins it with the next."""
    return Piece(re.sub(r'\\(["\\$`\n])', lambda found: found[1].strip("\n"), text.decode()))


def _names(value: Value) -> list[str]:
    return unknown_names("".join(value))


def _sequence(*numbers: int) -> range:
    """Numbers as ``seq`` prints them: the last one alone, or first, step and last."""
    first, step, last = {1: (1, 1, *numbers), 2: (numbers[0], 1, numbers[-1])}.get(len(numbers), numbers)
    return range(first, last + (1 if step > 0 else -1), step or 1)


def _slice(elements: list[str], bounds: str) -> list[str]:
    first, _, number = bounds.partition(":")
    start, count = value_of(first), value_of(number or str(len(elements)))
    if start is None or count is None:
        return [unknown(bounds)]
    start += len(elements) if start < 0 else 0
    return elements[start : count if count < 0 else start + count]


def _transform(text: str, operator: str, pattern: str) -> str:
    """Apply ``${NAME,,}``, ``${NAME%pattern}`` or a like operator to a text; unknown text is returned as it is."""
    if unknown_names(text):
        return text
    match operator:
        case ",,":
            return text.lower()
        case "^^":
            return text.upper()
        case ",":
            return text[:1].lower() + text[1:]
        case "^":
            return text[:1].upper() + text[1:]
        case ":":
            return "".join(_slice(list(text), pattern))
        case "/" | "//":
            old, _, new = pattern.partition("/")
            return re.sub(_expression(old), lambda _: new, text, count=0 if operator == "//" else 1) if old else text
    return _strip_pattern(text, operator, pattern)


def _expression(pattern: str) -> str:
    """Translate a shell's pattern to a regular expression without anchors."""
    return translate(pattern).removesuffix(r"\z").removesuffix(r"\Z")


def _strip_pattern(text: str, operator: str, pattern: str) -> str:
    """Remove the shortest (one sign) or longest (two signs) beginning or end that matches a pattern."""
    ends = range(len(text) + 1)
    is_longest, is_front = len(operator) == 2, operator[0] == "#"
    for size in reversed(ends) if is_longest else ends:
        part = text[:size] if is_front else text[len(text) - size :]
        if fnmatchcase(part, pattern):
            return text[size:] if is_front else text[: len(text) - size]
    return text
