"""Conditions of a script: ``[ ... ]``, ``[[ ... ]]``, ``((...))``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown
from planner.frameworks.shell.words import (
    Value,
    Variables,
    Words,
    elements_of,
    line_of,
    restore_variables,
    source_of,
    strip_unknown,
    unknown_names,
    value_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

SIGNS = ("eq", "ne", "lt", "le", "gt", "ge")
NUMBERS: dict[str, Callable[[int, int], bool]] = {f"-{name}": getattr(operator, name) for name in SIGNS}

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
    if node.type in ("unary_expression", "negation_expression") and len(inner) == 2:
        return _unary(source_of(inner[0]), inner[1], words)
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
        name, _, index = words.value(operand).partition("[")
        return Verdict(words.look_up(name, index.removesuffix("]")) is not None, not unknown_names(index))
    words.variables.states.add(line_of(operand))
    return Verdict(sign in ("-e", "-f", "-d", "-r", "-x", "-s", "-w"), False)


def _binary(left: Node, sign: str, right: Node, words: Words) -> Verdict:
    if sign in ("&&", "-a", "||", "-o"):
        first, combine = decide(left, words), Verdict.or_else if sign in ("||", "-o") else Verdict.and_also
        return first if first == Verdict(combine is Verdict.or_else, True) else combine(first, decide(right, words))
    one, one_known = _text(left, words, right)
    if sign == "=~":
        return _matches(one, right, words) if one_known else Verdict(False, False)
    other, other_known = _text(right, words, left)
    is_known = one_known and other_known
    if (not one and _vanishes(left)) or (not other and _vanishes(right)):
        return Verdict(False, is_known)
    if sign in NUMBERS:
        numbers = [_number(text, words, left) for text in (one, other)]
        if numbers[0] is None or numbers[1] is None:
            return Verdict(False, False)
        return Verdict(NUMBERS[sign](numbers[0], numbers[1]), is_known)
    if sign in ("<", ">"):
        return Verdict(one < other if sign == "<" else one > other, is_known)
    is_same = one == other if "string" in right.type or _is_single(right) else fnmatchcase(one, other)
    return Verdict(is_same == (sign != "!="), is_known)


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


LONGEST_MATCH, MOST_REPETITIONS = 100, 4  # more may take exponential time

CLASSES = {"digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9", "lower": "a-z", "upper": "A-Z", "space": r"\s"}
"""Classes of letters in a regular expression of POSIX, by their names."""


def _class_letters(found: re.Match[str]) -> str:
    return CLASSES.get(found[1], found[0])


def _expression(node: Node, words: Words) -> str | None:
    """Return a regular expression; None: parts of it are variables or quoted, or its matching may take too long."""
    is_raw = node.type == "regex"
    text, is_read = (source_of(node), True) if is_raw else _text(node, words)
    text = re.escape(text) if "string" in node.type else re.sub(r"\[:(\w+):\]", _class_letters, text)
    is_read &= "[:" not in text and not (is_raw and re.search(r"""["'`]|\$[\w({]""", text))
    repeated = re.findall(r"[+*?{]", text)
    is_short = len(text) <= LONGEST_MATCH and len(repeated) <= MOST_REPETITIONS and not re.search(r"\)[+*{]", text)
    return text if is_read and is_short else None


def _matches(text: str, node: Node, words: Words) -> Verdict:
    """Match a text with a regular expression; one that is not read here leaves the condition open."""
    expression = _expression(node, words)
    if expression is not None and len(text) <= LONGEST_MATCH:
        with suppress(re.error):
            return Verdict(re.search(expression, text) is not None, True)
    words.variables.states.add(line_of(node))
    return Verdict(False, False)


SHELLS = ("bash", "sh", "zsh", "dash", "ksh")

READERS = {"read": "dinNptu", "mapfile": "dnOsuCc", "readarray": "dnOsuCc"}

"""Commands that set variables to what they read, with the letters of their options that take a value."""


def read_names(words: Sequence[str]) -> list[str]:
    """The variables that a command sets to what it reads, which is not known."""
    if not words or words[0] not in READERS:
        return [*words[2:3]] if [*words[:2]] == ["printf", "-v"] else []
    option = re.compile(f"-.*[{READERS[words[0]]}]")
    names = [word for before, word in pairwise(words) if word.isidentifier() and not option.fullmatch(before)]
    return names or ["REPLY" if words[0] == "read" else "MAPFILE"]


def script_place(words: Sequence[str]) -> int | None:
    """Return the position of a script's name in a command: first, or after a shell or a queue."""
    runs = {place for place, word in enumerate(words) if word.rsplit("/", 1)[-1] in (*SHELLS, "sbatch", "srun")}
    first = min(runs, default=len(words))
    return next((place for place, word in enumerate(words) if word.endswith(".sh") and not 0 < place <= first), None)


HANDED = re.compile(r"(?:^(?:--export=)?|,)([A-Za-z_]\w*)=(.*?)(?=,[A-Za-z_]\w*=|$)", re.MULTILINE)
"""Variables in words of a command, one a line."""

REMOTE = ("ssh", "pdsh", "clush", "dsh")

"""Commands that run one on other hosts."""


def inner_script(words: Sequence[str]) -> str | None:
    """Return the argument of ``bash -c``, wherever it stands in a command, or the command of other hosts."""
    if words[0].rsplit("/", 1)[-1] in REMOTE:
        return next((word for word in words[1:] if len(word.split()) > 1), None)
    is_shell = False
    for word, following in pairwise(words):
        if is_shell and re.fullmatch(r"-[a-z]*c", word):
            return following
        is_shell = word.rsplit("/", 1)[-1] in SHELLS or (is_shell and word.startswith("-"))
    return None


PLACEHOLDER = re.compile(r"(?<=[=\s])<([A-Za-z][^<>\n|&;]*)>(?=[\s\"/_]|$)")

"""``<path to data>``, a placeholder of examples that is not valid Bash."""


UNENDED = re.compile(r"(\\\n\s*)+\Z")
"""Continuation of the last line by nothing."""


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


NAME = re.compile(rb"[A-Za-z_]\w*|\d|[@*#?]")


def find_assignments(root: Node) -> set[str]:
    """Return the variables that a script sets anywhere, also in branches that are not taken."""
    names = (node.child_by_field_name("name") for node in _descend(root) if node.type == "variable_assignment")
    return {source_of(name) for name in names if name is not None}


def _descend(root: Node) -> Iterator[Node]:
    """Yield a node and all nodes in it."""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        yield node


MOST_REPAIRS = 50

"""Times that a script is parsed again; one error of the grammar may hide the next."""


def parse(text: str) -> Node:
    """Parse a script; where tree-sitter's grammar errs, parse an equivalent spelling instead."""
    source = UNENDED.sub("\n", PLACEHOLDER.sub(r"'<\1>'", text)).encode()
    for _ in range(MOST_REPAIRS):
        root = _parser().parse(source).root_node
        repairs = sorted(_repairs(root, source), reverse=True)
        if not repairs:
            break
        for place, end, other in repairs:
            source = source[:place] + other + source[end:]
    return root


def _repairs(root: Node, source: bytes) -> Iterator[tuple[int, int, bytes]]:
    """
    Yield byte offsets with the text to write between them.

    A name after a bare ``$`` gets braces, a line ``A=1 B=2`` a semicolon at its end. A ``$`` without a name and an
    escaped blank that begins a word get quotation marks.
    """
    for node in _descend(root):
        if node.type == "$" and node.parent is not None and node.parent.type in ("concatenation", "command", "array"):
            if found := NAME.match(source, node.end_byte):
                yield from ((found.start(), found.start(), b"{"), (found.end(), found.end(), b"}"))
            else:
                yield node.start_byte, node.end_byte, b"'$'"
        elif node.type in ("command", "array"):
            for one, following in pairwise(node.children):
                between = source[one.end_byte : following.start_byte]
                if one.type == "variable_assignment" and b"\n" in between.replace(b"\\\n", b""):
                    yield one.end_byte, one.end_byte, b";"
                for found in re.finditer(rb"\\([ \t])", between):
                    yield one.end_byte + found.start(), one.end_byte + found.end(), b"'" + found[1] + b"'"


def targets(redirect: Node) -> list[Node]:
    """A redirection's file, and what stands after it; of ``2>&-`` the whole."""
    return [one for one in redirect.named_children if one.type != "file_descriptor"] or [redirect]


REDIRECTS = ("file_redirect", "herestring_redirect", "heredoc_redirect")


def branches_of(node: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """Conditions and bodies; none of ``else``."""
    clauses = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
    for part in (node, *clauses):
        named = [child for child in part.named_children if child not in clauses]
        then = next((child.start_byte for child in part.children if child.type == "then"), part.start_byte)
        yield [one for one in named if one.start_byte < then], [one for one in named if one.start_byte > then]


WHERE = "script"

MOST_STATEMENTS = 20_000

MOST_LETTERS = 1_000_000


@record(frozen=True, slots=True)
class Command:
    """
    A command that the script would run.

    Parameters
    ----------
    words
        Its name and arguments; unknown values are marked in them by name.
    line
        Its line in the script.
    environment
        Variables at that point whose values are known.
    """

    words: tuple[str, ...]
    line: int
    environment: Mapping[str, str]


@dataclass(slots=True)
class Script:
    """
    Outcome of a script.

    Parameters
    ----------
    variables
        Variables at its end.
    commands
        Commands in the order in which they would run.
    files
        Texts of here-documents by the file that they are written to.
    notes
        Statements that were not followed, a sentence each.
    """

    variables: Variables
    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Stop(Exception):
    """Signal that ends the script, a function or a loop."""

    def __init__(self, what: str, line: int, *, failed: bool = False, levels: int = 1) -> None:
        self.what, self.line, self.failed, self.levels = what, line, failed, levels


def follow(
    text: str,
    given: Mapping[str, str] | None = None,
    find: Callable[[str], str | None] = lambda _: None,
    opposite: Collection[int] = (),
) -> Script:
    r"""
    Follow a script.

    Parameters
    ----------
    text
        The script.
    given
        Variables that are given for it (``--set``); its arguments by their number.
    find
        Function that returns the text of another script by the name that this one uses; None: not found.
    opposite
        Lines of conditions that the machine decides, and that are taken as the opposite of what is assumed.

    Raises
    ------
    SpecError
        If it exits with an error before its end, or does not end.

    >>> [command.words for command in follow("A=(--x ${Y:-1})\npython train.py ${A[@]} --z $Z", {"Z": "2"}).commands]
    [('python', 'train.py', '--x', '1', '--z', '2')]
    """
    if len(text) > MOST_LETTERS:
        raise SpecError(WHERE, f"has {len(text):,} letters, expected {MOST_LETTERS:,} at most.")
    script = Script(Variables(given or {}, opposite=frozenset(opposite)))
    try:
        _Follower(script, find).run(text)
    except RecursionError:
        raise SpecError(WHERE, "has scripts, functions or words inside each other, too deep to be read.") from None
    return script


class _Follower:
    """Interpreter of statements, by a method for each type of node."""

    def __init__(self, script: Script, find: Callable[[str], str | None]) -> None:
        self.script = script
        self.find = find
        self.words = Words(script.variables)
        self.functions: dict[str, Node] = {}
        self.frames: list[dict[str, Value | None]] = []
        self.statements = 0
        self.first_line = 0
        self.said = ""
        self.feeds = 0

    def run(self, text: str) -> None:
        """Run a whole script."""
        try:
            self._text(text, first_line=0)
        except _Stop as stop:
            if stop.failed:
                said = f" after it says {shown(self.said)}" if self.said else ""
                raise SpecError(f"{WHERE}, line {stop.line}", f"ends with an error{said}.") from None

    def _text(self, text: str, *, first_line: int) -> Verdict:
        """Run the text of a script, of ``bash -c`` or of a here-document."""
        root = parse(text)
        self.script.variables.own |= find_assignments(root)
        before, self.first_line = self.first_line, first_line
        self.script.variables.outer_line = first_line
        try:
            return self._each(root)
        finally:
            self.first_line = self.script.variables.outer_line = before

    def _line(self, node: Node) -> int:
        return self.first_line or line_of(node)

    def _do(self, node: Node) -> Verdict:
        self.statements += 1
        if self.statements > MOST_STATEMENTS:
            raise SpecError(WHERE, f"has loops of more than {MOST_STATEMENTS:,} statements together.")
        if node.type == "ERROR" and not self.feeds:
            problem = f"is no Bash that is read here: {shown(restore_variables(source_of(node))[:80])}."
            raise SpecError(f"{WHERE}, line {self._line(node)}", problem)
        action: Callable[[Node], Verdict | None] = getattr(self, f"_visit_{node.type}", lambda _: None)
        return action(node) or Verdict(True, True)

    def _each(self, node: Node) -> Verdict:
        return self._all(node.named_children)

    def _all(self, nodes: Sequence[Node]) -> Verdict:
        last = Verdict(True, True)
        for node in nodes:
            if node.type != "comment":
                run, following = partial(self._do, node), node.next_sibling
                last = self._run_apart(run) if following is not None and following.type == "&" else run()
        return last

    _visit_variable_assignments = _visit_do_group = _each

    def _visit_pipeline(self, node: Node) -> Verdict:
        """Run the members, each in a shell of its own; the last one's end is its end."""
        return [self._run_apart(partial(self._do, one)) for one in node.named_children][-1]

    def _visit_subshell(self, node: Node) -> Verdict:
        return self._run_apart(lambda: self._each(node))

    def _visit_negated_command(self, node: Node) -> Verdict:
        return self._each(node).negate()

    # --- variables -----------------------------------------------------------------------------------------

    def _visit_variable_assignment(self, node: Node) -> None:
        name, value = node.child_by_field_name("name") or node, node.child_by_field_name("value")
        found: Value = ""
        if value is not None:
            found = self.words.array(value) if value.type == "array" else self.words.value(value)
        appends = any(child.type == "+=" for child in node.children)
        variables = self.script.variables
        if name.type == "subscript" and isinstance(found, str):
            target, line = source_of(name).partition("[")[0], self._line(node)
            is_table, elements = target in variables.tables, elements_of(variables.get(target))
            index = self.words.value(name.named_children[-1])
            key = index if is_table else self.words.number(index, line)
            is_place = key in elements or key == str(len(elements)) or (is_table and not unknown_names(key))
            new = {**elements, key: f"{elements.get(key, '') if appends else ''}{found}"}
            variables.values[target] = new if is_place else {"0": variables.missing(source_of(node)[:60], line)}
        elif appends:
            variables.append(source_of(name), found)
        else:
            variables.assign(source_of(name), found, source=source_of(value) if value is not None else "")

    def _visit_declaration_command(self, node: Node) -> None:
        """``export``, ``declare`` and their kin: within a function some of them set variables of its own."""
        kind, line = source_of(node.children[0]), self._line(node)
        flags = "".join(text[1:] for one in node.named_children if (text := source_of(one)).startswith("-"))
        if set("inul") & {*flags} and kind != "export":
            raise SpecError(f"{WHERE}, line {line}", f"{kind} -{flags} is not read here.")
        is_own = kind in ("local", "declare", "typeset") and "g" not in flags and bool(self.frames)
        variables = self.script.variables
        for child in node.named_children:
            is_assignment = child.type == "variable_assignment"
            target = child.child_by_field_name("name") if is_assignment else child
            text = source_of(target) if is_assignment and target is not None else self.words.value(child)
            name, equals, value = text.partition("=")
            name = name.partition("[")[0]
            if unknown_names(name):
                self.script.notes.append(f"Line {line}: {shown(source_of(node)[:80])} sets what is not known.")
            if not name.isidentifier():
                continue
            if is_own:
                self.frames[-1].setdefault(name, variables.values.get(name))
            variables.tables |= {name} if "A" in flags else set()
            if is_assignment:
                self._visit_variable_assignment(child)
            elif equals or is_own:
                variables.assign(name, value, source="") if equals else variables.values.update({name: ""})

    def _visit_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.script.variables.values.pop(source_of(child), None)

    # --- branches and loops --------------------------------------------------------------------------------

    def _visit_if_statement(self, node: Node) -> Verdict | None:
        """The branches in turn; of a branch that ends the script and need not be taken, the others."""
        for position, (condition, body) in enumerate(branches := list(branches_of(node))):
            verdict = self._settle(self._all(condition), condition) if condition else Verdict(True, True)
            if not verdict.holds and (verdict.is_certain or position < len(branches) - 1):
                continue
            if not verdict.holds:
                return verdict
            if verdict.is_certain:
                return self._all(body)
            if self._survives(body) is not None:
                return Verdict(True, False)
        return None

    def _settle(self, verdict: Verdict, condition: Sequence[Node]) -> Verdict:
        """Return the outcome of a condition, as the command says it where the machine decides it (``line_N=false``)."""
        variables, line = self.script.variables, self._line(condition[0])
        lines = range(line_of(condition[0]), condition[-1].end_point[0] + 2)
        if verdict.is_certain or not variables.states & {line, *lines}:
            return verdict
        said = self._recall_outcome(condition[0], f"--set line_{line}=true, or --set line_{line}=false").lower()
        if said in ("true", "false"):
            return Verdict(said == "true", True)
        return Verdict(verdict.holds != (line in variables.opposite), False)

    def _recall_outcome(self, node: Node, hint: str) -> str:
        """Return the outcome that the command gives for what the machine decides, which is remembered; empty: none."""
        variables, line = self.script.variables, self._line(node)
        variables.decisions.setdefault(line, (" ".join(source_of(node).split())[:80], hint))
        variables.seen.add(f"line_{line}")
        return variables.given.get(f"line_{line}", "")

    def _survives(self, body: Sequence[Node]) -> Verdict | None:
        """Run statements; None: they would end the script, and their effects are undone."""
        variables, commands = deepcopy(self.script.variables.values), len(self.script.commands)
        try:
            return self._all(body)
        except _Stop as stop:
            if stop.what != "exit" or len(self.script.commands) > commands:
                raise
            self.script.variables.values = variables
            return None

    def _visit_list(self, node: Node) -> Verdict:
        left, sign, right = node.children[0], source_of(node.children[1]), node.children[-1]
        first = self._settle(self._do(left), [left])
        if first.holds != (sign == "&&"):
            return first
        if first.is_certain:
            return self._do(right)
        second = self._survives([right])
        if second is None:
            return Verdict(sign == "||", False)
        return first.and_also(second) if sign == "&&" else first.or_else(second)

    def _visit_case_statement(self, node: Node) -> Verdict | None:
        value = node.child_by_field_name("value")
        text = self.words.value(value) if value is not None else ""
        names = unknown_names(text)
        items = [child for child in node.named_children if child.type == "case_item"]
        for one in (one for item in items for one in item.children):
            if one.type in (";&", ";;&") or (one.type == "extglob_pattern" and re.search(r"[?*+@!]\(", source_of(one))):
                raise SpecError(f"{WHERE}, line {self._line(one)}", f"{source_of(one)} of a case is not read here.")
        compared = [self.words.value(one) for item in items for one in item.children_by_field_name("value")]
        self.script.variables.ask(names, self._line(node), compares=compared)
        by_machine = value is not None and not all(map(str.isidentifier, names)) and not any(map(str.isdecimal, names))
        line = self._line(node)
        if by_machine and value is not None and (said := self._recall_outcome(value, f"--set line_{line}=TEXT")):
            text, names = said, []
        opposite = by_machine and line in self.script.variables.opposite
        for item in items:
            patterns = item.children_by_field_name("value")
            if opposite != any(fnmatchcase(strip_unknown(text), self.words.value(pattern)) for pattern in patterns):
                body = [child for child in item.named_children if child not in patterns]
                if not names:
                    return self._all(body)
                self._survives(body)
                return Verdict(True, False)
        return None

    def _visit_for_statement(self, node: Node) -> None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        values = [field for value in node.children_by_field_name("value") for field in self.words.fields(value)]
        before = dict(self.script.variables.values)
        for value in values:
            if name is not None and body is not None:
                self.script.variables.values[source_of(name)] = value
                if not self._loops(body):
                    break
        if not all(map(strip_unknown, values)) and any(map(unknown_names, values)):
            self._forget(before, node)

    def _visit_while_statement(self, node: Node) -> None:
        """As long as the condition certainly holds; where that is not known, once."""
        conditions = [one for one in node.children_by_field_name("condition") if one.is_named]
        until = bool(node.children) and node.children[0].type == "until"
        self._repeat(node, lambda: self._all(conditions).negate() if until else self._all(conditions), lambda: None)

    def _visit_c_style_for_statement(self, node: Node) -> None:
        """``for ((start; condition; step))``."""
        parts: list[list[Node]] = [[]]
        for child in node.children[2 : [child.type for child in node.children].index("))")]:
            parts[-1:] = [parts[-1], []] if child.type == ";" else [[*parts[-1], child]]
        start, ends, step = (*parts, [], [])[:3]

        def condition() -> Verdict:
            return decide_number(self.words.arithmetic(*ends) if ends else "1", line_of(node), self.words)

        if start:
            self.words.arithmetic(*start)
        self._repeat(node, condition, lambda: step and self.words.arithmetic(*step))

    def _repeat(self, node: Node, condition: Callable[[], Verdict], step: Callable[[], object]) -> None:
        """A loop; what commands print, other than a variable that nobody sets, is not empty in its condition."""
        body, before = node.child_by_field_name("body"), dict(self.script.variables.values)
        while body is not None:
            verdict, asked = condition(), self.script.variables.asked.items()
            prints = any(line_of(node) in lines and not re.fullmatch(r"\w+", name) for name, lines in asked)
            if not (verdict.holds or (prints and not verdict.is_certain)) or not self._loops(body):
                break
            if not verdict.is_certain:
                self._forget(before, node)
                break
            step()

    def _forget(self, before: Mapping[str, Value], node: Node) -> None:
        """A loop whose count is not known: what it changes is not known after it."""
        variables = self.script.variables
        for name in [one for one, value in variables.values.items() if before.get(one) != value]:
            variables.assign(name, variables.missing(name, self._line(node)), source="")
            variables.own.discard(name)

    def _loops(self, body: Node) -> bool:
        try:
            self._do(body)
        except _Stop as stop:
            stop.levels -= 1
            if stop.what not in ("break", "continue") or stop.levels:
                raise
            return stop.what == "continue"
        return True

    def _run_apart(self, run: Callable[[], Verdict], arguments: Sequence[str] | None = None) -> Verdict:
        """Run in a shell of its own, with arguments of its own if any; what it sets and its end stay with it."""
        variables = self.script.variables
        before, own, functions = deepcopy(variables.values), list(variables.arguments), dict(self.functions)
        variables.arguments = list(own if arguments is None else arguments)
        try:
            return run()
        except _Stop as stop:
            return Verdict(not stop.failed, False)
        finally:
            variables.values, variables.arguments, self.functions = before, own, functions

    # --- commands ------------------------------------------------------------------------------------------

    def _visit_function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[source_of(name)] = body

    def _visit_command(self, node: Node) -> Verdict:
        own = [child for child in node.named_children if child.type == "variable_assignment"]
        parts = [one for one in node.named_children if one.type not in ("variable_assignment", *REDIRECTS, "comment")]
        names = [source_of(left) for one in own if (left := one.child_by_field_name("name")) is not None]
        saved = {name: value for name, value in self.script.variables.values.items() if name in names}
        parts += self._words_past_redirects(node)
        words = tuple(field for part in parts for field in self.words.fields(part))
        self._all(own)  # after the words, which do not see it
        try:
            verdict = self._execute(words, self._line(node))
            for child in node.named_children:
                if child.type == "herestring_redirect":
                    self._feed(words, "".join(self.words.value(one) for one in child.named_children), child)
            return verdict
        finally:
            for name in names if words else ():  # other scripts that ran have left another mapping
                self.script.variables.values.pop(name, None)
            self.script.variables.values |= saved if words else {}

    def _words_past_redirects(self, node: Node) -> Iterator[Node]:
        """Yield words after a redirection, which belong to the command; its node ends before them."""
        outer = node.parent
        holders = [node, outer] if outer is not None and outer.type == "redirected_statement" else [node]
        for redirect in (one for holder in holders for one in holder.named_children if one.type == "file_redirect"):
            first, *others = targets(redirect)
            if b"\n" in (redirect.text or b"")[: first.start_byte - redirect.start_byte].replace(b"\\\n", b""):
                raise SpecError(f"{WHERE}, line {self._line(redirect)}", "redirects to nothing, which is no Bash.")
            yield from others

    def _execute(self, words: Sequence[str], line: int) -> Verdict:
        if not words:
            return Verdict(True, True)
        name, *arguments = words
        if name in ("exit", "return", "break", "continue"):
            failed = bool(arguments) and arguments[0] != "0"
            levels = int(arguments[0]) if arguments and re.fullmatch(r"[1-9]\d?", arguments[0]) else 1
            raise _Stop(name, line, failed=failed, levels=levels)
        if name in self.functions:
            return self._call(name, arguments)
        if name == "shift":
            del self.script.variables.arguments[: int(arguments[0]) if arguments and arguments[0].isdecimal() else 1]
        if name == "let":
            return [decide_number(self.words.number(text, line), line, self.words) for text in arguments or ["0"]][-1]
        if name == "set" and arguments[:1] == ["--"]:
            self.script.variables.arguments = list(arguments[1:])
        if name in ("eval", "source", "."):
            text = " ".join(arguments) if name == "eval" else self.find(arguments[0]) if arguments else None
            if text is None:
                what = restore_variables(" ".join(words))[:200]
                self.script.notes.append(f"Line {line}: {what} is not found; variables that it sets are unknown.")
            else:
                self._text(text, first_line=line)
            return Verdict(True, False)
        for variable in read_names(words):
            text = self.script.variables.missing(variable, line)
            is_list = name in ("mapfile", "readarray") or "-a" in words
            self.script.variables.assign(variable, {"0": text} if is_list else text, source="")
        if name in ("echo", "printf"):
            self.said = restore_variables(" ".join(arguments))[:200]
        if name in ("true", ":", "false", "shift", "echo", "printf"):
            return Verdict(name != "false", True)
        self.script.variables.states.add(line)
        self.script.commands.append(Command(tuple(words), line, self.script.variables.texts()))
        if (inner := inner_script(words)) is not None:
            self._run_apart(partial(self._start, inner, words[: words.index(inner)], line))
        elif (place := script_place(words)) is not None and (text := self.find(words[place])) is not None:
            self._run_apart(partial(self._start, text, words[:place], line), words[place + 1 :])
        return Verdict(True, False)

    def _start(self, text: str, words: Sequence[str], line: int) -> Verdict:
        """Run a script with variables that the command hands over: ``env A=1``, ``-x A=1``, ``--export=ALL,A=1``."""
        for name, value in HANDED.findall("\n".join(words)):
            self.script.variables.assign(name, value, source="")
        return self._text(text, first_line=line)

    def _visit_compound_statement(self, node: Node) -> Verdict:
        """``[[ ... ]]``, ``{ ...; }`` and ``((...))``."""
        is_test = node.type == "test_command" or source_of(node).startswith("((")
        return decide(node, self.words) if is_test else self._each(node)

    _visit_test_command = _visit_compound_statement

    def _call(self, name: str, arguments: Sequence[str]) -> Verdict:
        """Call a function; meanwhile ``$1`` and the others are its arguments."""
        variables = self.script.variables
        before, variables.arguments = variables.arguments, list(arguments)
        self.frames.append({})
        variables.calls += 1
        try:
            return self._do(self.functions[name])
        except _Stop as stop:
            if stop.what != "return":
                raise
            return Verdict(not stop.failed, True)
        finally:
            variables.calls -= 1
            variables.arguments = before
            for one, old in self.frames.pop().items():
                variables.values.pop(one, None)
                variables.values |= {} if old is None else {one: old}

    def _visit_redirected_statement(self, node: Node) -> Verdict:
        body = node.child_by_field_name("body")
        verdict = self._do(body) if body is not None else Verdict(True, True)
        is_command = body is not None and body.type == "command"
        words = [source_of(part) for part in body.named_children] if is_command and body is not None else []
        if body is not None and any(part.type == "variable_assignment" for part in body.named_children):
            words = [] if set(READERS) & {*words} else words[1:]  # IFS of one command is gone by then
        for redirect in node.children_by_field_name("redirect"):
            if redirect.type == "heredoc_redirect":
                text = self.words.document(redirect)
                around = (*node.named_children, *redirect.named_children)
                outputs = [self.words.value(targets(one)[0]) for one in around if one.type == "file_redirect"]
                self.script.files |= dict.fromkeys(outputs, text)
                self._feed(words, text, redirect)
                self._all([one for one in redirect.named_children if one.type in ("pipeline", "list", "command")])
        return verdict

    def _feed(self, words: Sequence[str], text: str, node: Node) -> None:
        """Run the input of a shell, a batch system or a file of commands, or set the one variable that takes it all."""
        names, flags = read_names(words), "".join(word for word in words[1:] if word.startswith("-"))
        if len(names) == 1 and words[0] == "read" and "a" not in flags:
            is_whole = "d" in flags and {*words} & {"''", '""', ""}
            blanks = "".join(filter(str.isspace, str(self.script.variables.get("IFS")))) + "\n"
            self.script.variables.assign(names[0], (text if is_whole else text.split("\n")[0]).strip(blanks), source="")
        if words and words[0] in (*SHELLS, "sbatch", "cat", "tee", "srun", "qsub", "bsub", "ssh"):
            self.feeds += 1
            try:
                self._run_apart(partial(self._text, text, first_line=self._line(node)))
            except SpecError:
                if words[0] not in ("cat", "tee"):  # input of cat and tee is often a configuration, no script
                    raise
            finally:
                self.feeds -= 1
