"""Unique jobs, throttles and debounces: each spelling against a real server, by every way to enqueue."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from jobq.client.numbered_calls import Caller
from jobq.errors import CodecError, ConfigError, DuplicateError
from jobq.jobs.codec import decode
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry, job
from jobq.queue.types import Ending


@pytest.fixture
def declare(registry: Registry, client: Any) -> Any:
    """declare(**options): a job `send(customer, text="hi")` on the queue low."""

    def made(**options: Any) -> Job[..., Any]:
        def send(customer: int, text: str = "hi") -> str:
            return f"{customer}: {text}"

        return job(name="send", registry=Registry(), queue="low", **options)(send)

    return made


@pytest.fixture
def take(queue: Any) -> Any:
    """take(): start the next message; its content's arguments, and a function that ends it."""

    def taken(now: int | None = None) -> Any:
        messages = queue.dequeue(now=now).messages
        if not messages:
            return None
        [message] = messages

        def end(outcome: Any = "done", **more: Any) -> str:
            ending = Ending(mid=message.mid, token=message.token, outcome=outcome, **more)
            return str(queue.finish([ending], now=now).replies[0])

        return message, end

    return taken


@pytest.fixture
def at() -> Any:
    return lambda ms: 1_700_000_000_000 + ms


def actions(*receipts: Any) -> list[str]:
    return [receipt.action for receipt in receipts]


def test_call_is_refused_while_one_like_it_lives_and_added_again_once_it_is_done(declare, take):
    send = declare(unique=True)
    first = send.enqueue(7)
    assert actions(send.enqueue(7, "hi"), send.enqueue(customer=7), send.enqueue(8)) == [
        "exists", "exists", "added",
    ]  # fmt: skip
    assert first.mid == send.unique_mid(7) == send.unique_mid(customer=7, text="hi")
    _, end = take()
    assert send.enqueue(7).existing_status == "locked"
    end()
    # Not collected yet: the mid is still free.
    assert actions(send.enqueue(7), send.enqueue(7)) == ["added", "exists"]


def test_dead_and_cancelled_calls_leave_nothing_behind(declare, take, queue):
    send = declare(unique=True)
    send.enqueue(7)
    take()[1]("dead", reason="no use")
    again = send.enqueue(7)
    assert again.action == "added" and again.cancel()
    assert send.enqueue(7).action == "added"
    _, end = take()
    assert send.enqueue(7).cancel()
    # Its worker may run it until its lease ends: the next call waits for that.
    held_back = send.enqueue(7)
    assert held_back.action == "requeued" and held_back.status().word == "done-with-requeue"
    assert end() == "stale"
    assert queue.admin.fsck() == []


def test_until_start_keeps_one_that_waits_behind_the_one_that_runs(declare, take):
    send = declare(unique=["customer"], until="start")
    send.enqueue(7, "first")
    _, end = take()
    waits, refused = send.enqueue(7, "second"), send.enqueue(7, "third")
    assert actions(waits, refused) == ["requeued", "exists"]
    assert take() is None
    end()
    assert b"second" in take()[0].content


@pytest.mark.parametrize(
    ("options", "waiting", "running"),
    [
        ({}, ("exists", b"first"), ("exists", None)),
        ({"on_conflict": "skip"}, ("exists", b"first"), ("exists", None)),
        ({"on_conflict": "replace"}, ("updated", b"second"), ("exists", None)),
        ({"on_conflict": "replace", "until": "start"}, ("updated", b"second"), ("requeued", b"third")),
        ({"on_conflict": "requeue"}, ("exists", b"first"), ("requeued", b"third")),
    ],
    ids=str,
)  # fmt: skip
def test_conflict_is_settled_as_declared(declare, take, options, waiting, running):
    send = declare(unique=["customer"], **options)
    send.enqueue(7, "first")
    assert send.enqueue(7, "second").action == waiting[0]
    message, end = take()
    assert waiting[1] in message.content
    assert send.enqueue(7, "third").action == running[0]
    end()
    after = take()
    assert (after is None) if running[1] is None else running[1] in after[0].content


def test_duplicate_error_names_what_lives_and_since_when(declare, take, client):
    send = declare(unique=["customer"], on_conflict="raise")
    send.enqueue(7)
    with pytest.raises(
        DuplicateError, match=r"^send=7 waits already \(queued [\d.]+ m?s ago\)$"
    ) as why:
        send.enqueue(7)
    assert why.value.receipts[0].status().word == "queued"
    _, end = take()
    with pytest.raises(DuplicateError, match=r"^send=7 runs already \(queued [\d.]+ m?s ago\)$"):
        asyncio.run(send.aenqueue(7))
    end()
    send.options(until="1h").enqueue(8)
    take()[1]()
    with pytest.raises(
        DuplicateError, match=r"^send=8 already ran, and its id is rejected for another 1 h 00 m$"
    ):
        send.options(until="1h").enqueue(8)


def test_bulk_counts_a_repeat_as_a_conflict(declare, queue):
    send = declare(unique=["customer"])
    calls = [(number % 300, str(number)) for number in range(600)]
    assert actions(*send.enqueue_many(calls)) == ["added"] * 300 + ["exists"] * 300
    assert actions(*asyncio.run(send.aenqueue_many(calls))) == ["exists"] * 600
    newest = send.options(on_conflict="replace")
    assert actions(*newest.enqueue_many([(1000, "a"), (1000, "b")])) == ["added", "updated"]
    assert b'"b"' in queue.content(send.unique_mid(1000))
    with pytest.raises(
        DuplicateError, match=r"^2 of 3 calls of send were rejected because their ids are in use"
    ) as why:
        send.options(on_conflict="raise").enqueue_many([(1,), (2000,), (2000,)])
    assert len(why.value.receipts) == 2
    assert queue.status(send.unique_mid(2000)).word == "queued"


def test_of_a_hundred_at_once_one_is_added(declare):
    send, added, start = declare(unique=True), [], threading.Barrier(10)

    def enqueue() -> None:
        start.wait()
        added.extend(send.enqueue(1).action for _ in range(10))

    threads = [threading.Thread(target=enqueue) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(added) == ["added"] + ["exists"] * 99


def test_refused_call_waits_for_the_result_of_the_one_that_lives(declare, take):
    send = declare(unique=True, result_ttl=60)
    send.enqueue(7)
    take()[1](result=b'{"ok":"old"}', result_ttl=60)
    assert send.enqueue(7).action == "added"
    refused = send.enqueue(7)
    assert refused.action == "exists"
    with pytest.raises(TimeoutError):
        refused.result(0.01)
    take()[1](result=b'{"ok":"new"}', result_ttl=60)
    assert refused.result(10) == "new"


def test_throttle_refuses_until_its_window_ends_however_short_the_run_was(declare, queue, at):
    send = declare(throttle="1h", unique=["customer"])
    options = send.queue_options

    def enqueue(ms: int) -> str:
        done = queue.enqueue(b"x", mid=send.unique_mid(7), now=at(ms), **options)
        return f"{done.action} {done.existing_status}".strip()

    def run(ms: int) -> None:
        [message] = queue.dequeue(now=at(ms)).messages
        queue.finish([Ending(mid=message.mid, token=message.token)], now=at(ms))

    assert [enqueue(0), enqueue(1)] == ["added", "exists queued"]
    run(10)
    assert enqueue(3_599_999) == "exists done-with-backoff"
    assert enqueue(3_600_000) == "added"
    run(3_600_010)
    # The second window is one too, whether or not the first message was collected before it.
    assert enqueue(7_199_999) == "exists done-with-backoff"
    queue.admin.collect(now=at(7_200_001))
    queue.admin.collect(now=at(7_200_002))
    assert queue.admin.fsck() == [] and queue.status(send.unique_mid(7)).word == "nil"


def test_debounce_runs_the_last_content_after_its_delay_and_at_most_so_late(declare, queue, at):
    send = declare(debounce="10s", debounce_max="25s", unique=["customer"])
    options, mid = send.queue_options, send.unique_mid(7)
    done = [
        queue.enqueue(b"%d" % s, mid=mid, now=at(s * 1_000), **options).action
        for s in range(0, 25, 5)
    ]
    assert done == ["added"] + ["updated"] * 4
    assert not queue.dequeue(now=at(24_999)).messages
    [message] = queue.dequeue(now=at(25_000), lease=60).messages
    assert message.content == b"20"
    # Content that comes during the run is a burst of its own, and runs after it.
    later = [
        queue.enqueue(b"%d" % s, mid=mid, now=at(s * 1_000), **options).action
        for s in (26, 30, 34, 38)
    ]
    assert later == ["requeued"] + ["updated"] * 3
    queue.finish([Ending(mid=message.mid, token=message.token)], now=at(40_000))
    assert queue.enqueue(b"50", mid=mid, now=at(47_000), **options).action == "updated"
    assert not queue.dequeue(now=at(50_999)).messages
    [message] = queue.dequeue(now=at(51_000)).messages
    assert message.content == b"50"


@pytest.mark.parametrize(
    "options",
    [
        {"until": "done"}, {"on_conflict": "skip"}, {"debounce_max": "1m"}, {"unique": []}, {"unique": "nobody"},
        {"unique": [3]}, {"unique": 3}, {"unique": True, "until": "never"}, {"unique": True, "until": 0},
        {"unique": True, "on_conflict": "x"},
        {"unique": True, "mid": "x"}, {"unique": True, "debounce_max": 3}, {"throttle": "1h", "until": "start"},
        {"throttle": "1h", "on_conflict": "replace"}, {"throttle": "1h", "debounce": "1m"}, {"throttle": 0},
        {"debounce": "1m", "debounce_max": "10s"}, {"debounce": "1m", "delay": 3},
        {"debounce": "1m", "on_conflict": "raise"},
        {"unique": True, "until": "1h", "on_conflict": "requeue"},
    ],
    ids=str,
)  # fmt: skip
def test_what_contradicts_is_refused_with_its_value(declare, options):
    with pytest.raises(ConfigError, match=f"{next(reversed(options))}|{next(iter(options))}"):
        declare(**options)
    with pytest.raises(ConfigError):
        declare().options(**options)


def test_arguments_that_json_does_not_know_are_refused_where_they_are_compared(declare, queue):
    with pytest.raises(
        ConfigError, match=r"unique of send needs arguments that JSON supports.*unique=lambda"
    ):
        declare(unique=True).enqueue({1, 2})
    with pytest.raises(ConfigError, match="JSON"):
        declare(unique=lambda customer, **_: {customer}).enqueue(1)
    with pytest.raises(CodecError):
        declare(unique=["customer"]).enqueue(1, {2})
    assert queue.admin.counts().ready == 0


def test_mids_depend_on_the_chosen_arguments_alone(registry):
    @job(registry=registry, name="many", unique=True)
    def many(first, *rest, flag=True, **more):
        pass

    assert many.unique_mid(1, 2, a=3, b=4) == many.unique_mid(1, 2, b=4, a=3, flag=True)
    assert many.unique_mid(1, 2) != many.unique_mid(1, 3)
    chosen = many.options(unique=["first", "a"])
    assert chosen.unique_mid(1, 2, a=3, b=4) == chosen.unique_mid(1, a=3) != chosen.unique_mid(1)
    made = many.options(unique=lambda first, rest, **_: [first, len(rest)])
    assert made.unique_mid(1, 2, 3) == made.unique_mid(1, 4, 5) != made.unique_mid(1)
    long = job(registry=registry, name="x" * 200, unique=True)(lambda a: None)
    other = job(registry=registry, name="x" * 199 + "y", unique=True)(lambda a: None)
    assert len(long.unique_mid(1)) == 128 and long.unique_mid(1) != other.unique_mid(1)
    # What is stored is found again by any version: the mid of a call never changes.
    assert many.unique_mid(1) == "=many:ytLJBAjFZY3hXs-bZoASmA"


def test_mids_of_users_are_kept_apart(declare, queue):
    with pytest.raises(ConfigError, match="begin with '='"):
        declare().options(mid="=mine")
    with pytest.raises(ConfigError, match="begin with '='"):
        queue.enqueue(b"", mid="=mine")
    with pytest.raises(ConfigError, match="begin with '='"):
        queue.enqueue_many([("=mine", b"")])
    with pytest.raises(ConfigError, match="not unique"):
        declare().unique_mid(1)
    plain = declare(unique=True).options(unique=False)
    assert plain.queue_options == {} and plain.enqueue(1).mid != plain.enqueue(1).mid


def test_calls_differ_by_a_place_that_another_argument_is_named_like(client: Any):
    def send(customer: int, /, **more: int) -> None: ...

    made = job(name="send", registry=Registry(), queue="low", client=client, unique=True)(send)
    mids = {made.enqueue(*args, customer=9).mid for args in ((1,), (2,))}
    assert len(mids) == 2


def test_refusal_is_answered_alike_when_its_call_is_repeated_after_the_message_has_gone(
    queue, take
):
    own = Caller()
    queue.enqueue(b"1", mid="m")
    refused = queue.enqueue(b"2", mid="m", caller=own)
    take()[1]()
    queue.admin.collect()
    own.number -= 1
    assert queue.enqueue(b"2", mid="m", caller=own) == refused == ("m", "exists", "queued")
    assert queue.status("m").word == "nil"


def test_call_with_a_mid_obeys_on_conflict_and_until_when_its_job_is_not_unique(declare, queue):
    send = declare()
    assert send.options(mid="m").enqueue(1).action == "added"
    with pytest.raises(DuplicateError, match=r"^send with mid m waits already"):
        send.options(mid="m", on_conflict="raise").enqueue(2)
    assert send.options(mid="m", on_conflict="replace").enqueue(3).action == "updated"
    [message] = queue.dequeue().messages
    assert decode(message.content).args == [3]
    assert send.options(mid="m", until="done").enqueue(4).action == "exists"
    assert (
        send.options(mid="m", on_conflict="requeue", until="start").enqueue(5).action == "requeued"
    )
    queue.finish([Ending(mid="m", token=message.token)])
    [message] = queue.dequeue().messages
    queue.finish([Ending(mid="m", token=message.token)])
    assert send.options(mid="m").enqueue(6).action == "exists"
    assert send.options(mid="m", until="done").enqueue(7).action == "added"


def test_on_conflict_of_a_unique_job_is_left_out_when_a_call_is_not_unique(declare):
    send = declare(unique=True, on_conflict="raise", until="1h").options(unique=False)
    assert [send.enqueue(1).action, send.enqueue(1).action] == ["added", "added"]
