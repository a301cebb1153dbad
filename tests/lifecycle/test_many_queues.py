"""A queue that owes nothing costs an idle worker nothing; its due messages are still delivered."""

from __future__ import annotations

import json

import pytest

from jobq.queue import keys
from jobq.queue.queue import Queue
from tests.lifecycle.conftest import until

#: As many as the supervisor looks at with one command.
NAMES = [f"q{number}" for number in range(250)]


def calls(redis, command):
    """How often the server was sent it."""
    return redis.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


@pytest.fixture
def idle(redis, start):
    """A worker of two children and many queues that has looked at each and sleeps."""
    worker = start("--processes", "2", queues=",".join(NAMES))
    until(lambda: redis.info("clients")["blocked_clients"] == 2)
    # Once per queue and child, and once by the supervisor; then it knows that they owe nothing.
    until(lambda: calls(redis, "evalsha") >= 3 * len(NAMES))
    yield worker
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


def test_idle_worker_asks_no_queue_that_owes_nothing(idle, redis):
    def asks_none():
        before = {name: calls(redis, name) for name in ("evalsha", "exists", "blpop")}
        # Scripts also check whether keys exist. Without these checks, each queue was checked once again.
        until(lambda: calls(redis, "exists") > before["exists"] + 1)
        asked = calls(redis, "evalsha") - before["evalsha"]
        return not asked and calls(redis, "blpop") <= before["blpop"] + 2

    # Until then its children may have been on their first round.
    until(asks_none)


def test_woken_child_asks_the_queue_whose_marker_it_got_and_no_other(
    idle, redis, client, send, ledger
):
    before = calls(redis, "evalsha")
    for name in (NAMES[7], NAMES[150], NAMES[-1]):
        send("quick", name, to=Queue(name, client))
        until(lambda: ledger.lines("end", name))  # noqa: B023
    until(lambda: redis.info("clients")["blocked_clients"] == 2)
    # Per job: enqueue, the dequeue, its end with the next dequeue, upkeep by the supervisor; never one per queue.
    assert calls(redis, "evalsha") - before < len(NAMES)


def test_delayed_message_runs_when_it_is_due_though_nobody_asks_meanwhile(
    idle, client, send, ledger
):
    for number, delay in enumerate((0.05, 1.0, 3.0)):
        send("quick", f"late{number}", to=Queue(NAMES[number], client), delay=delay)
    until(lambda: len(ledger.lines("end")) == 3)
    until(lambda: not any(Queue(name, client).admin.counts().messages for name in NAMES[:3]))


def test_message_is_found_when_its_marker_was_lost(idle, redis, client, ledger):
    """Take a marker, like a host that dies just after it was woken."""
    queue = Queue(NAMES[211], client)
    content = json.dumps({"job": "quick", "args": [str(ledger.path), "a"]})
    with redis.pipeline() as together:
        together.hset(keys.key(queue.prefix, "messages"), "a", content)
        together.rpush(keys.key(queue.prefix, "ready"), "a")
        together.execute()
    until(lambda: ledger.lines("end", "a"))


@pytest.fixture(params=["+lmpop", "-lmpop"])
def url(request, server, redis):
    """Return the calls of a user with the right to look for markers, and of a user without it."""
    redis.acl_setuser("w", enabled=True, nopass=True, keys=["*"], commands=["+@all", request.param])
    yield server.url.replace("unix://", "unix://w:any@")
    redis.acl_deluser("w")


def test_queue_that_sleeps_is_woken_while_the_only_child_is_never_idle(
    redis, client, start, send, ledger, url
):
    worker = start("--processes", "1", url=url, queues=",".join(NAMES[:20]))
    busy, other = Queue(NAMES[0], client), Queue(NAMES[13], client)
    until(lambda: redis.info("clients")["blocked_clients"] == 1)
    for number in range(400):
        send("quick", f"b{number}", to=busy)
        if number == 200:
            send("quick", "late", to=other)
    until(lambda: ledger.lines("end", "late"))
    until(lambda: len(ledger.lines("end")) == 401)
    assert worker.stop() == 0
