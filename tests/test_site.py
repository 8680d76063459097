"""Links of all documents lead somewhere, and the site of ``docs/`` builds offline, every page within two clicks."""

from __future__ import annotations

import re
import sys
import warnings
from contextlib import redirect_stderr
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

from docs.generated.pictures import FOLDER, browser, pictures
from tests.cases import in_one_case
from tests.documents import FENCE, ROOT, read
from tests.sources import FILES, label

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", flags=re.MULTILINE)

PAGES = sorted(path.relative_to(ROOT / "docs") for end in ("md", "rst") for path in (ROOT / "docs").rglob(f"*.{end}"))
PAGES.remove(Path("README.md"))


def anchors(path: Path) -> set[str]:
    """What the headings of a page are called in links, as GitHub and MyST do."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(FENCE.sub("", read(path))))
    return {word.strip().replace(" ", "-") for word in words}


class Links(HTMLParser):
    """Everything that a page of the site refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.pages: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Pages are links; what is loaded are scripts, styles and pictures."""
        found = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.pages.add(found.get("href", "").partition("#")[0])
        elif tag in {"script", "img", "link", "iframe", "source"}:
            self.loaded |= {found.get("src", ""), found.get("href", "") if found.get("rel") != "author" else ""}


@in_one_case("path", [path for path in FILES if path.suffix == ".md"], ids=label)
def test_links_lead_somewhere(path):
    """Every relative link of a document names a file or folder, and an anchor that is there."""
    broken = []
    for target in LINK.findall(FENCE.sub("", read(path))):
        name, _, anchor = target.partition("#")
        to = path.parent / name if name else path
        if ":" in name:
            continue
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
            broken.append(target)

    assert broken == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; warnings are errors."""
    if any(find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")):
        pytest.skip("the site wants .[docs]: Sphinx, MyST and Furo")
    folder = tmp_path_factory.mktemp("site")
    build = import_module("sphinx.cmd.build")  # in this process, which has the packages already
    options = ["-W", "-n", "--keep-going", "-q", "-b", "html", "-d", str(folder / "doctrees")]
    quietly = warnings.catch_warnings(action="ignore")  # of Sphinx's extensions about Sphinx
    with quietly, redirect_stderr(StringIO()) as said, patch.object(sys, "path", [*sys.path]):
        assert build.main([*options, str(ROOT / "docs"), str(folder / "html")]) == 0, said.getvalue()
    return folder / "html"


@pytest.mark.slow
def test_every_page_is_within_two_clicks(site):
    """From the first one: its links, and their links."""
    seen = {site / "index.html"}
    for _ in range(2):
        links = [
            (path, to) for path in seen for to in Links(read(path)).pages if to.endswith(".html") and ":" not in to
        ]
        seen |= {(path.parent / to).resolve() for path, to in links}

    assert [str(page) for page in PAGES if (site / page).with_suffix(".html") not in seen] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_site_loads_nothing_from_elsewhere(site, page):
    """Equations included: no script, style or picture of a page is another server's."""
    assert [
        one for one in Links(read((site / page).with_suffix(".html"))).loaded if one.startswith(("http", "//"))
    ] == []


@pytest.mark.slow
def test_pictures_are_todays():
    """``python -m docs.generated.pictures`` cuts them anew out of the planner's page."""
    chromium = browser()
    if chromium is None:
        pytest.skip("no Chromium that draws the page")

    assert {path.stem: read(path) for path in FOLDER.glob("*.svg")} == pictures(chromium)


@pytest.mark.slow
def test_equations_are_mathml(site):
    """Browsers draw them without a script."""
    text = read(site / "how_it_works.html")

    assert text.count("<math ") > 20
    assert re.findall(r"<script[^>]*mathjax", text.lower()) == []
