"""
Interpretation of a shell script from its first line to its last: the commands it would run, with their arguments.

Nothing is executed: commands are recorded, and their output and exit status are unknown. The parser is tree-sitter's,
with its grammar of Bash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NoReturn

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.shell.arithmetic import value_of
from planner.frameworks.shell.conditions import Verdict, decide
from planner.frameworks.shell.parsing import find_assignments, parse
from planner.frameworks.shell.text import known_part, unknown_names, written
from planner.frameworks.shell.variables import Value, Variables
from planner.frameworks.shell.words import Words, line_of, source_of

if TYPE_CHECKING:
    from tree_sitter import Node

WHERE = "script"

MOST_STATEMENTS = 20_000
MOST_DEPTH = 20
MOST_LETTERS = 1_000_000

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")


@dataclass(frozen=True, slots=True)
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

    def __init__(self, what: str, line: int, *, failed: bool = False) -> None:
        self.what, self.line, self.failed = what, line, failed


def follow(
    text: str, given: Mapping[str, str] | None = None, find: Callable[[str], str | None] = lambda _: None
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

    Raises
    ------
    SpecError
        If it exits with an error before its end, or does not end.

    >>> [command.words for command in follow("A=(--x ${Y:-1})\npython train.py ${A[@]} --z $Z", {"Z": "2"}).commands]
    [('python', 'train.py', '--x', '1', '--z', '2')]
    """
    if len(text) > MOST_LETTERS:
        raise SpecError(WHERE, f"has {len(text):,} letters, expected {MOST_LETTERS:,} at most.")
    script = Script(Variables(given or {}))
    try:
        _Follower(script, find).run(text)
    except RecursionError:
        raise SpecError(WHERE, "has words or expressions inside each other, deeper than any script has.") from None
    return script


class _Follower:
    """Interpreter of statements; ``depth`` counts nested scripts and functions."""

    def __init__(self, script: Script, find: Callable[[str], str | None]) -> None:
        self.script = script
        self.find = find
        self.words = Words(script.variables)
        self.functions: dict[str, Node] = {}
        self.statements = 0
        self.depth = 0
        self.first_line = 0
        self.said = ""
        self.feeds = 0
        self.by_type: dict[str, Callable[[Node], Verdict]] = {
            "variable_assignment": self._assignment,
            "variable_assignments": self._each,
            "declaration_command": self._declaration,
            "unset_command": self._unset,
            "command": self._command,
            "redirected_statement": self._run_redirects,
            "pipeline": self._each,
            "list": self._list,
            "negated_command": lambda node: self._each(node).negate(),
            "test_command": lambda node: decide(node, self.words),
            "if_statement": self._if,
            "case_statement": self._case,
            "for_statement": self._loop_for,
            "c_style_for_statement": self._once,
            "while_statement": self._while,
            "function_definition": self._define,
            "subshell": self._subshell,
            "compound_statement": self._compound,
            "do_group": self._each,
        }

    def run(self, text: str) -> None:
        """Run a whole script."""
        try:
            self._text(text, first_line=0)
        except _Stop as stop:
            if stop.failed:
                self._refuse(stop)

    def _refuse(self, stop: _Stop) -> NoReturn:
        said = f" after it says {shown(self.said)}" if self.said else ""
        raise SpecError(f"{WHERE}, line {stop.line}", f"ends with an error{said}.")

    def _text(self, text: str, *, first_line: int) -> None:
        """Run the text of a script, of ``bash -c`` or of a here-document."""
        if self.depth >= MOST_DEPTH:
            raise SpecError(WHERE, f"has scripts and functions inside each other, more than {MOST_DEPTH} deep.")
        root = parse(text)
        self.script.variables.own |= find_assignments(root)
        before, self.first_line = self.first_line, first_line
        self.depth += 1
        try:
            self._each(root)
        finally:
            self.depth -= 1
            self.first_line = before

    def _line(self, node: Node) -> int:
        return self.first_line or line_of(node)

    def _do(self, node: Node) -> Verdict:
        self.statements += 1
        if self.statements > MOST_STATEMENTS:
            raise SpecError(WHERE, f"has loops of more than {MOST_STATEMENTS:,} statements together.")
        if node.type == "ERROR" and not self.feeds:
            raise SpecError(
                f"{WHERE}, line {self._line(node)}",
                f"is no Bash that is read here: {shown(written(source_of(node))[:80])}.",
            )
        action = self.by_type.get(node.type)
        if action is None:
            return Verdict(True, True)
        return action(node)

    def _note(self, sentence: str) -> None:
        if sentence not in self.script.notes:
            self.script.notes.append(sentence)

    def _each(self, node: Node) -> Verdict:
        return self._all(node.named_children)

    def _all(self, nodes: Sequence[Node]) -> Verdict:
        last = Verdict(True, True)
        for node in nodes:
            if node.type != "comment":
                last = self._do(node)
        return last

    # --- variables -----------------------------------------------------------------------------------------

    def _assignment(self, node: Node) -> Verdict:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None:
            return Verdict(True, True)
        found: Value = ""
        if value is not None:
            found = self.words.array(value) if value.type == "array" else self.words.value(value)
        appends = any(child.type == "+=" for child in node.children)
        variables = self.script.variables
        keyed = self.words.elements_by_key(value) if value is not None and value.type == "array" else {}
        if name.type == "subscript":
            self._element(name, found)
        elif keyed:
            variables.set_keys(source_of(name), keyed)
        elif appends:
            variables.append(source_of(name), found)
        else:
            variables.assign(source_of(name), found, source=source_of(value) if value is not None else "")
        return Verdict(True, True)

    def _element(self, node: Node, value: Value) -> None:
        name, index = node.child_by_field_name("name"), node.child_by_field_name("index")
        key = self.words.value(index) if index is not None else ""
        number = value_of(key) if key else None
        if name is not None and number is None and key and not unknown_names(key):
            variables = self.script.variables
            variables.set_keys(source_of(name), {key: value if isinstance(value, str) else " ".join(value)})
            return
        old = self.script.variables.get(source_of(name)) if name is not None else None
        elements = list(old) if isinstance(old, list) else []
        if name is None or number is None or not 0 <= number <= len(elements):
            self._note(f"Line {self._line(node)}: {written(source_of(node))} is not followed.")
            return
        elements[number : number + 1] = [value if isinstance(value, str) else " ".join(value)]
        self.script.variables.values[source_of(name)] = elements

    def _declaration(self, node: Node) -> Verdict:
        return self._all([child for child in node.named_children if child.type == "variable_assignment"])

    def _unset(self, node: Node) -> Verdict:
        for child in node.named_children:
            self.script.variables.values.pop(source_of(child), None)
        return Verdict(True, True)

    # --- branches and loops --------------------------------------------------------------------------------

    def _if(self, node: Node) -> Verdict:
        """
        Take the first branch that applies.

        A branch that ends the script is skipped where its condition is not certain.
        """
        for position, (condition, body) in enumerate(branches := list(_branches(node))):
            verdict = self._all(condition) if condition else Verdict(True, True)
            if not verdict.holds and (verdict.is_certain or position < len(branches) - 1):
                continue
            if not verdict.holds:
                return verdict
            if verdict.is_certain:
                return self._all(body)
            if self._survives(body) is not None:
                return Verdict(True, False)
        return Verdict(True, True)

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

    def _list(self, node: Node) -> Verdict:
        left, sign, right = node.children[0], source_of(node.children[1]), node.children[-1]
        first = self._do(left)
        if first.holds != (sign == "&&"):
            return first
        if first.is_certain:
            return self._do(right)
        second = self._survives([right])
        if second is None:
            return Verdict(sign == "||", False)
        return first.and_also(second) if sign == "&&" else first.or_else(second)

    def _case(self, node: Node) -> Verdict:
        value = node.child_by_field_name("value")
        text = self.words.value(value) if value is not None else ""
        names = unknown_names(text)
        items = [child for child in node.named_children if child.type == "case_item"]
        compared = [self.words.value(one) for item in items for one in item.children_by_field_name("value")]
        self.script.variables.ask(names, self._line(node), compares=compared)
        for item in items:
            patterns = item.children_by_field_name("value")
            if any(fnmatchcase(known_part(text), self.words.value(pattern)) for pattern in patterns):
                body = [child for child in item.named_children if child not in patterns]
                if not names:
                    return self._all(body)
                self._survives(body)
                return Verdict(True, False)
        return Verdict(True, True)

    def _loop_for(self, node: Node) -> Verdict:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        values = [field for value in node.children_by_field_name("value") for field in self.words.fields(value)]
        for value in values:
            if name is not None and body is not None:
                self.script.variables.values[source_of(name)] = value
                if not self._loops(body):
                    break
        return Verdict(True, True)

    def _while(self, node: Node) -> Verdict:
        """Repeat while the condition certainly holds; where that is not known, run the body once."""
        body = node.child_by_field_name("body")
        conditions = [one for one in node.children_by_field_name("condition") if one.is_named]
        until = bool(node.children) and node.children[0].type == "until"
        while body is not None:
            verdict = self._all(conditions)
            holds = verdict.holds != until
            if not holds or not self._loops(body) or not verdict.is_certain:
                break
        return Verdict(True, True)

    def _once(self, node: Node) -> Verdict:
        body = node.child_by_field_name("body")
        self._note(f"Line {self._line(node)}: a loop that counts is followed once.")
        if body is not None:
            self._loops(body)
        return Verdict(True, False)

    def _loops(self, body: Node) -> bool:
        try:
            self._do(body)
        except _Stop as stop:
            if stop.what not in ("break", "continue"):
                raise
            return stop.what == "continue"
        return True

    def _subshell(self, node: Node) -> Verdict:
        before = deepcopy(self.script.variables.values)
        try:
            return self._each(node)
        except _Stop as stop:
            if stop.what != "exit":
                raise
            return Verdict(not stop.failed, False)
        finally:
            self.script.variables.values = before

    # --- commands ------------------------------------------------------------------------------------------

    def _define(self, node: Node) -> Verdict:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[source_of(name)] = body
        return Verdict(True, True)

    def _command(self, node: Node) -> Verdict:
        own = [child for child in node.named_children if child.type == "variable_assignment"]
        parts = [one for one in node.named_children if one.type not in ("variable_assignment", *REDIRECTS, "comment")]
        if len(parts) == 1 and source_of(parts[0]).startswith("((") and not own:
            return self._arithmetic(parts[0])
        names = [source_of(left) for one in own if (left := one.child_by_field_name("name")) is not None]
        values = self.script.variables.values
        saved = {name: values[name] for name in names if name in values}
        self._all(own)
        parts += self._words_past_redirects(node)
        words = tuple(field for part in parts for field in self.words.fields(part))
        try:
            verdict = self._words(words, self._line(node))
            for child in node.named_children:
                if child.type == "herestring_redirect":
                    text = "".join(self.words.value(one) for one in child.named_children)
                    self._feed(words, text, child)
                    if words[:1] == ("read",) and len(read := _read_names(words)) == 1 and "-a" not in words:
                        self.script.variables.assign(read[0], text.strip(" \t\n").split("\n")[0], source="")
            return verdict
        finally:
            if words:
                for name in names:
                    values.pop(name, None)
                values.update(saved)

    def _words_past_redirects(self, node: Node) -> Iterator[Node]:
        """Yield words behind a redirection, which belong to the command; its node ends before them."""
        outer = node.parent
        holders = [node, outer] if outer is not None and outer.type == "redirected_statement" else [node]
        for redirect in (one for holder in holders for one in holder.named_children if one.type == "file_redirect"):
            first, *others = _targets(redirect)
            if b"\n" in (redirect.text or b"")[: first.start_byte - redirect.start_byte].replace(b"\\\n", b""):
                raise SpecError(f"{WHERE}, line {self._line(redirect)}", "redirects to nothing, which is no Bash.")
            yield from others

    def _words(self, words: Sequence[str], line: int) -> Verdict:
        if not words:
            return Verdict(True, True)
        name, *arguments = words
        if name in ("exit", "return", "break", "continue"):
            failed = bool(arguments) and arguments[0] != "0"
            raise _Stop(name, line, failed=failed)
        if name in self.functions:
            return self._call(name, arguments)
        if name in ("true", ":", "false"):
            return Verdict(name != "false", True)
        if name == "shift":
            count = int(arguments[0]) if arguments and arguments[0].isdecimal() else 1
            del self.script.variables.arguments[:count]
            return Verdict(True, True)
        if name == "set" and arguments[:1] == ["--"]:
            self.script.variables.arguments = list(arguments[1:])
        if name in ("source", "."):
            return self._source(words, line)
        if name == "printf" and arguments[:1] == ["-v"] and len(arguments) > 1:
            self.script.variables.assign(arguments[1], self.script.variables.missing(arguments[1], line), source="")
            return Verdict(True, True)
        if name in ("echo", "printf"):
            self.said = written(" ".join(arguments))[:200]
            return Verdict(True, True)
        for variable in _read_names(words):
            text = self.script.variables.missing(variable, line)
            self.script.variables.assign(
                variable, text if words[0] == "read" and "-a" not in words else [text], source=""
            )
        if name == "eval":
            self._text(" ".join(arguments), first_line=line)
            return Verdict(True, False)
        self.script.commands.append(Command(tuple(words), line, self.script.variables.texts()))
        if (inner := _inner_script(words)) is not None:
            self._inner(inner, line)
        elif (place := _script_place(words)) is not None:
            self._run_file(words[place], words[place + 1 :], line)
        return Verdict(True, False)

    def _source(self, words: Sequence[str], line: int) -> Verdict:
        """Run ``source``: another script with this one's variables, if it is found."""
        text = self.find(words[1]) if len(words) > 1 else None
        if text is None:
            self._note(
                f"Line {line}: {written(' '.join(words))[:200]} is not found; variables that it sets are unknown."
            )
        else:
            self._text(text, first_line=line)
        return Verdict(True, False)

    def _run_file(self, name: str, arguments: Sequence[str], line: int) -> None:
        """Run another script with its own arguments; variables that it sets are dropped at its end."""
        text = self.find(name)
        if text is None:
            return
        values, before = deepcopy(self.script.variables.values), self.script.variables.arguments
        self.script.variables.arguments = list(arguments)
        try:
            self._inner(text, line)
        finally:
            self.script.variables.values, self.script.variables.arguments = values, before

    def _compound(self, node: Node) -> Verdict:
        """Run ``{ ...; }`` or ``((...))``, which is a command before tree-sitter-bash 0.25.1."""
        return self._arithmetic(node) if source_of(node).startswith("((") else self._each(node)

    def _arithmetic(self, node: Node) -> Verdict:
        """Set the variable of ``((i += 2))``, or evaluate ``((n > 1))``."""
        found = re.fullmatch(r"\(\(\s*(\w+)\s*(\+\+|--|[-+*/]?=(?!=)(.*))\s*\)\)", source_of(node), re.DOTALL)
        if found is None:
            return decide(node, self.words)
        name, sign = found[1], found[2]
        old = self.script.variables.get(name)
        change = "1" if sign in ("++", "--") else self.words._plain(found[3])
        value = value_of(change if sign[0] == "=" else f"({old}) {sign[0]} ({change})")
        text = self.script.variables.missing(name, self._line(node)) if value is None else str(value)
        self.script.variables.assign(name, text, source=f"${name}")
        return Verdict(True, True)

    def _call(self, name: str, arguments: Sequence[str]) -> Verdict:
        """Call a function; meanwhile ``$1`` and the others are its arguments."""
        if self.depth >= MOST_DEPTH:
            raise SpecError(WHERE, f"has scripts and functions inside each other, more than {MOST_DEPTH} deep.")
        before, self.script.variables.arguments = self.script.variables.arguments, list(arguments)
        self.depth += 1
        try:
            return self._do(self.functions[name])
        except _Stop as stop:
            if stop.what != "return":
                raise
            return Verdict(not stop.failed, True)
        finally:
            self.depth -= 1
            self.script.variables.arguments = before

    def _inner(self, text: str, line: int) -> None:
        """Run a script that stands in a word; its ``exit`` does not end this one."""
        try:
            self._text(text, first_line=line)
        except _Stop as stop:
            if stop.what != "exit":
                raise

    def _run_redirects(self, node: Node) -> Verdict:
        body = node.child_by_field_name("body")
        verdict = self._do(body) if body is not None else Verdict(True, True)
        name = body.child_by_field_name("name") if body is not None else None
        words = [source_of(name)] if name is not None else []
        for redirect in node.children_by_field_name("redirect"):
            if redirect.type == "heredoc_redirect":
                text = self.words.document(redirect)
                self.script.files |= dict.fromkeys(self._output_files(node, redirect), text)
                if words[:1] == ["read"] and body is not None:
                    self.script.variables.assign(source_of(body.named_children[-1]), text, source="")
                self._feed(words, text, redirect)
                self._all([one for one in redirect.named_children if one.type in ("pipeline", "list", "command")])
        return verdict

    def _output_files(self, *nodes: Node) -> list[str]:
        redirects = [one for node in nodes for one in node.named_children if one.type == "file_redirect"]
        return [self.words.value(_targets(one)[0]) for one in redirects]

    def _feed(self, words: Sequence[str], text: str, node: Node) -> None:
        """Run the input of a shell, a batch system or a file of commands; input of other programs is data."""
        if words and words[0] in (*SHELLS, "sbatch", "cat", "tee", "srun", "qsub", "bsub", "ssh"):
            self.feeds += 1
            try:
                self._inner(text, self._line(node))
            except SpecError:
                if words[0] not in ("cat", "tee"):  # input of cat and tee is often a configuration, no script
                    raise
            finally:
                self.feeds -= 1


def _targets(redirect: Node) -> list[Node]:
    """Return a redirection's file and the words behind it; for ``2>&-`` the redirection itself."""
    return [one for one in redirect.named_children if one.type != "file_descriptor"] or [redirect]


REDIRECTS = ("file_redirect", "herestring_redirect", "heredoc_redirect")


def _branches(node: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """Yield the conditions and the body of each branch; ``else`` has no conditions."""
    clauses = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
    for part in (node, *clauses):
        named = [child for child in part.named_children if child not in clauses]
        if part.type == "else_clause":
            yield [], named
            continue
        then = next((child.start_byte for child in part.children if child.type == "then"), part.end_byte)
        yield [one for one in named if one.start_byte < then], [one for one in named if one.start_byte > then]


READERS = {"read": "dinNptu", "mapfile": "dnOsuCc", "readarray": "dnOsuCc"}
"""Commands that read input into variables, with the letters of their options that take a value."""


def _read_names(words: Sequence[str]) -> list[str]:
    """Return the variables that a command sets from its input, which is unknown."""
    if not words or words[0] not in READERS:
        return []
    names: list[str] = []
    takes = False
    for word in words[1:]:
        if takes:
            takes = False
        elif word.startswith("-"):
            takes = len(word) > 1 and word[-1] in READERS[words[0]]
        elif re.fullmatch(r"[A-Za-z_]\w*", word):
            names.append(word)
    return names or ["REPLY" if words[0] == "read" else "MAPFILE"]


def _script_place(words: Sequence[str]) -> int | None:
    """Return the position of a script's name in a command: the first word, or one behind a shell or batch system."""
    runs = {place for place, word in enumerate(words) if word.rsplit("/", 1)[-1] in (*SHELLS, "sbatch", "srun")}
    for place, word in enumerate(words):
        if word.endswith(".sh") and (place == 0 or any(run < place for run in runs)):
            return place
    return None


def _inner_script(words: Sequence[str]) -> str | None:
    """Return the argument of ``bash -c``, wherever it stands in a command."""
    for position, word in enumerate(words):
        if word.rsplit("/", 1)[-1] in SHELLS:
            for place in range(position + 1, len(words) - 1):
                if re.fullmatch(r"-[a-z]*c", words[place]):
                    return words[place + 1]
                if not words[place].startswith("-"):
                    break
    return None
