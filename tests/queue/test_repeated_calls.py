"""A call is repeated only while its record surely lives; after that its outcome is told as unknown."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import pytest
from redis import exceptions as redis_errors

from jobq.chaos.proxy import DOWN, Proxy
from jobq.client import clock
from jobq.client.connection import connect
from jobq.client.numbered_calls import RECORD_S, REPEAT_S, Caller, CallState, Tries
from jobq.client.scripts import folder, load
from jobq.config import ServerSettings
from jobq.errors import UnavailableError
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

from ..client.deployments import wait_for

BUSY, LOST = (
    redis_errors.ResponseError("BUSY a script is running"),
    redis_errors.ConnectionError("closed"),
)
HOURS_NS = 2 * 3600 * 10**9
STORED = re.compile(r"'SET', (?:last_call|call\.key|pushed), .*'PX', (?:life_ms or )?'?(\d+)")


@pytest.fixture
def later(monkeypatch):
    """later(): afterwards two hours have passed, each time."""
    ahead, now_ns = [0], clock.boot_ns
    monkeypatch.setattr(clock, "boot_ns", lambda: now_ns() + ahead[0])

    def jump():
        ahead[0] += HOURS_NS

    return jump


@pytest.fixture
def proxy(server, redis):
    between = Proxy(server.socket)
    yield between
    between.close()


@pytest.fixture
def far(proxy):
    """far(**settings): the queue by way of the proxy, on a connection that is open already."""
    made = []

    def queue(**settings):
        given = {"url": f"redis://127.0.0.1:{proxy.port}", "socket_timeout_s": 0.1, **settings}
        made.append(connect(settings=ServerSettings(**given)))
        queue, patience_s = Queue("low", made[-1]), made[-1].patience_s
        made[-1].patience_s = 120
        assert queue.enqueue(b"v", mid="before").action == "added"
        made[-1].patience_s = patience_s
        return queue

    yield queue
    for one in made:
        if one.outage:
            one.outage.forget()
        one.close()


def run_and_forget(queue, redis, mid):
    """Run it to its end, collect it, and let the records of all calls expire."""
    wait_for(lambda: queue.status(mid).word == "queued", f"{mid} didn't arrive")
    messages = queue.dequeue(10).messages
    queue.finish([Ending(mid=one.mid, token=one.token) for one in messages])
    wait_for(
        lambda: not any(queue.admin.collect(100)[:1]) and queue.admin.counts().messages == 0,
        "not done",
    )
    forget_records(redis)


def forget_records(redis):
    redis.delete(*redis.keys("jobq:{low}:call:*"))


def test_every_record_lives_as_long_as_repetitions_count_on():
    found = {
        file.relative_to(folder()): lives
        for file in folder().rglob("*.lua")
        if (lives := STORED.findall(file.read_text()))
    }
    assert Path("shared/_call.lua") in found
    assert {int(ms) for lives in found.values() for ms in lives} == {RECORD_S * 1000}
    assert 2 * REPEAT_S <= RECORD_S


@pytest.mark.parametrize(
    ("area", "name", "recorded"),
    [
        ("queue", "enqueue", True),
        ("queue", "enqueue_plain", True),
        ("queue", "finish", True),
        ("queue", "finish_plain", True),
        ("queue", "extend", False),
        ("reliable", "pop", True),
        ("topic", "append", True),
        ("pipeline", "deliver", True),
        ("ruby", "push", True),
        ("ruby", "claim", True),
    ],
)
def test_script_with_a_record_is_known_by_its_text(area, name, recorded):
    assert load(area, name).recorded is recorded


def test_tries_end_after_the_bound_and_only_when_one_may_have_arrived(later, client):
    tries = Tries()
    state = CallState(client, ("PING",), load("queue", "enqueue"), tries)
    later()
    assert not tries.over
    state.sending()
    state.failed(BUSY)
    later()
    assert not tries.over, "the server refused it"
    state.sending()
    state.failed(LOST)
    state.sending()
    state.failed(BUSY)
    assert not tries.over
    later()
    assert tries.over, "the one before the refusal may have arrived"
    with pytest.raises(redis_errors.TimeoutError):
        state.sending()


def test_buffered_call_is_not_sent_again_when_its_record_may_be_gone(
    far, proxy, queue, redis, later, caplog
):
    buffered = far(outage_buffer=100)
    proxy.hold([DOWN])
    assert buffered.enqueue(b"v", mid="first").action == "buffered"
    assert buffered.enqueue(b"v", mid="second").action == "buffered"
    run_and_forget(queue, redis, "first")
    later()
    wait_for(lambda: buffered.client.nbuffered == 1, "the first is still repeated")
    proxy.release()
    with pytest.raises(
        UnavailableError, match="unknown whether first arrived, because the outage"
    ) as unknown:
        buffered.client.flush(60)
    assert unknown.value.mids == ("first",)
    buffered.client.flush(60)
    assert queue.status("first").word == "nil"
    assert queue.status("second").word == "queued", "it was never sent before"
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(told) == 1
    assert "outcome unknown: first for queue low" in told[0]


def test_buffered_call_that_was_accepted_is_not_called_unknown(far, proxy, queue, later, caplog):
    buffered = far(outage_buffer=100)
    proxy.hold()
    # This server has no replicas.
    assert buffered.enqueue(b"v", mid="m", durability="replicas=1").action == "buffered"
    [call] = buffered.client.outage._waiting
    proxy.release()
    wait_for(lambda: call.accepted, "it didn't arrive")
    later()
    buffered.client.flush(60)
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(told) == 1
    assert "accepted but not confirmed as durable: m for queue low" in told[0]
    assert queue.status("m").word == "queued"
    assert queue.admin.counts().messages == 2


def test_call_beyond_the_bound_is_unknown_however_long_the_patience(
    far, proxy, queue, redis, later
):
    patient = far(patience_s=3600)
    proxy.hold([DOWN])
    outcome = []

    def enqueue():
        try:
            outcome.append(patient.enqueue(b"v", mid="m"))
        except UnavailableError as error:
            outcome.append(error)

    thread = threading.Thread(target=enqueue)
    thread.start()
    run_and_forget(queue, redis, "m")
    later()
    thread.join()
    proxy.release()
    assert isinstance(outcome[0], UnavailableError)
    assert outcome[0].mids == ("m",)
    assert "is not repeated again" in str(outcome[0])
    assert queue.status("m").word == "nil"


def test_enqueue_that_was_never_sent_names_no_mid_as_unknown(far, proxy):
    hasty = far(patience_s=0.05)
    hasty.client.close()
    proxy.close()
    with pytest.raises(UnavailableError, match="nothing was sent") as away:
        hasty.enqueue(b"v", mid="m")
    assert away.value.mids == ()


def test_finish_beyond_the_bound_is_made_anew_and_does_not_call_its_own_end_stale(
    far, proxy, queue, redis, later
):
    patient, caller = far(patience_s=3600), Caller()
    [held] = patient.dequeue(caller=caller).messages
    queue.enqueue_many([("next", b"v"), ("last", b"v")])
    proxy.hold([DOWN])
    finished, repeating = [], threading.Event()
    patient.client.should_give_up = repeating.set  # asked after each try that failed

    def finish():
        ending = Ending(mid=held.mid, token=held.token)
        finished.append(patient.finish([ending], dequeue=1, caller=caller))

    thread = threading.Thread(target=finish)
    thread.start()
    wait_for(lambda: queue.status("next").word == "locked", "the end didn't arrive")
    assert repeating.wait(60)
    forget_records(redis)
    later()
    proxy.release()
    thread.join()
    [outcome] = finished
    assert outcome.replies == ["unknown"]
    [following] = outcome.dequeued.messages
    assert following.mid == "last"
    assert queue.extend([(following.mid, following.token)]) == [True]


def test_end_that_came_too_late_is_stale_whatever_numbers_its_caller_counts_by(queue):
    class ByTens(Caller):
        def next(self):
            self.number += 10
            return self.number

    ending = Ending(mid="m", token="somebody else's")
    assert queue.finish([ending], caller=ByTens()).replies == ["stale"]


def test_dequeue_behind_a_wait_is_made_anew_beyond_the_bound(queue, later):
    caller = Caller()
    queue.enqueue_many([b"v"] * 2)
    ahead = queue.dequeue_call(1, lease=60, crash_limit=3, caller=caller)
    first, again = ahead.make().messages, ahead.make().messages
    assert [one.token for one in first] == [one.token for one in again]
    ahead = queue.dequeue_call(1, lease=60, crash_limit=3, caller=caller)
    ahead.sent()
    later()
    [second], [again] = ahead.make().messages, ahead.make().messages
    assert caller.number == 3
    assert second.token == again.token
    assert queue.extend([(second.mid, second.token)]) == [True]
