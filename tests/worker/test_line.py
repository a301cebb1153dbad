"""One queue as a child asks it."""

from __future__ import annotations

from itertools import count

import pytest

from jobq.config import WorkerSettings
from jobq.engine import keys
from jobq.engine.message import Ending
from jobq.worker.line import Line, LineCaller, Unheard
from jobq.worker.standing import BROKEN, Standing


@pytest.fixture
def standing():
    return Standing(1)


@pytest.fixture
def line(queue, standing):
    caller = LineCaller(lambda: None, "caller0123456789", count(1))
    return Line(0, queue, caller, standing, WorkerSettings(queues=(("low", 1),)))


def test_one_ending_that_the_server_refuses_holds_up_no_other(line, queue, standing, caplog):
    for mid in "abc":
        queue.enqueue(b"v", mid=mid)
    messages, _ = line.dequeue(3)
    endings = [Ending(mid=one.mid, token=one.token) for one in messages.messages]
    endings[1] = Ending(mid="b", token=endings[1].token, age_ms=-5)
    with pytest.raises(Unheard):
        line.finish(endings)
    assert standing.state(0) == BROKEN
    paid = []
    line.when_paid(lambda: paid.append(queue.status("b").word))

    line.pay()

    assert paid == ["locked"]
    assert not line.owes
    assert not standing.state(0)
    assert queue.status("a").word == queue.status("c").word == "done-awaiting-gc"
    assert "b: outcome 'done' is lost, the server refuses it" in caplog.text


def test_endings_wait_in_their_order_while_the_queue_is_broken(line, queue, redis):
    for mid in "ab":
        queue.enqueue(b"v", mid=mid)
    messages, _ = line.dequeue(2)
    meta = keys.key(queue.prefix, "meta")
    redis.rename(meta, f"{meta}-kept")
    redis.set(meta, "x")
    for one in messages.messages:
        with pytest.raises(Unheard):
            line.finish([Ending(mid=one.mid, token=one.token)])
    with pytest.raises(Unheard):
        line.pay()
    assert not line.release([])
    redis.rename(f"{meta}-kept", meta)

    assert line.pay() == (None, 0)
    assert queue.counts().done == 2
    assert line.release([])
