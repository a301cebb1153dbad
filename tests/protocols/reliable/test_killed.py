"""Real processes, killed while they wait, while they hold, and in between: no message is lost."""

from __future__ import annotations

import random
import signal

import pytest
from msgspec import structs

from jobq.protocols.reliable import waiting as waits
from tests.protocols.reliable.conftest import until

WAITER = "say('in')\nwhile True:\n    for one in rq.pop(1, -1, 'q'): say(one.content.decode())\n"
CONSUMER = (
    "say('in')\n"
    "while True:\n"
    "    for one in rq.pop(3, 500, 'q', recover_after=0.2, token=str(os.getpid())) or ():\n"
    "        if rq.ack('q', one.id, token=str(os.getpid())): say(one.content.decode())\n"
)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Lost tickets are looked for often."""
    monkeypatch.setattr(waits, "TICK_S", 0.05)


def test_message_goes_to_the_next_when_a_blocked_client_was_killed_before_the_push(
    rq, run, blocked
):
    first = run(WAITER)
    first.stdout.readline()
    blocked(1)
    second = run(WAITER)
    second.stdout.readline()
    blocked(2)
    first.kill()
    first.wait()
    blocked(1)
    rq.push("q", "a")
    assert second.stdout.readline() == "a\n"


def test_message_goes_to_the_next_when_a_client_was_killed_with_its_ticket(rq, run, blocked):
    """Stopped when the ticket comes, so that it never comes for the message."""
    first = run(WAITER)
    first.stdout.readline()
    blocked(1)
    first.send_signal(signal.SIGSTOP)
    rq.push("q", "a")
    assert rq.info("q").promised == 1
    first.kill()
    first.wait()
    [popped] = rq.pop(1, 30_000, "q")
    assert (popped.content, popped.deliveries) == (b"a", 1)


def test_message_of_a_client_killed_after_its_pop_is_recovered(rq, run, blocked):
    first = run(WAITER)
    first.stdout.readline()
    blocked(1)
    rq.push("q", "a")
    assert first.stdout.readline() == "a\n"
    first.kill()
    first.wait()
    [recovered] = rq.recover("q", 1, 100, block=30_000)
    assert (recovered.content, recovered.deliveries) == (b"a", 2)


def test_every_message_is_acknowledged_while_consumers_are_killed_again_and_again(rq, run, redis):
    """At least once: everything pushed is acknowledged in the end, and exactly once each."""
    luck = random.Random(4)
    consumers = [run(CONSUMER) for _ in range(3)]
    for one in consumers:
        one.stdout.readline()
    pushed = 0
    for _ in range(8):
        for _ in range(luck.randrange(1, 12)):
            pushed += len(rq.push("q", *map(str, range(pushed, pushed + luck.randrange(1, 6)))))
        victim = consumers.pop(luck.randrange(3))
        victim.kill()
        victim.wait()
        consumers.append(run(CONSUMER))
        consumers[-1].stdout.readline()
    until(lambda: structs.astuple(rq.info("q"))[1:5] == (0, 0, 0, 0), f"left: {rq.info('q')}")
    lasting = [key for key in redis.keys("reliable:*") if redis.ttl(key) == -1]
    assert lasting == [b"reliable:{q}:meta"]
    assert int(redis.hlen("reliable:{q}:messages")) == 0


def test_all_waiting_clients_killed_leave_every_message_to_the_next(rq, run, blocked):
    waiters = [run(WAITER) for _ in range(4)]
    for one in waiters:
        one.stdout.readline()
    blocked(4)
    for one in waiters:
        one.send_signal(signal.SIGSTOP)
    ids = rq.push("q", *"abcdef")
    for one in waiters:
        one.kill()
        one.wait()
    popped = []
    while len(popped) < 6:
        popped += rq.pop(6, 30_000, "q")
    assert sorted(one.id for one in popped) == ids
    assert {one.deliveries for one in popped} == {1}
