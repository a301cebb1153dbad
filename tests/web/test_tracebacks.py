"""Tracebacks on pages: the row of the attempt, the list of errors and the page of one error, with secrets hidden."""

from __future__ import annotations

import html
from typing import Any

import pytest

from jobq.queue.queue import Queue
from jobq.web import UserRole
from tests.web.api.test_api import TOKEN
from tests.web.test_messages import ended
from tests.web.test_search import call

HOSTILE = "<img src=x onerror=alert(1)>"
TRACE = (
    'Traceback (most recent call last):\n  File "/srv/shop/pay.py", line 42, in charge\n'
    f"    send(token='abcdef')\nTimeout: 30 s password=hunter2 {HOSTILE}"
)
PLACE = "shop/pay.py:42 in charge"


@pytest.fixture
def failed(queue: Queue) -> None:
    """Message m failed twice; the second failure is kept."""
    queue.enqueue(call("a.b"), mid="m")
    ended(
        queue,
        "retry",
        "Timeout",
        backoff=0,
        traceback="Traceback of the first",
        place="old.py:1 in go",
    )
    ended(queue, "retry", "Timeout", backoff=600, traceback=TRACE, place=PLACE)


def text(page: Any, path: str) -> str:
    reply = page.get(path)
    assert reply.status_code == 200
    assert HOSTILE not in reply.text and "hunter2" not in reply.text and "abcdef" not in reply.text
    return html.unescape(reply.text)


@pytest.mark.usefixtures("failed")
def test_message_shows_the_traceback_in_the_row_of_its_attempt(visit: Any):
    shown = text(visit(UserRole.READ), "/queues/low/messages/m")
    first, second = shown.partition('id="attempts"')[2].partition("</section>")[0].split("<tr>")[2:]
    assert PLACE.partition(":")[0] in second and "line 42, in charge" in second
    assert "Traceback" not in first and "old.py:1 in go" in first


def test_message_shows_the_traceback_of_a_dead_message_in_its_latest_life(queue: Queue, visit: Any):
    queue.enqueue(call("a.b"), mid="m")
    for _ in range(2):
        ended(queue, "dead", "Timeout", reason=f"Timeout: 30 s\n\n{TRACE}", place=PLACE)
        shown = text(visit(UserRole.READ), "/queues/low/messages/m")
        *earlier, last = (
            shown.partition('id="attempts"')[2].partition("</section>")[0].split("<tr>")[2:]
        )
        assert "line 42, in charge" in last and not any("line 42" in row for row in earlier)
        queue.admin.revive(queue.status("m").dead_id)


@pytest.mark.usefixtures("failed")
def test_reply_of_the_api_has_place_and_traceback_of_each_attempt(visit: Any):
    api = visit(UserRole.READ)
    api.headers.update(TOKEN)
    history = api.get("/api/v1/queues/low/messages/m").json()["history"]
    first, second = [event for event in history if event["attempt"]]
    assert (first["place"], first["traceback"]) == ("old.py:1 in go", "")
    assert second["place"] == PLACE and "line 42, in charge" in second["traceback"]
    assert "hunter2" not in second["traceback"]
    assert first["started_at"] <= first["at"] <= second["at"]


@pytest.mark.usefixtures("failed")
def test_errors_name_the_place_before_the_message_is_dead(visit: Any):
    page = visit(UserRole.READ)
    assert PLACE in text(page, "/errors") and PLACE in text(page, "/errors/f1")
    assert "line 42, in charge" in text(page, "/errors/f1")


def test_errors_name_the_place_of_a_dead_message(visit: Any, queue: Queue):
    queue.enqueue(call("a.b"), mid="m")
    ended(queue, "dead", "Timeout", reason=f"Timeout: 30 s\n\n{TRACE}", place=PLACE)
    page = visit(UserRole.READ)
    assert PLACE in text(page, "/errors")
    assert "line 42, in charge" in text(page, "/errors/f1")


@pytest.mark.usefixtures("failed")
def test_no_page_shows_a_traceback_when_error_texts_are_hidden(visit: Any):
    page = visit(UserRole.READ, hide_errors=True)
    for path in ("/errors", "/errors/f1", "/queues/low/messages/m"):
        shown = text(page, path)
        assert "Timeout" in shown and "pay.py" not in shown and "old.py" not in shown


def test_errors_name_the_place_after_a_successful_retry(visit: Any, queue: Queue):
    queue.enqueue(call("a.b"), mid="m")
    ended(queue, "retry", "Timeout", backoff=0, traceback=TRACE, place=PLACE)
    ended(queue, "done")
    page = visit(UserRole.READ)
    assert PLACE in text(page, "/errors") and PLACE in text(page, "/errors/f1")


def test_errors_name_no_place_when_no_event_has_one(visit: Any, queue: Queue):
    queue.enqueue(call("a.b"), mid="m")
    ended(queue, "retry", "Timeout", backoff=0)
    shown = text(visit(UserRole.READ), "/errors")
    assert "Timeout" in shown and "pay.py" not in shown
