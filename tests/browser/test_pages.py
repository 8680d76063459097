"""Every kind of page, on a phone and on a desk, light and dark: nothing overflows or fails, everybody can read it."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from unicodedata import normalize

import pytest

from tests.browser.conftest import HOW, PAGES

pytestmark = pytest.mark.slow

WIDTHS = (320, 400, 768, 1400)
PAPER = 718
"""Pixels of an A4 page between its margins."""

MOST_MILLISECONDS = 2000
"""Until a page is drawn: what people wait."""

MOST_PAPER = 26
"""Sheets of a printed page."""

OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Until a page is drawn anew in another window."""

OVER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def violations(page):
    """What axe finds: impact, rule and place."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=f"axe is not installed ({HOW})")
    response = axe.Axe().run(page).response
    assert len(response["passes"]) > 20, "axe has looked at the page"
    return [(one["impact"], one["id"], one["nodes"][0]["target"]) for one in response["violations"]]


def look_at(page):
    """See that axe and the console say nothing, and that nothing is wider than any window."""
    assert violations(page) == []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(TWO_FRAMES)
        assert page.evaluate(OVER) == 0, width
    assert page.said == []


def test_everybody_can_read_it(seen):
    """On a desk, light and folded; the last width is the first one again."""
    look_at(seen)


@pytest.mark.parametrize("name", PAGES)
def test_everybody_can_read_it_in_the_dark(opened, name):
    """On a phone, unfolded."""
    page = opened(name, 400, color_scheme="dark")
    page.evaluate(OPEN_ALL)

    look_at(page)


def test_every_figure_is_drawn(seen):
    """Boxes, SVG or a canvas in each, in time; figures of other plans are drawn when they are chosen."""
    empty = seen.evaluate(
        "[...document.querySelectorAll('figure')].filter((one) => !one.querySelector('.bars, .canvas')).length"
    )
    drawn = int(seen.evaluate("document.documentElement.dataset.drawnMilliseconds"))

    assert seen.locator("figure").count() > 0
    assert empty == 0
    assert drawn < MOST_MILLISECONDS


BAD_TICKS = """[...document.querySelectorAll('figure svg')].flatMap((drawing) => {
  const [ticks, titles] = ['tick', 'axis-label'].map((kind) => [...drawing.querySelectorAll(`text.${kind}`)]);
  const box = (one) => one.getBoundingClientRect(), key = (one) => one.getAttribute('text-anchor') + one.textContent;
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return ticks.filter((tick, index) => box(tick).left < box(drawing).left || ticks.map(key).indexOf(key(tick)) < index
    || titles.some((title) => meet(box(tick), box(title)))).map(key);
})"""
CLIPPED = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"


@pytest.mark.parametrize("seen", [name for name in PAGES if "study" in name], indirect=True)
def test_studies_are_read_as_they_are(seen):
    """Ticks differ and keep clear of titles and edges; on a desk no column of a table is hidden behind an edge."""
    assert seen.evaluate(BAD_TICKS) == []
    assert seen.evaluate(CLIPPED) == 0


def test_figures_have_words(seen):
    """Each has a caption, each drawing a name; each mark of an interval has its ends in words beside the bar."""
    drawings = seen.locator("figure svg, figure canvas")
    labels = [drawings.nth(index).get_attribute("aria-label") for index in range(drawings.count())]
    captions = seen.locator("figure > figcaption").all_inner_texts()
    bars = seen.locator(".bar-row:has(.whisker)").all_text_contents()

    assert seen.locator("figure").count() == len(captions)
    assert all(labels)
    assert [text for text in bars if "80%: " not in text] == []


def test_structure(seen):
    """A language, one first heading, no level left out, landmarks, headers and captions of tables; nothing moves."""
    levels = seen.eval_on_selector_all("h1, h2, h3, h4", "(found) => found.map((one) => Number(one.tagName[1]))")
    tables = seen.locator("table").count()
    moving = seen.evaluate(
        "[...document.querySelectorAll('*')].filter((one) => { const style = getComputedStyle(one);"
        " return style.transitionDuration !== '0s' || style.animationName !== 'none'; }).length"
    )

    assert seen.locator("html").get_attribute("lang") == "en"
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert [seen.locator(each).count() for each in ("header", "nav", "main")] == [1, 1, 1]
    assert seen.locator("table > caption").count() == tables > 0
    assert seen.locator("th:not([scope])").count() == 0
    assert moving == 0


@pytest.mark.parametrize("name", PAGES)
def test_prints(opened, name):
    """On paper everything folded is open, nothing is cut, dark pages are light; afterwards it is as before."""
    page = opened(name, PAPER, color_scheme="dark")
    closed = page.locator("details:not([open])").count()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")

    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate(OVER) <= 0
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert not page.locator("nav").is_visible()

    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == closed


def test_the_paper_has_what_was_folded(opened):
    """The proof, the job, and the whole name of every chapter, on few sheets."""
    pypdf = pytest.importorskip("pypdf", reason=f"pypdf is not installed ({HOW})")
    page = opened("an_moe_plan")
    titles = page.locator("h2").all_inner_texts()

    sheets = pypdf.PdfReader(io.BytesIO(page.pdf(format="A4"))).pages
    text = re.sub(r"\s+", " ", normalize("NFKC", " ".join(sheet.extract_text() for sheet in sheets)))

    assert [title for title in titles if title not in text] == []
    assert "lower bound" in text
    assert "CP-SAT" in text
    assert "global_batch_size: 1024" in text
    assert len(sheets) <= MOST_PAPER


def test_the_policy_stops_foreign_scripts(opened, files, tmp_path):
    """What somebody adds to the file does not run, and is told."""
    text = files("a_forbidden_estimate").read_text(encoding="utf-8")
    target = tmp_path / "changed.html"
    target.write_text(text + "<script>document.title = 'taken over'</script>", encoding="utf-8")
    page = opened("a_forbidden_estimate")

    page.goto(target.as_uri())

    assert "taken over" not in page.title()
    assert "Content Security Policy" in " ".join(page.said)
