"""The first page, the list of queues and a queue's page: figures, order, charts, empty and broken servers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from jobq.errors import UnavailableError
from jobq.jobs.codec import encode
from jobq.queue import presence
from jobq.queue.audit_log import Act, AuditLog
from jobq.queue.queue import Queue
from jobq.schedules.definition import Schedule, encoded
from tests import waiting
from tests.web.test_sampler import run, worker

AWAY = "The server doesn't answer. These figures"


def until(holds: Callable[[], bool]) -> None:
    """Ask ten times a second until it holds: a user may send 30 requests a second."""
    waiting.until(holds, every_s=0.1)


def names(text: str) -> list[str]:
    """The names in the first column of a table, in its order."""
    return re.findall(r'<th scope="row"><a href="[^"]*">([^<]*)<', text)


@pytest.fixture
def filled(client, redis):
    """Queues in each state, and workers, one of them lost."""
    worker(client, queues=["low", "mails"])
    worker(client, "web-7:4711", queues=["mails"], seen_at=client.clock_ms() - 120_000)
    run(Queue("low", client), "done", 3)
    run(Queue("low", client), "dead", 1)
    old = encode("mail.send", enqueued_at=client.clock_ms() - 600_000)
    Queue("mails", client).enqueue(old, mid="m1")
    Queue("orphans", client).enqueue(encode("resize"))
    paused = Queue("halted", client)
    paused.enqueue(encode("resize"))
    paused.admin.pause()
    redis.set("jobq:{broken}:messages", "x")
    redis.sadd("jobq:queues", "broken")


def test_first_page_says_what_needs_a_look(visit, filled):
    text = visit().get("/").text
    assert 'aria-live="polite">1 worker lost, and 3 more findings<' in text
    found = re.findall(r'<div><strong>(?:<a href="([^"]*)">)?([^<]*)', text)
    # The lost worker explains why mails is late.
    assert [name for _, name in found] == ["1 worker lost", "broken", "halted", "orphans"]
    assert found[0][0] == "/workers/web-7:4711"
    assert "no heartbeat for 2 m 0" in text and "No worker serves this queue" in text


def test_first_page_counts_queues_that_fall_behind_when_no_cause_is_known(visit, filled, client):
    presence.forget_worker(client, "web-7:4711")
    text = visit().get("/").text
    assert "2 of 5 queues are falling behind, 1 can&#39;t be read" in text
    found = re.findall(r'<div><strong>(?:<a href="([^"]*)">)?([^<]*)', text)
    assert [name for _, name in found] == ["broken", "halted", "orphans", "mails"]
    assert found[3][0] == "/queues/mails" and re.search(r"has waited 1\d m \d\d s", text)


def test_page_of_a_damaged_queue_says_what_to_do(visit, filled):
    text = visit().get("/queues/broken").text
    assert "figures of this queue can&#39;t be read" in text and "jobq check fsck" in text


def test_queues_come_in_order_of_trouble_or_as_asked(visit, filled, client):
    page = visit()
    assert names(page.get("/queues").text) == ["broken", "halted", "orphans", "mails", "low"]
    assert names(page.get("/queues?sort=name").text) == [
        "broken",
        "halted",
        "low",
        "mails",
        "orphans",
    ]
    assert names(page.get("/queues?f=AI").text) == ["mails"]
    assert "No matching queues" in page.get("/queues?f=nowhere").text
    assert names(page.get("/queues?sort=zzz").text) == names(page.get("/queues").text)
    assert "jobq worker --import MODULE --queues orphans" in page.get("/queues/orphans").text
    assert page.get("/queues/nowhere").status_code == 404
    Queue("new", client).enqueue(encode("resize"))
    assert page.get("/queues/new").status_code == 200


def test_page_of_a_queue_counts_its_attempts_and_draws_them(visit, filled):
    page = visit()

    def shown() -> str:
        return page.get("/queues/low").text

    until(lambda: "+1 in 15 m" in shown())
    text = shown()
    assert "25 % of attempts" in text
    assert text.count('role="img"') >= 3 and '<svg viewBox="0 0 400 180"' in text
    assert 'aria-current="true">15m</a>' in text
    assert 'aria-current="true">6h</a>' in page.get("/queues/low?range=6h").text
    assert "Latest dead" in page.get("/").text and "Timeout: no" in page.get("/").text
    assert "Timeout: no" not in visit(hide_errors=True).get("/").text


def test_empty_server_leads_to_the_first_message(visit):
    page = visit()
    for path in ("/", "/queues"):
        assert "jobq demo" in page.get(path).text


def test_server_away_leaves_the_last_figures_and_says_so(visit, filled, client, monkeypatch):
    page = visit()
    assert "1 worker lost" in page.get("/").text

    def away():
        raise UnavailableError("connection refused")

    monkeypatch.setattr(client, "clock_ms", away)
    until(lambda: AWAY in page.get("/").text)
    assert "1 worker lost" in page.get("/").text
    assert visit().get("/").status_code == 503
    monkeypatch.undo()
    until(lambda: AWAY not in page.get("/").text)


def test_names_of_workers_and_errors_from_anyone_are_escaped(visit, client):
    hostile = "<img src=x onerror=alert(1)>\x1b[2J"
    Queue("low", client).enqueue(encode("resize"))
    presence.put_worker(
        client, hostile, {"queues": [hostile], "lease_ms": 1, "seen_at": 1, "started_at": 1}
    )
    for path in ("/", "/queues", "/queues/low"):
        text = visit().get(path).text
        assert "<img" not in text and "\x1b" not in text


def test_pages_say_who_paused_a_queue(visit, client, filled):
    log = AuditLog(client)
    log.append(Act("anna", "operate", "pause", "halted"), "done")
    page = visit()
    assert "Paused by anna" in page.get("/queues/halted").text
    text = page.get("/").text
    assert "Latest actions" in text and ">anna</td>" in text


def test_pages_say_when_a_pause_ends(visit, client, filled):
    Queue("halted", client).admin.pause("1h")
    text = visit().get("/queues/halted").text
    assert "The pause ends" in text and "Paused for another 1 h" in text


def test_overview_says_so_when_the_audit_log_cannot_be_read(visit, client, redis, filled):
    redis.set("jobq:audit", "not a stream")
    text = visit().get("/").text
    assert "The latest actions can" in text and "WRONGTYPE" in text
    assert visit().get("/queues/halted").status_code == 200


def test_first_page_names_schedules_that_are_late(visit, client, filled):
    low = Queue("low", client)
    text = encoded(Schedule(name="digest", job="resize", every_ms=60_000))
    low.admin.schedule("add", "digest", text, now=client.clock_ms() - 600_000)
    found = visit().get("/").text
    assert "/schedules/digest" in found and "no worker of low has enqueued it" in found
