"""The documents keep their word: what README and ``docs/`` show exists, what exists is shown, outputs are today's."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from datetime import date
from functools import cache

import pytest

from costmodel.strategy import DECISIONS
from docs.generated import regions
from docs.generated.ledger import read_ledger
from docs.generated.records import EXAMPLES, record_of
from docs.generated.regions import MADE, REGION, written
from planner import cli, load
from planner.frameworks import TARGETS
from planner.schema import schema
from tests import readme_example
from tests.cases import in_one_case, require_near, require_none
from tests.documents import FENCE, PAGES, README, ROOT, Block, blocks, blocks_of, commands, page, read, words_of
from tests.sources import label

MOST_LINES = 150
"""Of the README."""

MARKS = ("output", "file", "example")
"""What a text may be."""

EXPLAINED = ROOT / "docs" / "reading_a_report.md"
"""What explains the README's first answer."""


def a_job() -> dict:
    """A job on which each example of an entry makes sense."""
    return {
        "model": "llama3-8b",
        "cluster": {"device": "h100-80gb-sxm", "num_devices": 512},
        "training": {"global_batch_size": 1024, "sequence_length": 8192, "tokens": 1e12},
    }


def pasted(name: str) -> list[str]:
    """Lines of the README's code block below ``<!-- command: name -->``."""
    _, _, rest = read(README).partition(f"<!-- command: {name} -->\n")
    return rest.split("```")[1].splitlines()[1:]


@cache
def subcommands() -> dict[str, argparse.ArgumentParser]:
    """The parsers of ``planner plan`` and its siblings."""
    actions = cli._parser()._actions
    (choices,) = (action.choices for action in actions if isinstance(action, argparse._SubParsersAction))
    return dict(choices)


def jobs() -> list[Block]:
    """Blocks that say model, cluster and training, but those that show what is refused."""
    found = [block for block in blocks("yaml") if "wrong" not in block.said]
    return [
        block for block in found if re.search(r"^model:.*^cluster:.*^training:", block.text, re.MULTILINE | re.DOTALL)
    ]


# --- commands --------------------------------------------------------------------------------------------------


@in_one_case("arguments", commands(), ids=" ".join)
def test_commands_of_the_documents_exist(arguments):
    """Every command that a page shows parses, and its files are there."""
    if arguments[0].startswith("--"):  # ends by itself
        assert cli.main(arguments) == 0
        return
    assert callable(cli._parse(arguments).run)
    files = [word.split()[0] for word in arguments if word.startswith(("benchmarks/", "tests/"))]
    assert all((ROOT / file).exists() for file in files)


def test_every_command_and_option_is_shown():
    """Nobody should need the help to learn that one exists; ``-o`` stands for ``--output``."""
    actions = [action for parser in subcommands().values() for action in parser._actions]
    options = {string for action in actions for string in action.option_strings}

    assert subcommands().keys() <= {arguments[0] for arguments in commands()}
    assert options - {"-h", "--help", "--output"} <= {word for arguments in commands() for word in arguments}


@pytest.mark.sampled(1, 2)  # a quick one
@pytest.mark.parametrize("path", PAGES, ids=label)
def test_pages_show_what_is_printed(path, tmp_path):
    """Each command runs and ends as it should, each output is today's; ``python -m tests.readme_example`` writes."""
    shown, today = readme_example.today(path, tmp_path)

    require_near(today, shown)


def inline_commands() -> list[tuple[str, ...]]:
    """Words of each command that stands in a sentence."""
    text = " ".join(FENCE.sub("", read(path)) for path in PAGES)
    return sorted({tuple(found.split()) for found in re.findall(r"`planner ([^`]+)`", text)})


@in_one_case("words", inline_commands(), ids=" ".join)
def test_commands_in_sentences_exist(words):
    """The command, and its options."""
    options = subcommands()[words[0]]._option_string_actions

    assert {word for word in words if word.startswith("--")} <= options.keys()


def test_every_text_says_what_it_is():
    """An output that is compared, a file, part of a generated page, or an example with the reason why it is not run."""
    pages = {path: [found.span() for found in REGION.finditer(read(path))] for path in PAGES}
    texts = [
        block for block in blocks("text") if not any(start < block.start < end for start, end in pages[block.page])
    ]

    assert [block.text for block in texts if block.mark not in MARKS or not block.text] == []
    assert [block.text for block in texts if block.mark == "example" and not block.said] == []


def test_what_is_not_run_is_shown():
    """A reason that no command has any more would hide the next one."""
    lines = [line for block in blocks("sh") for line in block.lines]

    require_none(start for start in readme_example.NOT_RUN if not any(re.match(start, line) for line in lines))


def test_the_story_sees_what_is_wrong(tmp_path):
    """A command that ends otherwise than its page says, and an output of before, are noticed."""
    path = tmp_path / "page.md"
    path.write_text("```sh\nplanner catalog models nothing\n```\n")
    with pytest.raises(AssertionError, match="planner catalog models nothing: ended with 2"):
        readme_example.today(path, tmp_path / "one")

    path.write_text(
        '```sh\nplanner catalog models llama3-8b\n```\n\n<!-- output: until "family" -->\n```text\nof before\n```\n'
    )
    shown, today = readme_example.today(path, tmp_path / "two")
    assert "of before" in shown
    assert today.splitlines()[6:8] == ["name               llama3-8b", "..."]


@pytest.mark.parametrize("block", jobs(), ids=lambda block: f"{label(block.page)}-{block.said}")
def test_jobs_of_the_documents_load(block, tmp_path):
    """A job that a page shows is one."""
    folder = readme_example.Story(block.page, tmp_path).folder
    (folder / "shown.yaml").write_text(block.text)

    assert load(folder / "shown.yaml").facts.cluster.num_devices > 1


def test_the_example_is_of_the_first_command():
    """README and its explanation line by line show one answer."""
    (first,) = {tuple(words) for words in commands()[:1]}

    assert list(first) == words_of(next(line for block in blocks_of(EXPLAINED) for line in block.lines))


# --- generated parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem == "support")) for path in regions.PAGES],
    ids=label,
)
def test_generated_parts_are_todays(path):
    """Commands, entries, accuracy: ``python -m docs.generated`` writes them anew."""
    assert written(path) == read(path)


def test_every_generated_part_stands_somewhere():
    """What nobody reads needs no code."""
    assert {found[2] for path in regions.PAGES for found in REGION.finditer(read(path))} == MADE.keys()


def test_lines_of_the_ledger_are_data():
    """Each is a figure of a day, once; a value with a unit is a number."""
    lines = read_ledger()
    figures = Counter((line.date, line.benchmark, line.change, line.figure) for line in lines)
    folders = tuple(path.stem.replace("_", "-") for path in (ROOT / "benchmarks").iterdir())

    require_none(line for line in lines if not (line.benchmark.startswith(folders) and line.value and line.change))
    require_none(line for line in lines if line.date and not date.fromisoformat(line.date))
    require_none(line for line in lines if line.unit and float(line.value) is None)
    require_none(figure for figure, number in figures.items() if number > 1)


@in_one_case(("entry", "value"), EXAMPLES.items())
def test_examples_of_entries_are_read(entry, value, tmp_path):
    """Each example is a value that a job may have there."""
    (tmp_path / "mine.csv").write_text("tp\n8\n")
    section, _, name = entry.rpartition(".")
    job = a_job()
    if name.startswith("muon_"):
        job["settings"] = {"optimizer": "muon"}
    if name == "max_seqlen_per_dp_cp_rank":
        job["training"]["sequence_lengths"] = {512: 3, 2048: 1}
    (job.setdefault(section, {}) if section else job)[name] = value

    assert load(job, folder=tmp_path).name


def test_every_entry_has_an_example():
    """But sections, and what a job may hold instead of a name."""
    job = schema("job")
    sections = {name: record_of(entry) for name, entry in job["properties"].items()}
    inside = {
        f"{name}.{entry}" for name, record in sections.items() if record for entry in job["$defs"][record]["properties"]
    }

    assert inside | {name for name, record in sections.items() if not record} == EXAMPLES.keys()


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


def test_every_target_is_in_the_table():
    """A row says what is written and what is refused."""
    rows = re.findall(r"^\|([^|]*)\|[^|]+\|[^|]+\|$", page("guides/other_frameworks"), flags=re.MULTILINE)

    require_none(target for target in TARGETS if not any(f"`{target}`" in row for row in rows))


def test_every_decision_and_exit_code_is_explained():
    """The glossary has a line for what the planner may choose, the page of commands for what scripts rely on."""
    require_none(name for name in DECISIONS if f"| `{name}` |" not in page("glossary"))
    require_none(code for code in range(5) if f"| {code} | " not in page("commands"))
