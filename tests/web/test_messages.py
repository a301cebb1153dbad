"""Pages of messages on a real server: lists, one message with why it waits, events, the find box."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.events import attempt_record
from jobq.jobs.signing import Seal
from jobq.observe.facts import Collector
from jobq.observe.why import why
from jobq.queue import presence
from jobq.queue.presence import ChildEntry, RunningJob
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Status
from jobq.web import UserRole
from jobq.web.messages import state_of
from tests.web.test_search import call, filled, settings


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return this process's later requests to servers, an item for each round trip."""
    made: list[Any] = []
    real = Client.perform

    def counted(self: Client, key: str, state: Any, by: Any = None) -> Any:
        made.append(state.command)
        return real(self, key, state, by)

    monkeypatch.setattr(Client, "perform", counted)
    return made


def words(html: str) -> str:
    """The text of a page, on one line."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def announce(client: Client, name: str, **more: Any) -> None:
    """Let a worker appear that serves the queue low and knows a.b."""
    jobs = presence.digest_of(["a.b"])
    presence.put_jobs(client, ["a.b"])
    presence.put_worker(client, name, {
        "seen_at": client.clock_ms(), "started_at": 1, "lease_ms": 15_000, "queues": ["low"], "slots": 1,
        "version": "1.2", "jobs": jobs, **more,
    })  # fmt: skip


def ended(queue: Queue, outcome: Any, error: str = "", *, place: str = "", **more: Any) -> None:
    """Hand one message out and end its attempt."""
    [message] = queue.dequeue(1).messages
    record = attempt_record(
        "a.b",
        message.attempt,
        0,
        2_500_000,
        1_000_000,
        65_536,
        "web-7:4711",
        error,
        "f1",
        0,
        "ab" * 16,
        place,
    )
    queue.finish(
        [Ending(mid=message.mid, token=message.token, outcome=outcome, record=record, **more)]
    )


def _running(queue: Queue, client: Client, redis: Any) -> None:
    queue.dequeue(1)
    job = RunningJob("low", "m", client.clock_ms() - 3_000)
    presence.put_running(client, "web-7:4711", [ChildEntry(7, "working", 0, 0, (job,))])


def _lease(queue: Queue, client: Client, redis: Any) -> None:
    queue.dequeue(1, lease=1)
    redis.hset("jobq:{low}:locks", "m", 1)


def _upkeep_late(queue: Queue, client: Client, redis: Any) -> None:
    queue.cancel("m")
    queue.enqueue(call("a.b"), mid="m", delay=60)
    redis.hset("jobq:{low}:backoffs", "m", client.clock_ms() - 9_000)


def _server_full(queue: Queue, client: Client, redis: Any) -> None:
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)


#: Ways to bring an enqueued message into a state.
STEPS: dict[str, Callable[[Queue, Client, Any], object]] = {
    "paused": lambda queue, *_: queue.admin.pause(),
    "retrying": lambda queue, *_: ended(queue, "retry", "Timeout: 30 s", backoff=60),
    "limited": lambda queue, *_: ended(queue, "snooze", "limit smtp 20/20", backoff=60),
    "snoozed": lambda queue, *_: ended(queue, "snooze", backoff=60),
    "unknown_backoff": lambda queue, *_: ended(queue, "unknown", backoff=60),
    "done": lambda queue, *_: ended(queue, "done"),
    "deduped": lambda queue, *_: ended(queue, "done"),
    "dead": lambda queue, *_: ended(queue, "dead", "ValueError: x", reason="ValueError: x\n\nTraceback: here"),
    "cancelled": lambda queue, *_: queue.cancel("m"),
    "handed_out": lambda queue, *_: queue.dequeue(1),
    "running": _running, "lease": _lease, "upkeep_late": _upkeep_late, "server_full": _server_full,
}  # fmt: skip


def waits(queue: Queue, client: Client, redis: Any, name: str) -> None:
    """Bring message `m` of queue low into a state; each has the name of its first reason."""
    if name != "no_worker":
        busy = int(name in ("busy", "running"))
        announce(client, "web-7:4711", quiet=name == "all_quiet", running=busy)
    if name == "not_found":
        return
    content = call("a.unknown" if name == "unknown_job" else "a.b")
    later = {"delayed": {"delay": 60}, "deduped": {"until": 60}}.get(name, {})
    queue.enqueue(content, mid="m", **later)
    STEPS.get(name, lambda *_: None)(queue, client, redis)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("not_found", "queue low does not have this message"), ("done", "done"), ("cancelled", "cancelled"),
        ("dead", "dead for"),
        ("server_full", "memory is full"), ("paused", "waiting: the queue is paused"),
        ("delayed", "it was enqueued with a delay"),
        ("retrying", "attempt 1 failed: Timeout: 30 s"), ("deduped", "its id is rejected for another"),
        ("snoozed", "the job asked to run later"), ("unknown_backoff", "the worker that received it does not know its "
                                                                       "job"),
        ("no_worker", "no worker serves queue low"), ("all_quiet", "are quiet or stopping: web-7:4711"),
        ("unknown_job", "no worker of queue low knows the job a.unknown"), ("limited", "limit smtp 20/20"),
        ("upkeep_late", "the next dequeue makes the message ready"),
        ("running", "in web-7:4711, child 7, attempt 1"),
        ("handed_out", "but not reported as running yet"), ("lease", "the next dequeue recovers it"),
        ("busy", "it comes next; 1 of 1 slots are busy"), ("next", "next in line"),
    ],
)  # fmt: skip
def test_page_says_first_why_a_message_waits(
    queue: Queue, client: Client, redis: Any, visit: Any, name: str, says: str
):
    page = visit()
    try:
        waits(queue, client, redis, name)
        reply = page.get("/queues/low/messages/m")
        reasons = why(Collector(queue).collect("m"))
    finally:
        redis.config_set("maxmemory", 0)
    assert reply.status_code == (404 if name == "not_found" else 200)
    codes = re.findall(r'data-code="(\w+)"', reply.text)
    assert codes == [reason.code for reason in reasons]
    assert codes[0] == name
    assert says in words(reply.text)


@pytest.mark.parametrize(
    ("status", "shown"),
    [(Status("queued", lock_expires_at=1), "retrying, lease ended"),
     (Status("queued-with-backoff", attempts=1), "retrying"), (Status("queued", attempts=1), "retrying"),
     (Status("queued-with-backoff"), "scheduled"), (Status("queued"), "queued"), (Status("dead"), "failed"),
     (Status("nil"), "unknown")],
)  # fmt: skip
def test_state_tells_what_is_tried_again_from_what_is_new(status: Status, shown: str):
    assert state_of(status).word == shown


@pytest.mark.parametrize(
    ("stored", "shown"),
    [(b'{"end":"cancelled","attempt":0,"at":1}', "cancelled"), (b'{"error":"e","type":"expired"}', "expired"),
     (b'{"error":"e"}', "failed"), (b'{"ok":1}', "done"), (b"\xff{", "done"), (b"[" * 3_000, "done")],
)  # fmt: skip
def test_message_shows_its_remembered_end_when_it_is_over(
    queue: Queue, visit: Any, stored: bytes, shown: str
):
    queue.enqueue(call("a.b"), mid="m")
    [message] = queue.dequeue(1).messages
    queue.finish(
        [Ending(mid="m", token=message.token, backoff=60_000, result=stored, result_ttl=60)]
    )
    text = visit().get("/queues/low/messages/m").text
    assert re.findall(r'<span class="state \w+"><span[^>]*>[^<]*</span>(\w+)', text)[0] == shown


def test_message_shows_attempts_arguments_and_result(queue: Queue, client: Client, visit: Any):
    queue.enqueue(
        call(
            "a.b",
            "x@y.example",
            {"password": "hunter2", "list": [1, None]},
            deep={"a": {"b": True}},
        ),
        mid="a/b c",
    )
    ended(queue, "retry", "Timeout: 30 s, token=abcdef", backoff=0)
    ended(queue, "retry", "Timeout: 31 s", backoff=0)
    ended(queue, "done", result=b'{"ok":{"width":17}}', result_ttl=60)
    queue.enqueue(call("a.b"), mid="a/b c")
    page = visit(trace_url="https://trace.example/{trace_id}")
    text = page.get("/queues/low/messages/a~2Fb%20c").text
    shown = words(text)
    for expected in (
        "attempt 1: retry",
        "2.5 s",
        "64.0 MiB",
        "Timeout: 30 s, token=[hidden]",
        "width 17",
        "web-7:4711",
        "Error or result",
    ):
        assert expected in shown.replace(" :", ":")
    assert f"https://trace.example/{'ab' * 16}" in text
    assert "hunter2" not in text and "abcdef" not in text
    assert text.count('<a href="#result">Result</a>') == 1
    queue.cancel("a/b c")
    queue.enqueue(call("a.b", "x@y.example", {"password": "hunter2", "list": [1, None]}), mid="m")
    text = words(page.get("/queues/low/messages/m").text)
    assert (
        "0 : x@y.example" in text.replace("0 x", "0 : x")
        and "hunter2" not in text
        and "hidden" in text
    )
    reader = words(visit(UserRole.READ, arguments=False).get("/queues/low/messages/m").text)
    assert "x@y.example" not in reader and "you need the 'arguments' right" in reader


def test_finished_message_shows_the_job_and_time_of_its_events(queue: Queue, visit: Any):
    queue.enqueue(call("a.b"), mid="m")
    for outcome, more in (("retry", {"backoff": 0}), ("retry", {"backoff": 0}), ("done", {})):
        [message] = queue.dequeue(1).messages
        record = attempt_record("a.b", message.attempt, 1_700_000_000_000, 0, 0, 0, "web-7:4711")
        queue.finish(
            [Ending(mid=message.mid, token=message.token, outcome=outcome, record=record, **more)]
        )
    queue.admin.collect()
    page = visit()
    text = page.get("/queues/low/messages/m").text
    assert "<dt>Job</dt><dd>a.b</dd>" in text
    assert re.search(r"<dt>Enqueued</dt><dd><time[^>]*2023-11-14", text)
    assert "The content was deleted when the message finished" in text
    unknown = page.get("/queues/low/messages/none").text
    assert "have the message" in unknown and "the message finished" not in unknown


def test_dead_message_shows_its_error_as_far_as_the_settings_allow(queue: Queue, visit: Any):
    queue.enqueue(call("a.b"), mid="m")
    ended(queue, "dead", "ValueError: secret", reason="ValueError: no route\n\nTraceback: line 1")
    text = visit().get("/queues/low/messages/m").text
    assert "Traceback: line 1" in text and "failed (dead letter)" in words(text)
    hidden = visit(hide_errors=True).get("/queues/low/messages/m").text
    assert "ValueError" in hidden and "no route" not in hidden


def test_lists_of_a_queue_show_each_place_and_page(queue: Queue, client: Client, visit: Any):
    filled(queue)
    announce(client, "web-7:4711", running=1)
    job = RunningJob("low", "run10", client.clock_ms() - 10_800_000)
    presence.put_running(client, "web-7:4711", [ChildEntry(7, "working", 0, 0, (job,))])
    page = visit()
    for place, mids in {"ready": 10, "due": 5, "running": 5, "done": 5, "dead": 5, "": 30}.items():
        reply = page.get(f"/queues/low/messages?place={place}" if place else "/queues/low/messages")
        assert reply.status_code == 200
        assert len(re.findall(r'href="/queues/low/messages/[^"?]+"', reply.text)) == mids
    running = words(page.get("/queues/low/messages?place=running").text)
    assert "web-7:4711" in running and "3 h 00 m" in running and "not reported yet" in running
    assert "Timeout: run05 at 5 s" in words(page.get("/queues/low/messages?place=dead").text)
    assert "8 found" in words(page.get("/queues/low/messages?f=mid:*1*").text)
    assert "No running messages" not in running
    assert page.get("/queues/low/messages?place=moon").status_code == 404
    assert page.get("/queues/never/messages").status_code == 404
    for name in ("messages", "events"):
        assert page.get(f"/queues/low/{name}?cursor=x").status_code == 400


def test_long_list_goes_on_where_it_stopped(queue: Queue, visit: Any):
    queue.enqueue_many([call("a.b")] * 250)
    page, address, mids = visit(), "/queues/low/messages?place=ready&f=job%3Aa.*", list[str]()
    for _ in range(9):
        text = page.get(address).text
        mids += re.findall(r'href="(/queues/low/messages/[^"?]+)"', text)
        following = re.search(r'class="button" href="([^"]+)" rel="next"', text)
        if following is None:
            break
        address = following[1].replace("&amp;", "&")
    assert len(mids) == len(set(mids)) == 250


def test_wrong_filter_is_explained_and_lists_nothing(queue: Queue, visit: Any):
    filled(queue)
    text = words(visit().get("/queues/low/messages?f=colour%3Ared").text)
    assert "column 1: &#39;colour&#39; is not a key of this list" in text and "run10" not in text
    reader = visit(UserRole.READ, arguments=False)
    assert "right, which this login lacks" in reader.get("/queues/low/messages?f=arg.0%3A1").text


def test_events_page_lists_what_happened(queue: Queue, visit: Any):
    filled(queue)
    text = words(visit().get("/queues/low/events?f=kind%3Adead").text)
    assert "run05" in text and "run04" not in text
    assert "The filter can't be read" in visit().get("/queues/low/events?f=due%3A%3E1s").text


def test_find_box_leads_to_messages_queues_and_filters(client: Client, queue: Queue, visit: Any):
    page = visit()

    def found(text: str) -> str:
        reply = page.get("/find", params={"q": text}, follow_redirects=False)
        return reply.headers.get("location", "") or words(reply.text)

    assert "Nothing found for m" in found("m")
    queue.enqueue(call("a.b"), mid="job:m")
    assert found("job:m") == "/queues/low/messages/job:m"
    Queue("high", client).enqueue(call("a.b"), mid="job:m")
    assert "high" in found("job:m") and "low" in found("job:m")
    assert found("low").startswith("/queues/low")
    assert found("job:a.*") == "/messages?f=job%3Aa.%2A"
    assert "Nothing found for x" in found("x" * 400) and "Enter a search" in found("")
    assert "job:m" in words(page.get("/messages?f=job%3Aa.*").text)
    queue.cancel("job:m")
    assert found("job:m") == "/queues/high/messages/job:m"


def test_key_of_another_type_is_named_and_the_rest_is_shown(queue: Queue, redis: Any, visit: Any):
    queue.enqueue(call("a.b"), mid="m")
    for name in ("ready", "events", "dead"):
        redis.delete(f"jobq:{{low}}:{name}")
        redis.set(f"jobq:{{low}}:{name}", "another type")
    reply = visit().get("/queues/low/messages/m")
    assert reply.status_code == 200 and "can't be read" in reply.text
    assert "a.b" in visit().get("/queues/low/messages?place=due").text or reply.text
    redis.delete("jobq:{low}:messages")
    redis.set("jobq:{low}:messages", "another type")
    assert visit().get("/queues/low/messages/m").status_code == 500


def test_sealed_call_is_named_by_its_key(client: Client, queue: Queue, visit: Any):
    sealed = Seal(settings("encrypt")).close_call("low", "m", json.dumps({"job": "a.b"}).encode())
    queue.enqueue(sealed, mid="m")
    assert (
        "encrypted, key 2026-11; this process has no keys"
        in visit().get("/queues/low/messages/m").text
    )
    assert "encrypted, key 2026-11" in visit(arguments=False).get("/queues/low/messages").text


def test_log_is_shown_and_what_a_job_hides_is_not(
    queue: Queue, client: Client, redis: Any, visit: Any
):
    presence.put_redactions(client, {"a.b": ["to", "1"]}, may_replace=True)
    queue.enqueue(call("a.b", "seen", "hunter1", to="hunter2"), mid="m")
    ended(queue, "retry", "Timeout", backoff=60)
    queue.store_log("m", 1, b"began\npassword=hunter3 <x>\n", 60)
    text = visit().get("/queues/low/messages/m").text
    assert "seen" in text and "began" in text and "password=[hidden] &lt;x&gt;" in text
    assert "hunter" not in text
    assert "No messages match" in visit().get("/queues/low/messages?f=arg.to%3A*").text
    assert "began" not in visit(arguments=False).get("/queues/low/messages/m").text
    redis.delete("jobq:redact")
    redis.set("jobq:redact", "another type")
    assert "seen" not in visit().get("/queues/low/messages/m").text


def test_page_of_a_message_makes_three_round_trips_at_most(
    visit: Any, queue: Queue, client: Client, redis: Any, round_trips: list[Any]
):
    page = visit(UserRole.READ)
    queue.enqueue(call("a.b"), mid="first")
    queue.enqueue(call("a.b"), mid="m", key="acme")
    announce(client, "w", running=1)
    pipe = redis.pipeline()
    for n in range(600):
        pipe.xadd("jobq:{low}:events", {"1": f"retry\x1fm\x1f5\x1fa.b\x1f{n}"})
    pipe.execute()
    [one] = queue.dequeue(1).messages
    queue.store_log(one.mid, 1, b"it logged this", 60)
    assert (
        page.get("/queues/low/messages/m").status_code == 200
    )  # shared data of all pages is read now
    for mid in ("m", "first"):
        counts = []
        for _ in range(5):  # shared data of all pages is read again every few seconds
            round_trips.clear()
            shown = page.get(f"/queues/low/messages/{mid}").text
            counts.append(len(round_trips))
        assert min(counts) <= 3, counts
        assert ("it logged this" in shown) == (mid == one.mid)
    redis.script_flush()
    assert page.get("/queues/low/messages/m").status_code == 200
