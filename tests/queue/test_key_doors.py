"""A message gets its key whichever way it is enqueued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.config import CodecSettings
from jobq.errors import KeyFullError
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry, job
from jobq.queue.queue import Queue


@pytest.fixture
def send(client: Client) -> Job[..., Any]:
    """A job whose key is an argument."""

    def send(customer: str | None, text: str = "") -> None: ...

    return job(name="send", queue="low", key="customer", client=client, registry=Registry())(send)


def lines(queue: Queue) -> dict[str, int]:
    return {row.key: row.waiting for row in queue.admin.iter_keys()}


class Passing:
    """A middleware that changes who a call is for."""

    def enqueue(self, outgoing: Any, next: Callable[[Any], Any]) -> Any:
        outgoing.calls = [(("bob", *args[1:]), kwargs) for args, kwargs in outgoing.calls]
        return next(outgoing)


def test_every_enqueue_of_a_job_gives_the_key_of_its_arguments(send: Job[..., Any], queue: Queue):
    send.enqueue("acme", "1")
    send.enqueue(customer="acme")
    send.enqueue_many([("acme", "2"), ("bob", "3"), (None, "4")])
    asyncio.run(send.aenqueue("acme", "5"))
    asyncio.run(send.aenqueue_many([("bob",), ("eve",)]))
    send.options(key="zoe").enqueue_many([("acme",), ("bob",)])
    send.options(key=None).enqueue("acme")
    assert lines(queue) == {"acme": 4, "bob": 2, "eve": 1, "zoe": 2}
    assert queue.admin.counts().ready == 11
    send.middleware.add(Passing())
    send.enqueue("acme")
    send.enqueue_many([("acme",), ("acme",)])
    assert lines(queue)["bob"] == 5
    assert queue.admin.fsck() == []


def test_sealed_call_has_its_key(client: Client, send: Job[..., Any], queue: Queue):
    codec = CodecSettings(keys=(("k", b"x" * 32),))
    client.settings = replace(client.settings, codec=codec)
    send.enqueue("acme")
    send.enqueue_many([("acme",), ("bob",)])
    assert lines(queue) == {"acme": 2, "bob": 1}


def test_ordered_job_hands_out_one_by_one_in_the_order_of_enqueue(
    send: Job[..., Any], queue: Queue
):
    ordered = send.options(ordered=True)
    mids = [one.mid for one in ordered.enqueue_many([("acme", str(n)) for n in range(3)])]
    ordered.enqueue(None)
    handed = queue.dequeue(10).messages
    assert mids[0] in [one.mid for one in handed] and len(handed) == 2
    assert queue.release([(one.mid, one.token) for one in handed]) == [True, True]


def test_full_line_refuses_the_whole_round_trip(send: Job[..., Any], queue: Queue):
    queue.rules(key_waiting=2)
    with pytest.raises(
        KeyFullError, match="key acme has 2 waiting messages, the maximum; nothing was acc"
    ):
        send.enqueue_many([("bob",), ("acme",), ("acme",), ("acme",)])
    assert lines(queue) == {}
    send.enqueue_many([("bob",), ("acme",), ("acme",)])
    with pytest.raises(KeyFullError):
        asyncio.run(send.aenqueue("acme"))
    assert lines(queue) == {"acme": 2, "bob": 1}
