"""The page of the commands, made of the parsers of ``planner.cli``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from planner import cli
from planner.cli.arguments import EXIT_CODES

WIDTH = 100
"""Columns of a usage."""

QUOTED = re.compile(r"(?<!\w)'([^'\s][^']*)'(?!\w)")
SPECIAL = re.compile(r"([*_<>|\[\]])")
COMMAND = re.compile(r"\b(\w+):")
EXIT_CODE = re.compile(r"^  (\d+)  (.*)$", flags=re.MULTILINE)


def commands() -> Iterator[str]:
    """A section for each command and sub-command: usage, what it does, options, exit codes."""
    whole = cli._parser()
    options = [action for action in whole._actions if action.option_strings and _is_shown(action)]
    yield from ("", "## Options of every command", "", *(f"- {_option(action)}" for action in options))
    for name, parser in _subcommands(whole):
        yield from _section(name, parser, 2)


def exit_codes() -> Iterator[str]:
    """A row for each exit code."""
    yield from ("| exit code | meaning |", "|---|---|")
    yield from (f"| {code} | {COMMAND.sub(_quoted, meaning)} |" for code, meaning in EXIT_CODES.items())


def _quoted(found: re.Match[str]) -> str:
    return f"`{found[1]}`:" if found[1] in cli.COMMANDS else found[0]


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _section(name: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    what = cli.COMMANDS[name][1] if name in cli.COMMANDS else ""
    yield from ("", f"{'#' * level} {parser.prog}", "")
    yield _text(parser.description or f"{what[:1].upper()}{what[1:]}.")
    yield from ("", "```text", *_usage(parser), "```", "")
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if _is_shown(action)]
        if shown and group.description:
            yield from ("", f"{_text((group.title or '').capitalize())}. {_text(group.description)}", "")
        yield from (f"- {_option(action)}" for action in shown)
    codes = EXIT_CODE.findall(parser.epilog or "")
    if codes:
        yield from ("", "Exit codes:", "", *(f"- `{code}`: {_text(meaning)}" for code, meaning in codes))
    for inner, of_it in _subcommands(parser):
        yield from _section(inner, of_it, level + 1)


def _is_shown(action: argparse.Action) -> bool:
    hidden = isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    return not hidden and action.help is not argparse.SUPPRESS


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=WIDTH)
    text = parser.format_usage().strip().removeprefix("usage: ")
    return [line.removeprefix("       ") if line.startswith("       ") else line for line in text.splitlines()]


def _option(action: argparse.Action) -> str:
    """The words of an option with what it takes, then its help."""
    metavar = action.metavar or action.dest
    if action.choices and not action.metavar:
        metavar = f"{{{','.join(map(str, action.choices))}}}"
    takes = "" if action.nargs == 0 else f" {metavar}"
    words = [f"`{string}{takes}`" for string in action.option_strings] or [f"`{metavar}`"]
    defaults = {"default": action.default, "prog": "planner", "choices": action.choices, "metavar": metavar}
    return f"{', '.join(words)}: {_text((action.help or '') % defaults)}"


def _text(words: str) -> str:
    """Text as Markdown: what is quoted as code, special characters as they are."""
    parts = QUOTED.split(" ".join(words.split()))
    return "".join(f"`{part}`" if number % 2 else SPECIAL.sub(r"\\\1", part) for number, part in enumerate(parts))
