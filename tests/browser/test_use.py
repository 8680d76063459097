"""What people do with a page: by keyboard alone, copying, folding, choosing, zooming."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

FOCUSED = """() => {
  const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
  return { tag: one.tagName, visible: box.width > 1 && box.height > 1 && box.right > 0, outline: style.outlineStyle };
}"""

MOST_STOPS = 250


def walk(page):
    """What the Tab key reaches, from the top to the end."""
    stops = []
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUSED)
        if stop["tag"] == "BODY":
            return stops
        stops.append(stop)
    raise AssertionError(f"more than {MOST_STOPS} stops")


@pytest.mark.parametrize(("name", "width"), [("an_moe_plan", 1400), ("a_comparison", 400), ("a_replay", 1400)])
def test_the_keyboard_reaches_everything(opened, name, width):
    """Every control once, seen and outlined, and out again at the end."""
    page = opened(name, width)
    controls = page.locator("a:visible, button:visible, select:visible, summary:visible, canvas:visible")

    stops = walk(page)

    assert [stop for stop in stops if not stop["visible"] or stop["outline"] == "none"] == []
    assert len(stops) >= controls.count()
    assert {"A", "BUTTON", "CANVAS"} <= {stop["tag"] for stop in stops}


def test_the_first_stop_skips_the_top(opened):
    """Enter on it goes to the content."""
    page = opened("a_comparison", 400)
    page.keyboard.press("Tab")

    assert page.locator(".skip").bounding_box()["x"] >= 0

    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_commands_are_copied(opened, key):
    """By keyboard, in a file, without a permission; pasted it is the text, and a screen reader hears of it."""
    page = opened("an_moe_plan")
    block = page.locator("[data-plan='1'] .code").first
    expected = block.locator("pre").inner_text()

    block.locator("button").press(key)
    block.locator("button", has_text="Copied").wait_for()
    heard = page.locator("[role=status]").text_content()
    page.evaluate("document.body.append(Object.assign(document.createElement('textarea'), { id: 'paste' }))")
    page.locator("#paste").focus()
    page.keyboard.press("Control+V")

    assert expected.startswith("# Save the job")
    assert page.locator("#paste").input_value() == expected
    assert heard == "Planner commands copied"


def test_without_a_clipboard_the_text_is_selected(opened):
    """So that it is one key away."""
    page = opened("an_moe_plan")
    page.evaluate("document.execCommand = () => false")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    block = page.locator("[data-plan='1'] .code").first

    block.locator("button").click()
    block.locator("button", has_text="Selected").wait_for()

    assert page.evaluate("String(getSelection())").strip() == block.locator("pre").inner_text().strip()


def test_texts_can_be_selected(opened):
    """With the pointer, as any text."""
    page = opened("an_moe_plan")

    page.locator("[data-plan='1'] .code pre").first.click(click_count=3, position={"x": 40, "y": 18})

    assert page.evaluate("String(getSelection())").startswith("# Save the job")


def test_folded_parts_open(opened):
    """Of the keyboard's Enter: what proves the answer, hidden before."""
    page = opened("an_moe_plan")
    summary = page.locator("#proof summary").first
    inside = page.locator("#proof details table").first

    assert not inside.is_visible()

    summary.press("Enter")
    assert inside.is_visible()


def test_another_strategy_is_shown(opened):
    """Of the control in the navigation, with its figures drawn then."""
    page = opened("an_moe_plan")

    page.select_option("#plan", "2")

    page.locator("#memory [data-plan='2'] svg").wait_for(state="visible")
    assert not page.locator("#memory [data-plan='1']").is_visible()


def test_the_time_line_is_zoomed_by_keys(opened):
    """Plus shows less of it, the part in view is marked below."""
    page = opened("a_dense_plan")
    canvas, part = page.locator("canvas:visible").first, page.locator(".range:visible > div").first
    before = part.bounding_box()["width"]

    canvas.press("+")
    page.wait_for_timeout(100)

    assert part.bounding_box()["width"] == pytest.approx(before / 2, rel=0.05)


def test_the_largest_part_is_left_out_on_demand(opened):
    """A button that says whether it is pressed."""
    page = opened("a_dense_plan", 400)
    button = page.get_by_role("button", name="Without compute")

    button.press("Space")

    assert button.get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("width", [400, 1400])
def test_a_click_on_the_front_chooses_a_point(opened, width):
    """Its block with the plan is shown; from the keyboard the list of points does the same."""
    page = opened("an_advice", width)
    before = page.locator("#point h3:visible").inner_text()
    dot = page.locator("figure circle.front").first
    dot.scroll_into_view_if_needed()
    dot = dot.bounding_box()
    page.mouse.click(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    after = page.locator("#point h3:visible").inner_text()

    assert after != before
    page.locator("#plan").select_option("1")
    assert page.locator("#point h3:visible").inner_text() == before


def test_the_cheapest_for_a_date_is_found(opened):
    """The answer stands on top; the table by days is a click in the navigation away, and gets cheaper downwards."""
    page = opened("an_advice")
    page.get_by_role("link", name="Dates").click()
    rows = page.locator("#dates tbody tr").all_inner_texts()
    amounts = [float(row.split("\t")[2].split()[0].replace(",", "")) for row in rows]

    assert "in at most 60 days" in page.locator("header").inner_text()
    assert len(rows) > 1
    assert amounts == sorted(amounts, reverse=True)
