"""An incident from the first page to its end: in few clicks, by keyboard alone, and without JavaScript."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.events import attempt_record
from jobq.jobs.codec import encode
from jobq.jobs.registry import Registry, job
from jobq.queue import presence
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.testing.clock import KitClock
from jobq.testing.draining import Draining, DrainPlan
from jobq.testing.relaying import DjangoOutboxes
from jobq.web import UserRole
from tests import conftest
from tests.lifecycle.conftest import DEADLINE_S
from tests.web.conftest import browsing, serving_app
from tests.web.shop import Shop

pytestmark = pytest.mark.filterwarnings("ignore")
MAX_CLICKS = 9
JOB, FAILED, OLD = "shop.mail.send_receipt", 12, 3
SEES = "ProviderAwayError"
MAX_TABS = 80
#: Name of the focused element.
NAME = "(document.activeElement.labels?.[0] || document.activeElement).textContent.trim()"


class ProviderAwayError(Exception):
    """The provider of the shop's mails is unreachable."""


def send_receipt(order: int) -> None:
    raise ProviderAwayError(f"the provider takes no mail, not even of order {order}")


def break_provider(client: Client) -> None:
    """Fill a server: a good quarter of an hour, a few of another error in it, a deploy, then every mail dies."""
    shop = Shop(client)
    mails, now = shop.queues["mails"], shop.now
    for minute in range(14, 4, -1):
        at = now - minute * 60_000
        mails.enqueue_many([(f"{minute}-{n}", shop.call(JOB, at, n)) for n in range(4)], now=at)
        endings = []
        for n, message in enumerate(mails.dequeue(4, now=at).messages):
            dies = minute == 14 and n < OLD
            record = attempt_record(
                JOB, 1, 900, 200_000, 9_000, 90_000, "web-7:4711", "BouncedError" if dies else "", "b0" if dies else ""
            )  # fmt: skip
            outcome: Any = "dead" if dies else "done"
            endings.append(
                Ending(
                    mid=message.mid, token=message.token, outcome=outcome, record=record,
                    reason="BouncedError: unknown user" if dies else "",
                )
            )  # fmt: skip
        mails.finish(endings, now=at + 200)
    shop.date_events("mails")
    presence.put_worker(client, "web-7:4711", {
        "host": "web-7", "pid": 4711, "version": "2.4.0", "queues": ["mails"], "slots": 8, "lease_ms": 3_600_000,
        "started_at": now - 240_000, "seen_at": now,
    })  # fmt: skip
    registry = Registry()
    job(name=JOB, queue="mails", retries=0, registry=registry)(send_receipt)
    mails.enqueue_many([(f"order-{n}", encode(JOB, [n])) for n in range(FAILED)])
    draining = Draining(client, registry, KitClock(client), DjangoOutboxes())
    draining.run(DrainPlan(queues=("mails",), raises=False))
    late = encode(JOB, [99], enqueued_at=now - 400_000)
    mails.enqueue_many([(f"late-{n}", late) for n in range(40)])


@pytest.fixture(scope="module")
def outage(servers: Any, short_folder: Path) -> Iterator[Callable[..., tuple[str, Queue, Any]]]:
    """`outage(role)`: the address of a dashboard while the mails' provider is away, their queue, and the dashboard."""
    server = conftest.serving("valkey", servers, short_folder)
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:

        def begin(role: UserRole | None = UserRole.OPERATE) -> tuple[str, Queue, Any]:
            stack.close()
            stack.enter_context(conftest.emptied(server))
            client = stack.enter_context(conftest.connected(server))
            # Not in this thread, in which Playwright runs an event loop.
            pool.submit(break_provider, client).result()
            made: list[Any] = []
            address = stack.enter_context(serving_app(client, role, made=made.append, title="Shop"))
            return address, Queue("mails", client), made[0]

        yield begin
        stack.close()


def places(mails: Queue) -> tuple[int, int]:
    """How many messages are dead, and delayed."""
    counts = mails.admin.counts()
    return counts.dead, counts.delayed


class Visitor:
    """Clicks, and counts them."""

    def __init__(self, page: Any) -> None:
        self.page, self.clicks = page, 0

    def click(self, role: str, name: str, **within: Any) -> None:
        self.page.get_by_role(role, name=name, **within).first.click()
        self.clicks += 1

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()


def test_dead_are_found_and_revived_in_few_clicks(outage: Any, browser: Any):
    address, mails, _ = outage()
    with browsing(browser, address) as page:
        page.goto(address)
        visitor = Visitor(page)
        visitor.sees("1 of 1 queue is falling behind")
        visitor.sees(SEES)
        visitor.click("link", "mails", exact=True)
        visitor.sees("of attempts")
        visitor.click("link", "Overview", exact=True)
        visitor.click("link", f"{__name__}.{SEES}")
        visitor.sees("This error is new since 1 worker started.")
        visitor.sees("takes no mail, not even of order")
        visitor.click("link", "Dead messages")
        visitor.click("button", "Revive…")
        visitor.sees(f"Revive {FAILED} changes these {FAILED} messages")
        # A list that is opened, and one of it chosen.
        page.get_by_label("Begin").select_option(label="Over 10 minutes")
        visitor.clicks += 2
        visitor.click("button", f"Revive {FAILED}")
        visitor.sees(f"Revived: {FAILED} of {FAILED} messages.")
        visitor.sees("10 m")
        assert page.said == []
    assert places(mails) == (OLD, FAILED - 1)
    assert visitor.clicks <= MAX_CLICKS, visitor.clicks


class Typist:
    """Uses the keyboard alone."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def press(self, *names: str) -> None:
        self.page.wait_for_selector("html[data-ready]")
        for name in names:
            self.page.keyboard.press(name)

    def leave(self, *names: str, to: str) -> None:
        """Press keys that lead to another page, and wait for that: a key pressed in between reaches neither page."""
        with self.page.expect_navigation(url=to):
            self.press(*names)

    def go_to(self, text: str) -> None:
        """Press Tab until the focused element has this text."""
        self.page.wait_for_selector("html[data-ready]")
        for _ in range(MAX_TABS):
            self.page.keyboard.press("Tab")
            if self.page.evaluate(NAME).startswith(text):
                return
        raise AssertionError(f"{MAX_TABS} times Tab didn't lead to {text!r}")


def test_dead_are_found_and_revived_by_keyboard_alone(outage: Any, browser: Any):
    address, mails, _ = outage()
    with browsing(browser, address) as page:
        typist = Typist(page)
        page.goto(address)
        typist.leave("g", "q", to="**/queues")
        typist.press("j")
        typist.leave("Enter", to="**/queues/mails")
        typist.go_to("Pause")
        typist.leave("Enter", to="**/queues/mails")
        page.get_by_text("Paused by anna").wait_for()
        typist.go_to("Resume")
        typist.leave("Enter", to="**/queues/mails")
        page.get_by_role("button", name="Pause").wait_for()
        typist.leave("g", "d", to="**/dead")
        typist.press("j")
        assert SEES in page.locator(":focus").text_content()
        typist.leave("Enter", to="**/dead?f=*")
        typist.go_to("Revive…")
        typist.leave("Enter", to="**/operations/*")
        page.get_by_text(f"changes these {FAILED} messages").wait_for()
        typist.go_to("Begin")
        typist.press("ArrowDown")
        typist.go_to(f"Revive {FAILED}")
        typist.leave("Enter", to="**/operations/*")
        page.get_by_text(f"Revived: {FAILED} of {FAILED} messages.").wait_for()
    assert places(mails) == (OLD, FAILED - 1)


def test_incident_without_javascript(outage: Any, browser: Any):
    address, mails, app = outage(None)
    with browsing(browser, address, java_script_enabled=False) as page:
        visitor = Visitor(page)
        page.goto(f"{address}/queues")
        visitor.sees("Open the link that")
        page.goto(f"{address}/login?token={app.state.site.guard.links.make()}")
        visitor.click("button", "Log in")
        visitor.click("link", "Queues", exact=True)
        visitor.click("link", "mails", exact=True)
        with page.expect_navigation():
            visitor.click("button", "Pause")
        come_to(page, "Paused by")
        assert mails.admin.counts().paused
        visitor.click("link", "Dead", exact=True)
        page.get_by_label("Filter", exact=True).fill(f"error:*{SEES}*")
        visitor.click("button", "Filter")
        visitor.sees(f"{FAILED} found")
        with page.expect_navigation():
            visitor.click("button", "Revive…")
        come_to(page, f"changes these {FAILED} messages")
        page.get_by_label("Begin").select_option(label="Over 10 minutes")
        with page.expect_navigation():
            visitor.click("button", f"Revive {FAILED}")
        come_to(page, f"Revived: {FAILED} of {FAILED} messages.")
    assert places(mails) == (OLD, FAILED - 1)


def come_to(page: Any, text: str) -> None:
    """Load the page again until it has this text."""
    deadline = time.monotonic() + DEADLINE_S
    while not page.get_by_text(text).count():
        assert time.monotonic() < deadline, page.content()
        page.reload()
