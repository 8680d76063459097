"""
The command line: parse, call one verb, print. Results go to stdout, progress and complaints to stderr.

A command's file is imported when its name is on the command line, and heavier modules when it runs, so that
``planner --help`` answers at once.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, NoReturn, cast

from costmodel.errors import PlanningError, SpecError, SpecErrors, did_you_mean, mistakes_of
from planner.cli.arguments import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_WRONG_INPUT, Help, write_exit_codes
from planner.cli.output import (
    MESSAGE_OPTIONS,
    add_message_options,
    complain,
    open_streams,
    show_messages,
    silence_stdout,
    stdout_errors,
    write,
)

COMMANDS = {
    "plan": ("planner.cli.plan", "choose the fastest strategies for a job"),
    "advise": ("planner.cli.advise", "which devices, how many, until when and for how much"),
    "init": ("planner.cli.init", "a job file with comments from a model, a cluster and three numbers"),
    "estimate": ("planner.cli.plan", "time and memory of one given strategy"),
    "explain": ("planner.cli.explain", "why this plan, why not another strategy, what it gains over a given one"),
    "study": ("planner.cli.study", "what each feature, schedule, failure rate, size or network of a job is worth"),
    "import": ("planner.cli.frameworks", "a job file from the script, arguments or configuration that somebody runs"),
    "export": ("planner.cli.frameworks", "a plan of a JSON report as the flags and files that start it"),
    "catalog": (
        "planner.cli.catalog",
        "known devices, models, frameworks and recipes with their sources, support of them, JSON Schemas",
    ),
    "calibrate": ("planner.cli.calibrate", "a device file from runs, samples of operators, traces or small runs"),
    "sample": ("planner.cli.sample", "measure operators and collectives on this machine"),
    "trace": (
        "planner.cli.traces",
        "profiler traces: read, replayed, changed, compared with the planner's figures",
    ),
    "batch": ("planner.cli.batch", "plan many jobs, one result line each, and rank them"),
    "serve": ("planner.cli.serve", "a local web page of plans, or tools for agents by the Model Context Protocol"),
}
"""The file of each command, with its ``add_<command>_options`` and ``run_<command>``, and its help."""

OTHER_WORDS = {
    "compare": "explain",
    "fit": "calibrate",
    "top": "batch",
    "model": "catalog models NAME",
    "support": "catalog support",
    "schema": "catalog schemas",
    "mcp": "serve --mcp",
    "completion": "--completion bash",
    "--price": "costs.price_per_device_hour=N",
    "--target": "search.target=NAME",
    "--top": "top=N",
    "--fastest": "search.fastest=true",
}
"""Words that people try for a command or an option, each with what is to be written."""

SHELLS = ("bash", "zsh")


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command and return its exit code.

    Parameters
    ----------
    argv
        Arguments without the program's name; those of the process by default.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    with show_messages(words):
        try:
            code = _run(words)
            with stdout_errors():
                sys.stdout.flush()
            return code
        except PlanningError as error:
            complain(_lines(error), mistakes=_mistakes(error))
            return EXIT_WRONG_INPUT
        except KeyboardInterrupt:
            complain("interrupted.")
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            silence_stdout()
            return EXIT_BROKEN_PIPE


def _run(words: Sequence[str]) -> int:
    """Run one command; help ends it, too."""
    try:
        arguments = _parse(words)
        return int(arguments.run(arguments))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_WRONG_INPUT


class UsageError(SpecError):
    """Arguments that no command takes, with those that it takes."""

    def __init__(self, message: str, hint: str, usage: str) -> None:
        option, colon, problem = message.partition(": ")
        is_of_option = bool(colon) and option.startswith("argument ")
        super().__init__(*((option, problem) if is_of_option else ("arguments", message)), hint)
        self._text = f"{message}{f'. {hint}' if hint else ''}\n{usage}"

    def __str__(self) -> str:
        """Return the mistake, and the usage of the command."""
        return self._text


def _lines(error: PlanningError) -> str:
    """Write an error for people, several mistakes on a line each."""
    if not isinstance(error, SpecErrors):
        return str(error)
    return "\n".join([error.title, *(f"  {mistake}" for mistake in error.errors)])


def _mistakes(error: PlanningError) -> list[dict[str, str]]:
    """Return the mistakes of an error for programs."""
    found = mistakes_of(error) if isinstance(error, SpecError) else ()
    return [{name: getattr(one, name) for name in ("where", "problem", "hint", "place")} for one in found]


# --- parsing -----------------------------------------------------------------------------------------------


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse options and ``key=value`` in any order, which argparse alone does not allow."""
    parser = _parser(argv)
    of_messages = [word for word in argv if word in MESSAGE_OPTIONS]
    others = [word for word in argv if word not in MESSAGE_OPTIONS]
    arguments, rest = parser.parse_known_args([*of_messages, *others])
    if not hasattr(arguments, "run"):
        parser.print_help()
        raise SystemExit(0)
    takes_words = getattr(arguments, "takes_words", False)
    unknown = [word for word in rest if word.startswith("-") or ("=" not in word and not takes_words)]
    if unknown or (rest and not hasattr(arguments, "assignments")):
        word = next((one for one in unknown if one.startswith("-")), (unknown or rest)[0]).partition("=")[0]
        called = list(_parsers(parser, argv))
        known = [option for one in called for action in one._actions for option in action.option_strings]
        hint = f"Write {word} after the command." if word in known else suggestion(word, known)
        if word in OTHER_WORDS:
            hint = f"Write {OTHER_WORDS[word]}."
        if hasattr(arguments, "takes_line") and (decision := _decision_word(word, argv)):
            hint = f"Write {decision}."
        text = f"unrecognized arguments: {' '.join(unknown or rest)}"
        raise UsageError(text, hint, called[-1].format_usage().rstrip())
    arguments.words = list(argv)
    if rest:
        arguments.assignments = [*arguments.assignments, *rest]
    return arguments


def _decision_word(option: str, argv: Sequence[str]) -> str:
    """Return the word of a line for an option of Megatron-LM that sets a degree; "" if it is no such option."""
    from planner.frameworks.megatron.strategy import DEGREES

    name = next((one for one, own in DEGREES.items() if own == option), "")
    _, _, behind = " ".join(argv).replace("=", " ").partition(f"{option} ")
    value = re.match(r"\d+", behind)
    return name and f"{name.upper()}{value[0] if value else 'N'}"


def _parsers(parser: argparse.ArgumentParser, argv: Sequence[str]) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser, and those of the commands that are named."""
    yield parser
    for action in parser._actions:  # argparse has no other list of them
        for name, command in (action.choices or {}).items() if isinstance(action.choices, dict) else ():
            if name in argv:
                yield from _parsers(command, argv)


def _parser(named: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Build the parser of all commands, with the options of those that are named."""
    parser = Parser(
        prog="planner",
        description="Chooses how to split an LLM pretraining job over a cluster, proves it optimal, "
        "and schedules its checkpoints.",
        epilog=write_exit_codes(),
    )
    parser.add_argument("--version", action=_Print, nargs=0, const=_version_text, help="print the version and exit")
    parser.add_argument(
        "--completion",
        action=_Print,
        const=_completion_text,
        choices=SHELLS,
        help="print a script by which the shell completes commands, options, models and devices, and exit: "
        "planner --completion bash > ~/.local/share/bash-completion/completions/planner (zsh: as _planner into $fpath)",
    )
    add_message_options(parser)
    words = set(named)

    def make(*, prog: str, **options: Any) -> Parser:
        """Make the parser of a command; one that is not named is never asked, and takes as long to make."""
        return Parser(prog=prog, **options) if prog.rpartition(" ")[2] in words else parser

    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=cast("type[Parser]", make))
    for name, (home, what) in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        if name in words:
            module = import_module(home)
            getattr(module, f"add_{name}_options")(command)
            command.set_defaults(run=getattr(module, f"run_{name}"))
    return parser


class Parser(argparse.ArgumentParser):
    """A parser whose help fits the terminal, and whose complaints are errors like others."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, **options})

    def print_help(self, file: object = None) -> None:
        """Write the help as results are written, since argparse hides errors of writing."""
        write(self.format_help(), None)

    def error(self, message: str) -> NoReturn:
        """Refuse arguments."""
        choices = re.match(r".*invalid choice: '(.*)' \(choose from (.*)\)$", message, flags=re.DOTALL)
        word = choices[1] if choices else ""
        if word in OTHER_WORDS and self.prog == "planner":
            raise SpecError(f"planner {word}", "is no command.", f"Write: planner {OTHER_WORDS[word]}.")
        hint = suggestion(word, re.findall(r"'([^']+)'", choices[2])) if choices else ""
        raise UsageError(message, hint, self.format_usage().rstrip())


def suggestion(word: str, known: Iterable[str]) -> str:
    """
    Suggest the option or command that a word is probably meant to be; empty: none is similar.

    >>> suggestion("--fromat", ["--format", "--force"]), suggestion("x", ["plan"])
    ("Did you mean '--format'?", '')
    """
    hint = did_you_mean(word, known)
    return hint if hint.startswith("Did") else ""


class _Print(argparse.Action):
    """An option that prints a text, which its constant makes of its value only when it is given."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, value: Any, *__: object) -> None:
        """Print and stop."""
        write(self.const(value), None)
        parser.exit()


def _version_text(_: object) -> str:
    from costmodel.version import SOURCES, version

    known = version()
    return "planner, not installed: running from its sources" if known == SOURCES else f"planner {known}"


def _completion_text(shell: str) -> str:
    from planner.cli.completion import completion_script

    return completion_script(_parser(), shell)
