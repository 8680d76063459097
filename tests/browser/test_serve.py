"""The page of ``planner serve`` as people use it: typing, sliding, keeping, sharing, by keyboard, with axe."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

pytestmark = pytest.mark.slow

SMALL = "model=llama3-8b&device=h100-80gb-sxm&devices=8&batch=64&sequence=4k&tokens=1T"
SECONDS = 60
"""Time for an answer on a busy machine."""


@pytest.fixture(scope="session")
def address():
    """The address of a server with one worker."""
    pytest.importorskip("starlette", reason="pip install '.[serve]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen((sys.executable, "-m", "planner", "serve", "--port", str(port), "--processes", "1"))
    for _ in range(SECONDS * 10):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            break
        except OSError:
            time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait(SECONDS)


@pytest.fixture
def served(chromium, address):
    """Opens the page; says what its console says and which addresses it asks."""
    contexts = []

    def open_page(path="/", width=1400, **options):
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(SECONDS * 1000)
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(f"{address}{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()


def answered(page):
    """Wait for the answer to what the form says."""
    page.locator("#state", has_text="Answered").wait_for()
    page.wait_for_function("!document.getElementById('answer').classList.contains('stale')")


def test_axe_finds_nothing_with_two_plans_side_by_side(served, address):
    """Nothing is asked of other machines, nothing is wider than the screen, be it a desk's or a phone's."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = served(f"/?{SMALL}")
    page.get_by_role("button", name="Keep to compare").click()
    answered(page)
    page.get_by_label("Global batch size", exact=True).fill("128")
    page.locator("h2", has_text="Side by side").wait_for()
    answered(page)

    for width in (1400, 400):
        page.set_viewport_size({"width": width, "height": 900})
        found = axe.run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert all(url.startswith((address, "data:")) for url in page.asked)
    assert page.said == []


def test_a_slider_asks_and_the_address_holds_the_job(served):
    """16 devices are the fourth power of two."""
    page = served(f"/?{SMALL}")
    page.get_by_label("Devices, powers of two").fill("4")
    page.wait_for_url(re.compile("devices=16"))
    answered(page)

    assert page.get_by_label("Devices", exact=True).input_value() == "16"
    assert page.locator("#answer h2").first.inner_text().startswith("llama3-8b on 16 x")


def test_a_shared_link_shows_the_same_without_scripts(served):
    """The form asks by its button."""
    page = served(f"/?{SMALL}", java_script_enabled=False)

    assert page.locator("#answer h2").first.inner_text().startswith("llama3-8b on 8 x")
    assert page.get_by_label("Model", exact=True).input_value() == "llama3-8b"
    page.get_by_role("button", name="Plan").click()
    assert page.locator("#answer h2").first.inner_text().startswith("llama3-8b on 8 x")


def test_the_form_is_used_by_keyboard_and_a_mistake_is_told(served):
    """Enter asks; the mistake is an alert."""
    page = served("/")
    page.get_by_label("Model", exact=True).focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("llama3-8c")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()

    assert "Did you mean 'llama3-8b'?" in page.get_by_role("alert").inner_text()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "device"


def test_the_links_below_an_answer_have_its_files(served, address):
    """A report, and an archive."""
    page = served(f"/?{SMALL}")

    for name, begins in (("Report as JSON", b"{"), ("Files that start it", b"PK")):
        response = page.request.get(address + page.get_by_role("link", name=name).get_attribute("href"))
        assert response.ok
        assert response.body().startswith(begins)
