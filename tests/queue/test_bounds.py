"""Work per call: at most a constant and so many commands per message asked for, whatever waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from jobq.client.numbered_calls import Caller
from jobq.errors import ConfigError
from jobq.queue.aio import aenqueue
from jobq.queue.fsck import PARTS
from jobq.queue.types import Ending

#: What is checked here is the same on each server.
pytestmark = pytest.mark.one_server

UPKEEP = 100


def fill(queue, at, size):
    """A backlog in every place: expired and finished in the circle, due and not due, ready."""
    for part, delay in (("held", None), ("due", 1), ("later", 3_600), ("ready", None)):
        queue.enqueue_many(((f"{part}{i}", b"x") for i in range(size)), delay=delay, now=at(0))
        while part == "held":
            messages = queue.dequeue(1_000, lease=1, now=at(0)).messages
            if not messages:
                break
            done = [Ending(mid=m.mid, token=m.token) for m in messages[::2]]
            queue.finish(done, now=at(0))


@pytest.fixture(params=[10, 1_000, 20_000])
def backlog(request, queue, at):
    fill(queue, at, request.param)
    return request.param


def handing_out(n: int) -> int:
    """A hand-out of n, and the upkeep of every tenth one."""
    return 40 + n + 24 * UPKEEP


def mids(stem: str, n: int) -> list[tuple[str, bytes]]:
    return [(f"{stem}{i}", b"") for i in range(n)]


# verb -> (commands at most for n messages, the call)
VERBS: dict[str, tuple[Callable[[int], int], Callable[[Any, int, int], Any]]] = {
    "enqueue": (lambda n: 20 + 6 * n, lambda q, n, now: q.enqueue_many(mids("new", n), now=now)),
    "enqueue, exists": (
        lambda n: 28 + 8 * n,
        lambda q, n, now: q.enqueue_many(mids("ready", n), now=now),
    ),
    "enqueue, shortened": (
        lambda n: 28 + 16 * n,
        lambda q, n, now: q.enqueue_many(mids("later", n), on_conflict="replace", delay=0, now=now),
    ),
    "dequeue": (handing_out, lambda q, n, now: q.dequeue(n, now=now)),
    "finish and dequeue": (handing_out, lambda q, n, now: q.finish([], dequeue=n, now=now)),
    "collect": (lambda n: 26 + 24 * n, lambda q, n, now: q.admin.collect(n, now=now)),
    "cancel": (
        lambda n: 22 + 24 * n,
        lambda q, n, now: q.cancel(*(mid for mid, _ in mids("ready", n)), now=now),
    ),
    "status": (lambda n: 20, lambda q, n, now: q.status("ready0", now=now)),
    "counts": (lambda n: 30, lambda q, n, now: q.admin.counts()),
    "content": (lambda n: 20 + 14 * n, lambda q, n, now: q.admin.content("circle", 0, n, now=now)),
    "pause": (lambda n: 7, lambda q, n, now: q.admin.pause()),
    "resume": (lambda n: 5, lambda q, n, now: q.admin.resume()),
    "clear": (lambda n: 40, lambda q, n, now: q.admin.clear(now=now)),
}


def test_commands_of_a_call_do_not_grow_with_the_backlog(queue, backlog, at, commands):
    over = {}
    for verb, (bound, call) in VERBS.items():
        for n in (1, 10, 100):
            ran = commands(lambda call=call, n=n: call(queue, n, at(1_000)))
            if ran > bound(n):
                over[verb, n] = (ran, bound(n))
    assert over == {}


def test_calls_about_held_messages_cost_by_the_message(queue, backlog, at, commands):
    messages = queue.dequeue(10, lease=60, now=at(500)).messages
    holds = [(m.mid, m.token) for m in messages]

    assert commands(lambda: queue.extend(holds, now=at(600))) <= 20 + 2 * 10
    assert commands(lambda: queue.release(holds[:5], now=at(700))) <= 20 + 16 * 5
    outcomes = ["done", "retry", "dead", "crashed", "snooze"]
    endings = [
        Ending(mid=m.mid, token=m.token, outcome=outcome, backoff=0.01)
        for m, outcome in zip(messages[5:], outcomes, strict=True)
    ]
    assert commands(lambda: queue.finish(endings, now=at(800))) <= 20 + 24 * 5


def test_fsck_looks_at_one_stretch_at_a_time(queue, backlog, commands):
    for stretch in PARTS:
        ran = commands(
            lambda stretch=stretch: queue.scripts["fsck"].run(
                {"part": stretch, "cursor": 0, "limit": 10}
            )
        )
        # HSCAN may return a whole small hash in spite of COUNT.
        assert ran <= 40 + 10 * max(10, min(backlog, 512))


def test_dead_revive_and_purge_cost_by_the_message(queue, at, commands):
    queue.enqueue_many(mids("m", 1_000), now=at(0))
    messages = queue.dequeue(1_000, now=at(0)).messages
    queue.finish([Ending(mid=m.mid, token=m.token, outcome="dead") for m in messages], now=at(1))

    assert commands(lambda: queue.admin.dead(0, 10)) <= 5 + 2 * 10
    ids = [d.dead_id for d in queue.admin.dead(0, 20)]
    assert commands(lambda: queue.admin.revive(*ids[:10], now=at(2))) <= 20 + 16 * 10
    assert commands(lambda: queue.admin.purge(*ids[10:])) <= 5 + 4 * 10


def test_what_operators_undo_costs_by_the_message(queue, at, commands):
    queue.enqueue_many(mids("m", 1_000), now=at(0))
    bin_, some = queue.admin.bin("op"), [f"m{i}" for i in range(100, 110)]

    assert commands(lambda: bin_.take_out(*((one, "") for one in some), now=at(1))) <= 40 + 32 * 10
    assert commands(lambda: bin_.put_back("waiting", *some, now=at(2))) <= 40 + 12 * 10
    later = [(one, "", at(9_000)) for one in some]
    assert commands(lambda: queue.admin.reschedule(later, now=at(3))) <= 25 + 12 * 10
    assert commands(lambda: queue.admin.run_now(*some, now=at(4))) <= 25 + 12 * 10


def test_stale_copies_met_in_ready_do_not_make_a_dequeue_long(queue, at, commands):
    queue.enqueue_many(mids("m", 5_000), now=at(0))
    for first in range(0, 4_990, 10):
        queue.cancel(*(f"m{i}" for i in range(first, first + 10)), now=at(1))

    got: list[Any] = []
    calls = 0
    while not got:
        assert commands(lambda: got.extend(queue.dequeue(100, now=at(2)).messages)) <= 60
        calls += 1

    assert [m.mid for m in got] == [f"m{i}" for i in range(4_990, 5_000)]
    assert calls <= 50


def test_reply_of_one_dequeue_stays_under_a_few_megabytes(queue, at):
    queue.enqueue_many(((f"m{i}", bytes(1_000_000)) for i in range(12)), now=at(0))
    sizes = []
    while messages := queue.dequeue(12, now=at(1)).messages:
        sizes.append(sum(len(m.content) for m in messages))
    assert sum(sizes) == 12_000_000
    assert max(sizes) <= 4 * 1024 * 1024


def test_dequeue_reads_no_long_contents_that_it_leaves(queue, redis, at):
    queue.enqueue_many(((f"m{i}", bytes(1_000_000)) for i in range(12)), now=at(0))
    with redis.monitor() as watching:
        handed = queue.dequeue(12, now=at(1)).messages
        redis.echo("over")
        ran = []
        while "ECHO" not in (command := watching.next_command()["command"]):
            ran.append(command.split())

    [read] = [words[2:] for words in ran if words[:2] == ["HMGET", f"{queue.prefix}messages"]]
    assert read == [m.mid for m in handed]


def test_enqueue_at_once_is_refused_when_it_is_too_much_for_a_call(queue, facts):
    with pytest.raises(ConfigError, match="251 messages are too many"):
        queue.enqueue_in_one_call([b"x"] * 251, Caller())
    assert facts() == {}


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 1, "at": 1}, {"at": True}, {"at": float("inf")}, {"delay": float("inf")}, {"on_conflict": "raise"},
        {"until": "1h", "throttle": 5}, {"until": "never"}, {"debounce_max": 5},
        {"delay": 1, "until": 3, "debounce_max": 5}, {"ordered": True},
    ],
    ids=str,
)  # fmt: skip
def test_enqueue_of_one_or_many_is_refused_when_options_contradict(queue, redis, options):
    for enqueue in (
        lambda: queue.enqueue(b"v", mid="m", **options),
        lambda: queue.enqueue_many([("m", b"v")], **options),
        lambda: asyncio.run(aenqueue(queue, b"v", mid="m", **options)),
    ):
        with pytest.raises(ConfigError):
            enqueue()
    assert not redis.exists(f"{queue.prefix}messages")
