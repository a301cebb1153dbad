"""Pages of workers: the figures of `jobq workers --json`, and orders that reach the worker."""

from __future__ import annotations

import re
from typing import Any

from jobq.queue import orders, presence
from jobq.queue.audit_log import AuditLog
from jobq.queue.orders import ChildStack, OrderAnswer
from jobq.queue.presence import ChildEntry, RunningJob
from jobq.queue.queue import Queue
from jobq.web import UserRole
from jobq.web.names import encoded
from tests.hostile import HOSTILE

W = encoded("web-7:4711")


def announce(client: Any, name: str = "web-7:4711", ago_ms: int = 0, **more: Any) -> None:
    presence.put_worker(client, name, {
        "host": "web-7", "seen_at": client.clock_ms() - ago_ms, "lease_ms": 15_000, "queues": ["low", "high"],
        "slots": 4, "running": 1, "version": "1.2", "pid": 7, "started_at": 5, **more,
    })  # fmt: skip


def taken(client: Any, name: str = "web-7:4711") -> list[tuple[str, str, int]]:
    return [(one.verb, one.by, one.child) for one in orders.waiting_for(client, name, 7, 5)]


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_list_shows_those_that_need_a_look_first(visit: Any, client: Any) -> None:
    page = visit()
    assert "No workers" in page.get("/workers").text
    announce(client, running=3)
    announce(client, "gone", 600_000)
    announce(client, "resting", quiet=True, version="1.1")
    jobs = (RunningJob("low", "a/b", client.clock_ms() - 600_000),)
    presence.put_running(client, "web-7:4711", [ChildEntry(4712, "working", 120 << 20, 7, jobs)])
    shown = page.get("/workers").text
    names = re.findall(r'<th scope="row"[^>]*><a [^>]*>([^<]+)', shown)
    assert names == ["gone", "resting", "web-7:4711"]
    words = text_of(shown)
    assert "120 MiB" in words and "4 / 8" in words and "Lost 1" in words and "3 / 4" in words
    only = re.findall(r'<th scope="row"[^>]*><a [^>]*>([^<]+)', page.get("/workers?q=1.1").text)
    assert only == ["resting"]
    assert "No worker matches" in page.get("/workers?q=none&state=quiet&page=9&sort=busy").text


def test_running_messages_are_shown_without_slots_when_their_workers_have_ended(
    visit: Any, client: Any
) -> None:
    queue = Queue("low", client)
    queue.enqueue_many([b"{}", b"{}", b"{}"])
    queue.dequeue(2)
    page = visit()
    for path in ("/", "/queues", "/queues/low", "/workers"):
        assert not re.search(r"\d ?/ ?0\b", text_of(page.get(path).text)), path
    assert "Running 2" in text_of(page.get("/").text)
    announce(client)
    assert "Running 2 /4" in text_of(visit().get("/").text)


def test_worker_shows_what_runs_and_where(visit: Any, client: Any) -> None:
    announce(client, jobs=presence.digest_of(["a.b"]))
    presence.put_jobs(client, ["a.b"])
    jobs = (RunningJob("low", "a/b", client.clock_ms() - 600_000),)
    presence.put_running(client, "web-7:4711", [ChildEntry(4712, "working", 120 << 20, 7, jobs)])
    words = text_of(visit().get(f"/workers/{W}").text)
    for one in ("a/b", "10 m ago", "4712", "120 MiB", "web-7", "a.b", "1.2"):
        assert one in words, one
    assert visit().get("/workers/none").status_code == 404


def test_order_reaches_the_worker_and_its_answer_is_shown(visit: Any, client: Any) -> None:
    announce(client)
    page = visit(UserRole.OPERATE)
    reply = page.post(
        f"/workers/{W}/orders", data={"verb": "dump", "child": "4712"}, follow_redirects=False
    )
    assert reply.status_code == 303
    assert "Command sent" in page.get(reply.headers["location"]).text
    [order] = orders.waiting_for(client, "web-7:4711", 7, 5)
    assert (order.verb, order.by, order.child) == ("dump", "anna", 4712)
    stack = ChildStack(4712, (("low", "m"),), "Thread 0x1\n  in <b>gated</b>\x1b")
    answer = OrderAnswer("web-7:4711", "dump", "done", "stacks of 1 child", 5, (stack,))
    orders.put_answer(client, order.order_id, answer)
    shown = page.get(reply.headers["location"]).text
    assert "Thread 0x1\n  in &lt;b&gt;gated&lt;/b&gt;\\x1b" in shown
    announce(client, "other")
    names = ["web-7:4711", "other", "none"]
    reply = page.post("/workers/orders", data={"verb": "quiet", "worker": names})
    assert "sent to 2 workers; 1 is lost and can't receive the command" in reply.text
    assert taken(client) == taken(client, "other") == [("quiet", "anna", 0)]


def test_worker_ends_only_by_an_admin_who_types_its_name(visit: Any, client: Any) -> None:
    announce(client)
    page = visit(UserRole.ADMIN)
    assert "can't be undone" in page.get(f"/workers/{W}/end?verb=drain").text
    for data in ({"verb": "drain"}, {"verb": "drain", "typed": "web"}):
        assert page.post(f"/workers/{W}/end", data=data).status_code == 409
    typed = {"typed": "web-7:4711"}
    assert page.post(f"/workers/{W}/end", data={"verb": "quiet", **typed}).status_code == 400
    assert page.post(f"/workers/{W}/orders", data={"verb": "drain", **typed}).status_code == 400
    operator = visit(UserRole.OPERATE)
    assert operator.post(f"/workers/{W}/end", data={"verb": "drain", **typed}).status_code == 403
    assert taken(client) == []
    assert page.post(f"/workers/{W}/end", data={"verb": "drain", **typed}).status_code == 200
    assert taken(client) == [("drain", "anna", 0)]
    newest = AuditLog(client).page(limit=2)
    assert [(one.who, one.role, one.verb, one.phase) for one in newest] == [
        ("anna", "admin", "control", "done"),
        ("anna", "admin", "control", "intent"),
    ]
    assert newest[0].filter == "control:drain worker:web-7:4711"


def test_orders_that_no_worker_would_read_are_refused_in_words(visit: Any, client: Any) -> None:
    announce(client, ago_ms=600_000)
    page = visit()
    shown = page.get(f"/workers/{W}").text
    assert "Last seen 10 m" in shown and "/orders" not in shown
    reply = page.post(f"/workers/{W}/orders", data={"verb": "quiet"})
    assert reply.status_code == 409 and "is lost" in reply.text
    announce(client)
    assert "Drain…" in page.get(f"/workers/{W}").text
    readers = visit(UserRole.READ)
    assert "Drain…" not in readers.get(f"/workers/{W}").text
    assert readers.post("/workers/orders", data={"verb": "quiet"}).status_code == 403


def test_hostile_entries_spoil_their_rows_alone(visit: Any, client: Any, redis: Any) -> None:
    page = visit()
    for number, raw in enumerate(HOSTILE):
        announce(client, f"good{number}", jobs=f"d{number}")
        redis.hset("jobq:workers", mapping={f"<b>bad{number}\x1b": raw, b"\xff%d" % number: raw})
        redis.hset("jobq:running", mapping={f"good{number}": raw})
        redis.hset("jobq:jobs", f"d{number}", raw)
    one = f"/workers/{encoded('<b>bad2' + chr(27))}"
    for path in ("/workers", one, *(f"/workers/good{number}" for number in range(len(HOSTILE)))):
        reply = page.get(path)
        assert reply.status_code == 200, path
        assert "<b>bad" not in reply.text and "\x1b" not in reply.text
    facts = dict.fromkeys(("host", "version", "jobs"), "<i>'\"")
    announce(client, "<i>'\"", queues=["<i>'\""], **facts)
    assert (
        "<i>" not in page.get("/workers").text + page.get(f"/workers/{encoded(facts['host'])}").text
    )


def test_hash_of_another_type_leaves_the_pages(visit: Any, client: Any, redis: Any) -> None:
    page = visit()
    announce(client)
    redis.set("jobq:running", "another type")
    shown = page.get("/workers").text
    assert "Some workers can't be read" in shown and "web-7:4711" in shown
    redis.delete("jobq:workers")
    redis.set("jobq:workers", "another type")
    assert "WRONGTYPE" in page.get("/workers").text and page.get("/workers").status_code == 200
    redis.sadd("jobq:queues", "low")
    redis.set("jobq:{low}:ready", "another type")
    assert "can't be read" in page.get("/queues/low/clear").text
