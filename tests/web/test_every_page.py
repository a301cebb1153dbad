"""Every page in a browser, light and dark, on a desk and on a phone: accessible, silent, no wider than the screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import conftest
from tests.web.conftest import browsing, serving_app
from tests.web.shop import Shop, page_paths

pytestmark = pytest.mark.filterwarnings("ignore")
AXE = Path(__file__).parent / "vendor" / "axe-4.14.1.min.js"
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"]}}
CONTRAST = {"runOnly": ["color-contrast"]}
FOUND = """async (options) => {
  const found = await axe.run(document, { ...options, resultTypes: ["violations"] });
  return found.violations.map((one) => one.id + ": " + one.nodes.map((node) => node.html).slice(0, 3).join(" "));
}"""
#: Elements that overflow the page, for the message of a failure.
WIDE = """() => [...document.querySelectorAll("body *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll, .tabs, pre, .hidden"))
  .map((one) => one.outerHTML.slice(0, 120)).slice(0, 3)"""


@pytest.fixture(scope="module")
def shop(servers: Any, short_folder: Path) -> Iterator[str]:
    """The address of a dashboard of a filled server."""
    server = conftest.serving("valkey", servers, short_folder)
    with conftest.emptied(server), conftest.connected(server) as client:
        Shop(client).fill()
        with serving_app(client, title="Shop") as address:
            yield address


@pytest.fixture(scope="module")
def tab(browser: Any, shop: str) -> Iterator[Any]:
    """A tab without live refresh, so that nothing changes while it is looked at."""
    with browsing(browser, shop) as page:
        page.context.add_cookies([{"name": "jobq_view", "value": "live=off", "url": shop}])
        yield page


#: The captions of tables whose last columns are out of sight.
CUT = """() => [...document.querySelectorAll(".scroll")].filter((at) => at.scrollWidth > at.clientWidth + 1)
  .map((at) => `${at.textContent.trim().slice(0, 40)}: ${at.scrollWidth} > ${at.clientWidth}`)"""


@pytest.mark.parametrize(("route", "path"), page_paths().items())
def test_page_is_accessible_silent_and_fits(tab: Any, shop: str, route: str, path: str):
    tab.said.clear()
    tab.set_viewport_size({"width": 1440, "height": 900})
    reply = tab.goto(shop + path)
    if "text/html" not in reply.headers.get("content-type", ""):
        return
    assert reply.status < 400, reply.status
    tab.wait_for_selector("html[data-ready]")
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    for width in (1440, 390):
        tab.set_viewport_size({"width": width, "height": 844})
        for scheme, rules in (("light", RULES), ("dark", CONTRAST)):
            tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            assert tab.evaluate(FOUND, rules) == [], (width, scheme)
        if tab.evaluate("document.documentElement.scrollWidth") > width:
            raise AssertionError((width, tab.evaluate(WIDE)))
    tab.set_viewport_size({"width": 1280, "height": 844})
    assert tab.evaluate(CUT) == []
    assert tab.said == []


def test_what_is_wrong_with_a_page_is_found(tab: Any, shop: str):
    tab.goto(shop)
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    tab.evaluate("document.body.append(new Image(10, 10), document.createElement('button'))")
    assert {line.partition(":")[0] for line in tab.evaluate(FOUND, RULES)} >= {
        "image-alt",
        "button-name",
    }


def test_keys_lead_to_pages_but_not_while_typing(tab: Any, shop: str):
    tab.goto(f"{shop}/login")
    tab.wait_for_selector("html[data-ready]")
    tab.keyboard.press("?")
    tab.locator("#keys").get_by_text("Refresh now").wait_for()
    tab.keyboard.press("Escape")
    tab.keyboard.press("g")
    tab.keyboard.press("o")
    tab.wait_for_url(f"{shop}/")


def test_pages_need_no_javascript(browser: Any, shop: str):
    with browsing(browser, shop, java_script_enabled=False) as page:
        page.goto(shop)
        page.get_by_role("button", name="View").click()
        page.get_by_label("Theme").select_option("dark")
        page.get_by_role("button", name="Save").click()
        page.wait_for_selector('html[data-theme="dark"]')
        page.get_by_role("button", name="Live").click()
        page.wait_for_selector('main[data-live="0"]')
