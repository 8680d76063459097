"""The words are the field's: no private names in the code, no riddles in the sentences, units and sources stated."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator

import pytest

from tests.cases import require_none
from tests.documents import PAGES, prose_of
from tests.ratchet import OPENERS, WORDED, openers
from tests.sources import PACKAGES, ROOT, docstrings, label, names, python_files, sentences, strings, text, tree

FILES = python_files(*PACKAGES)
WORDS = {row["private"]: row["field"] for row in csv.DictReader((ROOT / "tests" / "data" / "words.csv").open())}
"""What the code called a thing once, and what the field calls it; grows when a reader stumbles."""

PHRASES = re.compile(
    "What the others lose|What they reach|played through|told apart|no fit had seen|work in step|orkers that may die"
)
"""Riddles that readers of the output met."""

MOST_WORDS = 30
"""Of a sentence, which ends at a full stop, a question mark or an exclamation mark; on a page also at a colon."""

COSTING = ("network", "lowering", "pipelines", "memory", "step", "operators", "reliability")
UNIT = re.compile(
    r"\b([Ss]econds?|[Bb]ytes?|FLOPs?|[Ff]raction|per second|[Ss]hare of|[Cc]ount of|[Nn]umber of)\b|[Uu]nit: \w"
)
SOURCE = re.compile(r"References|Derivation: \S|arXiv|MoFa|[Ee]quation|Megatron|PyTorch|NCCL|Transformer Engine|NVIDIA")
LEAST_UNITS, LEAST_SOURCES = 0.95, 0.9
"""Shares of the cost functions whose docstring states a unit, and a source or derivation."""


def cost_functions() -> Iterator[tuple[str, str]]:
    """Public functions of the cost model that return numbers, with their docstrings."""
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "costmodel" or parts[1] not in COSTING:
            continue
        for node in tree(path).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                returns = ast.unparse(node.returns) if node.returns else ""
                if re.search(r"Numbers|Array|float|\bint\b", returns) and "bool" not in returns:
                    yield f"{label(path)}:{node.name}", ast.get_docstring(node) or ""


def test_names_are_the_fields():
    """No private word is a name; the table says the field's."""
    found = [
        f"{label(path)}:{line}: {name} is {WORDS[name]}"
        for path in FILES
        for line, name in names(path)
        if name in WORDS
    ]

    require_none(found)


def test_output_has_no_riddles():
    """The listed phrases are said plainly."""
    texts = {path: " ".join(text(path).split()) for path in (*FILES, *PAGES)}

    require_none(f"{label(path)}: {phrase}" for path, one in texts.items() for phrase in PHRASES.findall(one))


def test_sentences_are_short():
    """A docstring's sentence has at most ``MOST_WORDS`` words."""
    said = [(path, node, one) for path in FILES for node in docstrings(path) for one in sentences(node.value)]

    require_none(f"{label(path)}:{node.lineno}: {one}" for path, node, one in said if len(one.split()) > MOST_WORDS)


def test_sentences_of_docstrings_have_a_subject():
    """No sentence of a docstring begins with a question word, in the benchmarks neither; nor does a field's text."""
    require_none(openers())


def test_headings_have_a_subject():
    """No heading of a document begins with a question word."""
    pages = (ROOT / "CONTRIBUTING.md", *PAGES)
    headings = [(path, one) for path in pages for one in re.findall(r"^#+ (.*)", text(path), flags=re.MULTILINE)]

    require_none(f"{label(path)}: {heading}" for path, heading in headings if OPENERS.match(heading))


def test_messages_and_help_texts_have_a_subject():
    """No text that a user reads begins with a question word, be it a message, a help text or a row of a report."""
    said = [(path, line, one) for path in python_files(*WORDED) for line, one in strings(path) if " " in one]

    require_none(f"{label(path)}:{line}: {one}" for path, line, one in said if OPENERS.match(one))


def test_sentences_of_the_documents_are_short():
    """README, CONTRIBUTING and the pages: at most ``MOST_WORDS`` words, too."""
    said = [(path, one) for path in (ROOT / "CONTRIBUTING.md", *PAGES) for one in prose_of(path)]

    require_none(f"{label(path)}: {one}" for path, one in said if len(one.split()) > MOST_WORDS)


@pytest.mark.parametrize(("what", "least"), [(UNIT, LEAST_UNITS), (SOURCE, LEAST_SOURCES)], ids=["units", "sources"])
def test_cost_functions_state(what, least):
    """What a number is in, and where it comes from."""
    found = list(cost_functions())
    without = [name for name, text in found if not what.search(text)]

    assert 1 - len(without) / len(found) >= least, without
