"""Topics: appending and reading 40-byte messages, client and server on one processor; memory per message."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jobq
from bench.redismq import program
from bench.server import info, private_server
from bench.stage import Row
from jobq.topics import RedismqTopic, Topic

MESSAGES = 300_000
ONE_BY_ONE = 10_000
CONTENTS = [b"%040d" % number for number in range(MESSAGES)]


def topics(_: str) -> Iterator[Row]:
    """Rates by one client, of jobq's layout and redismq's, and how much of the server's memory a message takes."""
    for layout, make in (("", Topic), (", layout of redismq", RedismqTopic)):
        with private_server() as client, one_processor(client):
            for figure, value, unit in measured(make("bench", client)):
                yield f"{figure}{layout}", value, unit
    with private_server() as client, one_processor(client):
        yield from theirs(client)
    with private_server() as client:
        rate = per_second(lambda: len(Topic("bench", client).append_many(CONTENTS)))
        yield "append_many, client and server each on their own processor", rate, "messages/s"


def measured(topic: Topic | RedismqTopic) -> Iterator[Row]:
    """Measure a layout."""
    topic.append(b"first")
    before = int(info(topic.client, "memory")["used_memory"])
    rate = per_second(lambda: len(topic.append_many(CONTENTS)))
    used = int(info(topic.client, "memory")["used_memory"]) - before
    yield "append_many", rate, "messages/s"
    yield "bytes per 40-byte message", used / MESSAGES, "B"
    yield "messages per KiB", 1024 * MESSAGES / used, ""
    yield "poll, 1,000 at a time", per_second(lambda: polled(topic)), "messages/s"
    yield "read, detached", per_second(lambda: count(topic.read())), "messages/s"
    yield "append, one at a time", per_second(lambda: singly(topic.append)), "messages/s"
    yield "poll, one at a time", per_second(lambda: polled_singly(topic)), "messages/s"


def theirs(client: jobq.Client) -> Iterator[Row]:
    """Measure redismq's programs, which don't support batches."""
    with program("bench", client) as peer:
        sent = per_second(lambda: singly(peer.send))
        yield "append, one at a time, redismq's own program", sent, "messages/s"
        read = per_second(lambda: sum(1 for _ in iter(peer.poll, None)))
        yield "poll, one at a time, redismq's own program", read, "messages/s"


@contextmanager
def one_processor(client: jobq.Client) -> Iterator[None]:
    """This process and the server share one, where the system can pin them."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(ours)})
    os.sched_setaffinity(int(info(client, "server")["process_id"]), {max(ours)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


def per_second(work: Callable[[], int]) -> float:
    """Return the messages per second of `work`."""
    started = time.perf_counter()
    done = work()
    return done / (time.perf_counter() - started)


def polled(topic: Topic | RedismqTopic) -> int:
    """Read all messages for a group; each poll commits the previous batch."""
    reader = (
        topic.reader("bench", commit="auto") if isinstance(topic, Topic) else topic.reader("bench")
    )
    done = 0
    while messages := reader.poll(1_000).messages:
        done += len(messages)
    return done


def polled_singly(topic: Topic | RedismqTopic) -> int:
    """Read messages one per poll."""
    reader = (
        topic.reader("single", commit="read")
        if isinstance(topic, Topic)
        else topic.reader("single")
    )
    return sum(len(reader.poll(1).messages) for _ in range(ONE_BY_ONE))


def count(messages: Iterator[object]) -> int:
    """How many there are."""
    return sum(1 for _ in messages)


def singly(append: Callable[[bytes], object]) -> int:
    """Append messages one per call."""
    for content in CONTENTS[:ONE_BY_ONE]:
        append(content)
    return ONE_BY_ONE
