"""The law of measured runs: what a row says is in its columns; nothing reads notes or takes ids apart."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import planner

FILES = sorted(
    path
    for files in ("jobs/run_*.py", "measure/runs/*.py", "measure/calibrate/*.py")
    for path in Path(planner.__file__).parent.glob(files)
)

RECIPES = {"Recipe", "recipe"}
"""Published layouts, which are found by the name of their recipe: no measured runs."""

WRITES_YAML = {"profile_text.py"}
"""Files whose regular expressions are about the text of the catalog's own files."""


def label(path: Path) -> str:
    """Folder and file."""
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", [path for path in FILES if path.name not in WRITES_YAML], ids=label)
def test_rows_are_not_read_by_regular_expressions(path):
    """A fact that only an expression finds in a text is no column yet: the converter's work, outside of the wheel."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}

    assert not imported & {"re", "regex", "fnmatch"}
    assert "re." not in {f"{node.value.id}." for node in nodes if _is_of_a_name(node)}


def _is_of_a_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)


@pytest.mark.parametrize("path", FILES, ids=label)
def test_nobody_reads_notes(path):
    """Neither as a column nor as an attribute; recipe and source_ref are for people, too, but for those of recipes."""
    parts = ast.parse(path.read_text(encoding="utf-8")).body
    nodes = [node for part in parts if getattr(part, "name", "") not in RECIPES for node in ast.walk(part)]
    names = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}

    assert not (names | attributes) & {"notes", "recipe", "source_ref"}


def test_both_folders_are_looked_at():
    """A law over no files would hold of anything."""
    assert {"jobs/run_jobs.py", "runs/predictions.py", "calibrate/cases.py"} <= set(map(label, FILES))


def test_nothing_of_a_row_that_people_read_moves_its_prediction(tmp_path):
    """Notes, recipe and references that once said a schedule, a dispatcher or a bandwidth say nothing; ids neither."""
    from tests.builders_runs import predicted

    prose = {
        "notes": "schedule V-Half, method vocab1; dispatcher=hybridep; 4x100Gb RoCE per node; PROXY: n_layers=7",
        "recipe": "pp_layout=Et*4|(t*4|)*14tmL",
        "source_ref": "container NeMo 24.07",
        "date": "2021-04",
    }

    plain, other = predicted(tmp_path, {"id": "plain"}, {"id": "internevo-tgs-tp1-z-1-n16", **prose})

    assert (plain.step_seconds, plain.device_bytes) == (other.step_seconds, other.device_bytes)
    assert plain.strategy == other.strategy
