"""The public names: what ``docs/python_api.md`` lists is what there is, each with types and a docstring."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module

import planner
from costmodel import catalog
from costmodel.version import version
from planner import api
from tests.cases import in_one_case
from tests.documents import ROOT, blocks, page
from tests.imports import MODULES
from tests.sources import tree

PAGE = page("python_api")
LISTED = dict(re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|", PAGE, flags=re.MULTILINE))


def public(name):
    """The object behind a name of the page."""
    return inspect.unwrap(getattr(import_module(LISTED[name]), name))


def functions(name):
    """A function itself; of a record its own public methods and properties."""
    thing = public(name)
    if not inspect.isclass(thing):
        return [thing]
    own = [
        getattr(one, "fget", None) or getattr(one, "__func__", one) for key, one in vars(thing).items() if key[0] != "_"
    ]
    return [one for one in own if inspect.isfunction(one)]


def annotations(name):
    """Types of a name: parameters and results, fields and properties."""
    signatures = [inspect.signature(one) for one in functions(name)]
    found = [one.return_annotation for one in signatures]
    if inspect.isclass(public(name)):
        return [*found, *inspect.get_annotations(public(name)).values()]
    return [*found, *(one.annotation for signature in signatures for one in signature.parameters.values())]


def test_the_page_lists_what_planner_has():
    """Its names, the records that they take or have, and the functions of the catalog; nothing else."""
    words = {word for name in planner.__all__ for one in annotations(name) for word in re.findall(r"\w+", str(one))}
    classes = {node.name for path in MODULES.values() for node in tree(path).body if isinstance(node, ast.ClassDef)}
    of_catalog = {name for name in catalog.__all__ if callable(getattr(catalog, name)) and name != "LOADER"}

    assert LISTED.keys() == {*planner.__all__, *(words & classes), *of_catalog}


def test_the_door_has_what_the_page_lists():
    """``planner.api`` has every name of the page; those of the catalog as ``catalog.devices()``."""
    of_catalog = {name for name in LISTED if LISTED[name].startswith("costmodel.catalog")}

    assert {*api.__all__} == {*LISTED, "catalog", "__version__"} - of_catalog
    assert {*planner.__all__} < {*api.__all__}
    assert api.catalog is catalog


@in_one_case("name", sorted(LISTED.keys() & {*api.__all__}))
def test_a_name_of_the_door_is_the_one_of_its_module(name):
    """Two lists in ``planner/api.py`` and in ``planner/__init__.py`` (for people, types and imports), and the page."""
    of_module = getattr(import_module(LISTED[name]), name)

    assert getattr(api, name) is of_module
    assert name not in planner.__all__ or getattr(planner, name) is of_module


def test_the_version_is_that_of_the_project():
    """One truth: ``pyproject.toml``, as it was installed."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

    assert planner.__version__ == api.__version__ == stated


def test_sources_that_nobody_installed_have_a_version(monkeypatch):
    """Package managers order it below all others."""
    monkeypatch.setattr("costmodel.version.DISTRIBUTION", "no-such-distribution")
    version.cache_clear()

    assert version() == "0+sources"
    version.cache_clear()


def test_imports_are_lazy():
    """``import planner`` and ``import planner.api`` bring in no library of numbers and no solver."""
    program = (
        "import sys, planner, planner.api; print(sorted({'numpy', 'ortools', 'pydantic', 'yaml'} & {*sys.modules}))"
    )

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def test_the_door_says_what_is_stable():
    """Versions, JSON and how names go."""
    text = inspect.getdoc(api)

    assert all(word in text for word in ("semver.org", "format_version", "DeprecationWarning", "Not stable"))


@in_one_case("name", LISTED)
def test_a_public_name_is_typed_and_documented(name):
    """Every parameter, every result, every field, which the docstring explains by name."""
    assert inspect.getdoc(public(name))
    for one in functions(name):
        signature = inspect.signature(one)
        typed = [each.annotation for each in signature.parameters.values() if each.name not in ("self", "cls")]
        assert inspect.Signature.empty not in (*typed, signature.return_annotation), one
        assert inspect.getdoc(one), one
    fields, text = getattr(public(name), "__dataclass_fields__", ()), inspect.getdoc(public(name))
    assert [field for field in fields if not re.search(rf"\b{field}\b", text)] == []


def test_python_of_the_documents_imports_public_names():
    """What its examples import, they may."""
    trees = [ast.parse(block.text) for block in blocks("python") if "planner" in block.text]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]

    assert {node.module for node in nodes} <= {"planner", "planner.api"}
    assert {name.name for node in nodes for name in node.names} <= set(api.__all__)
