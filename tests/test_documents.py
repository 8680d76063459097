"""The documents keep their word: what README and ``docs/`` show exists, what exists is shown, outputs are today's."""

from __future__ import annotations

import argparse
import re

import pytest

from costmodel.strategy import DECISIONS
from planner import cli
from planner.frameworks import TARGETS
from tests import readme_example
from tests.documents import README, ROOT, commands, page, read

MOST_LINES = 150
"""Of the README."""


def pasted(name: str) -> list[str]:
    """Lines of the README's code block below ``<!-- command: name -->``."""
    _, _, rest = read(README).partition(f"<!-- command: {name} -->\n")
    return rest.split("```")[1].splitlines()[1:]


def subcommands() -> dict[str, argparse.ArgumentParser]:
    """The parsers of ``planner plan`` and its siblings."""
    actions = cli._parser()._actions
    (choices,) = (action.choices for action in actions if isinstance(action, argparse._SubParsersAction))
    return dict(choices)


# --- commands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_commands_of_the_documents_exist(arguments):
    """Every command that a page shows parses, and its files are there."""
    parsed = cli._parse(arguments)

    assert callable(parsed.run)
    assert all((ROOT / word.split()[0]).exists() for word in arguments if word.startswith(("benchmarks/", "tests/")))


@pytest.mark.parametrize("command", subcommands())
def test_every_command_is_shown(command):
    """Nobody should need the help to learn that a command exists."""
    assert command in {arguments[0] for arguments in commands()}


@pytest.mark.parametrize("command", subcommands())
def test_every_option_is_shown(command):
    """The documents show each option once; ``-o`` stands for ``--output``."""
    options = {string for action in subcommands()[command]._actions for string in action.option_strings}

    assert options - {"-h", "--help", "--output"} <= {word for arguments in commands() for word in arguments}


@pytest.mark.parametrize("path", readme_example.outputs(), ids=lambda found: found[0].name)
def test_pages_show_what_plan_prints(path):
    """The example is the first command's own output; ``python -m tests.readme_example`` writes it anew."""
    _, command, shown = path

    assert shown == readme_example.output(command)


def test_the_example_is_of_the_first_command():
    """README and its explanation line by line show one answer."""
    assert commands()[0] == ["plan", readme_example.JOB]
    assert {path.name for path, _, _ in readme_example.outputs()} == {"README.md", "reading_a_report.md"}


# --- the README ------------------------------------------------------------------------------------------------


def test_the_readme_is_short():
    """What is longer is a page of its own."""
    assert len(read(README).splitlines()) <= MOST_LINES


def test_two_commands_are_lines_to_paste():
    """One line each, from an empty environment."""
    assert [len(pasted(name)) for name in ("plan", "test")] == [1, 1]
    assert all(pasted(name)[0].startswith("python3.11 -m venv .venv && ") for name in ("plan", "test"))


def test_ci_runs_the_commands_of_the_readme():
    """It takes them from between the markers, so that they cannot drift apart."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert "run_readme_command plan" in script
    assert "run_readme_command test" in script


# --- what must be named ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_in_the_table(target):
    """A row says what is written and what is refused."""
    table = page("guides/other_frameworks")

    assert re.search(rf"^\|[^|]*`{target}`[^|]*\|[^|]+\|[^|]+\|$", table, flags=re.MULTILINE)


@pytest.mark.parametrize("name", DECISIONS)
def test_every_decision_is_in_the_glossary(name):
    """What the planner may choose has a line that says what it means."""
    assert f"| `{name}` |" in page("glossary")


@pytest.mark.parametrize("code", ["0", "1", "2", "3", "4"])
def test_every_exit_code_is_explained(code):
    """What scripts rely on."""
    assert f"| {code} | " in page("commands")
