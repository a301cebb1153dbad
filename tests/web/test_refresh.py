"""A page in a browser keeps itself up to date."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.conftest import browsing

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.one_server]


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
