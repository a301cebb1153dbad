"""The traceback of a retried attempt: kept with its message, bounded, and gone with it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from jobq.errors import ScriptError
from jobq.queue.queue import Queue
from jobq.queue.types import Ending, Message

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: 1'
#: As in the script.
MAX_TRACEBACKS = 10_000


def fail(queue: Queue, message: Message, traceback: str = TRACE, **more: Any) -> str:
    ending = Ending(
        mid=message.mid,
        token=message.token,
        outcome="retry",
        traceback=traceback,
        backoff=0,
        **more,
    )
    return queue.finish([ending]).replies[0]


def taken(queue: Queue) -> Message:
    [message] = queue.dequeue().messages
    return message


def test_status_has_the_traceback_of_the_latest_retried_attempt(queue: Queue):
    queue.enqueue(b"{}", mid="m")
    assert fail(queue, taken(queue)) == "ok"
    assert (queue.status("m").failed_attempt, queue.status("m").traceback) == (1, TRACE)
    fail(queue, taken(queue), "second")
    assert (queue.status("m").failed_attempt, queue.status("m").traceback) == (2, "second")
    # An attempt without a traceback doesn't change it: the number says which attempt it belongs to.
    fail(queue, taken(queue), "")
    assert (queue.status("m").failed_attempt, queue.status("m").traceback) == (2, "second")


@pytest.mark.parametrize("first", ["progress", "checkpoint", "failure"])
def test_progress_checkpoint_and_traceback_keep_each_other(queue: Queue, first: str):
    queue.enqueue(b"{}", mid="m")
    message = taken(queue)
    if first == "progress":
        queue.progress("m", message.token, "half")
    if first == "checkpoint":
        queue.checkpoint("m", message.token, '{"row":7}')
    fail(queue, message, TRACE + "\x1e\x1f")
    message = taken(queue)
    assert queue.checkpoint("m", message.token) == ('{"row":7}' if first == "checkpoint" else "")
    queue.checkpoint("m", message.token, '{"row":8}')
    queue.progress("m", message.token, "most")
    status = queue.status("m")
    assert (status.progress, status.checkpoint) == ("most", '{"row":8}')
    assert (status.failed_attempt, status.traceback) == (1, TRACE + "\x1e\x1f")


def test_checkpoint_is_refused_when_it_holds_the_separator(queue: Queue):
    queue.enqueue(b"{}", mid="m")
    message = taken(queue)
    with pytest.raises(ScriptError, match="without 0x1e"):
        queue.checkpoint("m", message.token, '"a\x1eb"')


@pytest.mark.parametrize("end", ["done", "dead", "cancelled", "replaced", "requeued"])
def test_traceback_goes_when_its_content_ends(queue: Queue, redis: Any, end: str):
    queue.enqueue(b"{}", mid="m")
    fail(queue, taken(queue))
    if end == "cancelled":
        queue.cancel("m")
    elif end == "replaced":
        queue.enqueue(b"new", mid="m", on_conflict="replace")
    else:
        message = taken(queue)
        if end == "requeued":
            queue.enqueue(b"new", mid="m", on_conflict="requeue")
            fail(queue, message, "of the former content")
        else:
            queue.finish([Ending(mid="m", token=message.token, outcome=end, reason="why")])
    queue.admin.collect()
    queue.admin.collect()
    assert queue.status("m").traceback == ""
    assert not redis.exists("jobq:{low}:progress")


def test_crash_keeps_the_traceback_of_the_attempt_before_it(queue: Queue):
    queue.enqueue(b"{}", mid="m")
    fail(queue, taken(queue))
    message = taken(queue)
    queue.finish([Ending(mid="m", token=message.token, outcome="crashed", reason="SIGKILL")])
    status = queue.status("m")
    assert (status.attempts, status.failed_attempt, status.traceback) == (2, 1, TRACE)


def test_no_traceback_is_kept_when_the_attempt_lost_its_lease(queue: Queue):
    queue.enqueue(b"{}", mid="m")
    message = taken(queue)
    assert fail(queue, structs.replace(message, token="another")) == "stale"
    assert queue.status("m").traceback == ""


def test_finish_is_refused_whole_when_a_traceback_is_too_long(queue: Queue, facts: Any):
    queue.enqueue(b"{}", mid="m")
    message = taken(queue)
    before = facts()
    with pytest.raises(ScriptError, match="a traceback"):
        fail(queue, message, "x" * 16_385)
    assert facts() == before
    assert fail(queue, message, "x" * 16_384) == "ok"


def test_queue_keeps_tracebacks_of_a_bounded_number_of_messages(queue: Queue, redis: Any):
    queue.enqueue(b"{}", mid="m")
    queue.enqueue(b"{}", mid="n")
    first, second = taken(queue), taken(queue)
    fail(queue, first)
    others = {f"other-{number}": "1" for number in range(MAX_TRACEBACKS - 1)}
    redis.hset("jobq:{low}:progress", mapping=others)
    assert fail(queue, second) == "ok"
    assert queue.status("n").traceback == ""
    # The message that already has a traceback gets the next traceback.
    fail(queue, taken(queue), "next")
    assert queue.status("m").traceback == "next"
