"""A page in a browser keeps itself up to date."""

from __future__ import annotations

from typing import Any

import pytest

from jobq.queue.queue import Queue
from tests.web.conftest import browsing
from tests.web.test_sampler import run

pytestmark = pytest.mark.filterwarnings("ignore")


def test_page_refreshes_itself_goes_grey_without_server_and_comes_back(
    browser: Any, client: Any, served: Any, queue: Any
):
    address = served()
    with browsing(browser, address) as page:
        page.goto(address)
        page.get_by_text("No jobs yet").wait_for()
        queue.enqueue(b"{}", mid="m")
        page.get_by_role("link", name="low").or_(
            page.get_by_role("rowheader", name="low")
        ).first.wait_for()
        page.context.set_offline(True)
        page.keyboard.press("r")
        page.get_by_role("alert").get_by_text("No answer since").wait_for()
        page.context.set_offline(False)
        page.keyboard.press("r")
        page.get_by_role("alert").wait_for(state="hidden")


def test_row_that_moves_keeps_the_focus(browser: Any, client: Any, served: Any):
    first, second = Queue("first", client), Queue("second", client)
    run(first, "dead", 2)
    run(second, "dead", 1)
    address = served()
    with browsing(browser, address) as page:
        page.goto(f"{address}/queues?sort=dead")
        page.wait_for_selector("html[data-ready]")
        page.keyboard.press("j")
        assert page.locator(":focus").text_content() == "first"
        run(second, "dead", 3)
        page.locator("tbody > tr:first-child a", has_text="second").wait_for()
        assert page.locator(":focus").text_content() == "first"
        page.keyboard.press("k")
        assert page.locator(":focus").text_content() == "second"
        # The focused queue is removed from the server.
        client.command("SREM", "jobq:queues", "second")
        page.get_by_role("link", name="second").wait_for(state="detached")
        page.keyboard.press("Enter")
        page.wait_for_url("**/queues/first")


def test_tick_stays_with_its_message(browser: Any, client: Any, served: Any, queue: Any):
    run(queue, "dead", 2)
    address = served()
    with browsing(browser, address) as page:
        page.goto(f"{address}/dead")
        page.wait_for_selector("html[data-ready]")
        # The first row is a group, the second the newest message.
        for key in "jjxk":
            page.keyboard.press(key)
        value = page.locator("tbody input:checked").get_attribute("value")
        run(queue, "dead", 1)
        page.locator("tbody input[type=checkbox]").nth(2).wait_for()
        chosen = page.locator("tbody input:checked")
        assert [one.get_attribute("value") for one in chosen.all()] == [value]
