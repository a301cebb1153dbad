"""Blocking pop and recover: woken by a push, in the order of the line, and nobody's message for anybody else."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from msgspec import structs

from jobq.client.connection import connect
from jobq.client.waiter import BlockingConnection
from jobq.config import ServerSettings
from jobq.errors import ScriptError, UnavailableError
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable import waiting as waits
from tests.protocols.reliable.conftest import until

FOREVER = -1


@pytest.fixture
def wait(rq, redis):
    """wait("q", count=2): a blocking pop in a thread, in line when this returns; its future."""
    with ThreadPoolExecutor(32) as threads:
        waiting = []

        def begin(*names, count=1, block=30_000, **more):
            waiting.append(threads.submit(rq.pop, count, block, *names, **more))
            # Who waits for what comes of age may have it before anybody looks.
            until(
                lambda: (
                    redis.info("clients")["blocked_clients"]
                    == sum(not one.done() for one in waiting)
                ),
                "not all in line",
            )
            return waiting[-1]

        yield begin


def contents(popped):
    return [one.content for one in popped]


@pytest.mark.parametrize("block", [30_000, FOREVER])
def test_push_wakes_a_client_that_waits(rq, wait, block):
    waiting = wait("q", block=block)
    [id] = rq.push("q", "a")
    assert waiting.result(120) == [("q", id, b"a")]


def test_messages_of_one_push_go_to_the_waiting_in_their_order(rq, wait):
    waiting = [wait("q") for _ in range(5)]
    rq.push("q", *"abcde")
    assert [contents(one.result(120)) for one in waiting] == [
        [b"a"],
        [b"b"],
        [b"c"],
        [b"d"],
        [b"e"],
    ]


def test_who_waits_longest_is_served_first_push_by_push(rq, wait):
    waiting = [wait("q") for _ in range(4)]
    for number, one in enumerate(waiting):
        rq.push("q", str(number))
        assert contents(one.result(120)) == [str(number).encode()]
        assert not any(later.done() for later in waiting[number + 1 :])


def test_one_push_of_three_serves_two_to_who_wants_two_and_one_to_the_next(rq, wait):
    first, second = wait("q", count=2), wait("q")
    rq.push("q", *"abc")
    assert len(first.result(120)) == 2
    assert len(second.result(120)) == 1
    assert rq.length("q") == 0


def test_client_waits_for_several_queues_and_is_served_from_any(rq, wait):
    for name in ("first", "second", "third"):
        waiting = wait("first", "second", "third")
        rq.push(name, "a")
        assert [one.key for one in waiting.result(120)] == [name]


def test_clients_waiting_for_different_queues_do_not_disturb_one_another(rq, wait):
    both, one = wait("q", "r"), wait("r")
    rq.push("q", "a")
    assert contents(both.result(120)) == [b"a"]
    assert not one.done()
    rq.push("r", "b")
    assert contents(one.result(120)) == [b"b"]


def test_wait_ends_with_nil_and_leaves_nothing_behind(rq, redis):
    assert rq.pop(1, 30, "q") is None
    assert not [key for key in redis.keys("reliable:*") if redis.ttl(key) == -1]
    until(lambda: redis.info("clients")["blocked_clients"] == 0, "still blocked")


@pytest.mark.parametrize("give_back", ["nack", "release", "revive"])
def test_message_that_is_given_back_wakes_a_client(rq, wait, give_back):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    if give_back == "revive":
        rq.configure("q", max_deliveries=1)
        rq.nack("q", id)
    waiting = wait("q")
    getattr(rq, give_back)("q", id)
    assert contents(waiting.result(120)) == [b"a"]


def test_nobody_pops_what_is_promised_to_a_client_that_waits(rq, run, blocked, redis):
    """A stopped process has got its ticket and can't come for its message; a second later it must."""
    waiter = run("say(os.getpid())\nsay([m.content for m in rq.pop(1, -1, 'q')])")
    waiter.stdout.readline()
    blocked(1)
    stop(waiter)
    rq.push("q", "promised", "free")
    assert rq.info("q").promised == 1
    soon = int(redis.hget("reliable:{q}:meta", "issued_at")) + 500
    assert contents(rq.pop(9, 0, "q", now=soon)) == [b"free"]
    assert rq.pop(9, 0, "q", now=soon) == []
    go_on(waiter)
    assert waiter.stdout.readline() == "[b'promised']\n"


def test_promise_ends_when_the_client_does_not_come_for_a_second(rq, run, blocked, redis):
    waiter = run("say(os.getpid())\nsay([m.content for m in rq.pop(1, -1, 'q')])")
    waiter.stdout.readline()
    blocked(1)
    stop(waiter)
    [id] = rq.push("q", "promised")
    issued_at = int(redis.hget("reliable:{q}:meta", "issued_at"))
    assert rq.pop(1, 0, "q", now=issued_at + 999) == []
    assert rq.pop(1, 0, "q", now=issued_at + 1000) == [("q", id, b"promised")]
    go_on(waiter)
    blocked(1)
    rq.push("q", "next")
    assert waiter.stdout.readline() == "[b'next']\n"


def test_promise_ends_also_while_more_and_more_is_pushed(rq, redis, at):
    """Whoever took the first ticket is dead; its message must not wait until nobody pushes any more."""
    rq.push("q", "lost", now=at(0))
    redis.lpop("reliable:{q}:tickets")
    for late in range(100, 1000, 100):
        rq.push("q", "new", now=at(late))
        assert contents(rq.pop(1, 0, "q", now=at(late))) == [b"new"]
    rq.push("q", "new", now=at(1000))
    assert contents(rq.pop(1, 0, "q", now=at(1000))) == [b"lost"]


def test_promise_ends_also_when_the_clock_steps_back(rq, client, at):
    rq.push("q", "a", now=at(0))
    taken = client.command("LPOP", "reliable:{q}:tickets")
    assert taken is not None
    assert rq.pop(1, 0, "q", now=at(500)) == []
    assert contents(rq.pop(1, 0, "q", now=at(-1000))) == [b"a"]


def test_ticket_whose_message_somebody_has_is_for_the_next(rq, redis, at):
    first, second = rq.push("q", "a", "b", now=at(0))
    ticket = redis.lpop("reliable:{q}:tickets")
    assert ticket.decode() == first
    rq.pop(1, 0, "q", now=at(2000))
    [[_, id, _, _]] = rq._calls.change("pop", ["q"], "DELIVERIES", "TICKET", ticket, now=at(2000))
    assert id.decode() == second
    assert structs.astuple(rq.info("q"))[1:5] == (0, 2, 0, 0)


def test_ticket_that_is_given_back_serves_the_next_in_line(rq, redis, wait):
    rq.push("q", "a")
    ticket = redis.lpop("reliable:{q}:tickets")
    waiting = wait("q")
    assert rq._calls.change("pop", ["q"], "COUNT", 0, "TICKET", ticket) == []
    assert contents(waiting.result(120)) == [b"a"]


@pytest.mark.parametrize("tickets", [0, 1, 7])
def test_tickets_are_put_right_whatever_became_of_them(rq, redis, at, tickets):
    rq.push("q", "a", "b", "c", now=at(0))
    redis.delete("reliable:{q}:tickets")
    for _ in range(tickets):
        redis.rpush("reliable:{q}:tickets", "1-1")
    assert len(rq.pop(9, 0, "q", now=at(1000))) == 3
    assert rq.pop(1, 0, "q", now=at(1000)) == []
    assert rq.push("q", "d", now=at(1001)) and contents(rq.pop(2, 0, "q", now=at(1001))) == [b"d"]


def test_waiting_client_comes_back_into_line_when_its_connection_is_cut(rq, wait, redis, blocked):
    waiting = wait("q")
    [blocking] = [one for one in redis.client_list() if one["cmd"] == "blpop"]
    redis.client_kill_filter(_id=blocking["id"])
    blocked(1)
    rq.push("q", "a")
    assert contents(waiting.result(120)) == [b"a"]


def test_waiting_client_goes_on_after_it_was_unblocked_by_a_failover(rq, wait, redis, blocked):
    waiting = wait("q")
    [blocking] = [one for one in redis.client_list() if one["cmd"] == "blpop"]
    redis.client_unblock(blocking["id"], error=True)
    blocked(1)
    rq.push("q", "a")
    assert contents(waiting.result(120)) == [b"a"]


def test_user_who_may_not_wait_is_told_so(rq, redis, server):
    redis.execute_command(
        "ACL", "SETUSER", "poor", "reset", "on", "nopass", "+@all", "-blpop", "~*"
    )
    url = server.url.replace("unix://", "unix://poor:x@")
    poor = ReliableQueue(connect(settings=ServerSettings(url=url)))
    assert poor.pop(1, 0, "q") == []
    with pytest.raises(ScriptError, match="refused BLPOP"):
        poor.pop(1, 30_000, "q")
    redis.execute_command("ACL", "DELUSER", "poor")


def test_wait_without_a_server_ends_with_unavailable(client):
    nowhere = connect(settings=ServerSettings(url="redis://127.0.0.1:1", patience_s=0.05))
    with pytest.raises(UnavailableError):
        ReliableQueue(nowhere).pop(1, 100, "q")
    line = BlockingConnection(nowhere, "reliable:{q}:tickets")
    with pytest.raises(UnavailableError):
        line.send(("BLPOP", "reliable:{q}:tickets", 1))
    assert not line.is_open


def test_blocking_pop_that_recovers_takes_what_comes_of_age(rq, wait):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    popped = wait("q", recover_after=0.1).result(120)
    assert popped == [("q", id, b"a")] and popped[0].deliveries == 2
    assert rq.pending("q", 0, 1)[0].deliveries == 2


def test_blocking_pop_that_recovers_is_woken_by_a_push_too(rq, wait):
    rq.push("q", "old")
    rq.pop(1, 0, "q")
    waiting = wait("q", recover_after=600)
    rq.push("q", "new")
    assert contents(waiting.result(120)) == [b"new"]


def test_blocking_pop_that_recovered_gives_its_ticket_back(rq, client, redis, monkeypatch):
    """The ticket comes after the wait for it was over and before the line is left."""
    rq.push("q", "old")
    rq.pop(1, 0, "q")
    pop = rq._calls.change_steps

    def push_before_recovering(verb, names, *args, **more):
        if verb == "pop" and "TICKET" not in args and redis.info("clients")["blocked_clients"]:
            rq.push("q", "new")
            until(lambda: redis.info("clients")["blocked_clients"] == 0, "not served")
        return pop(verb, names, *args, **more)

    monkeypatch.setattr(rq._calls, "change_steps", push_before_recovering)
    assert contents(rq.pop(1, 30_000, "q", recover_after=1)) == [b"old"]
    assert rq.info("q").promised == 0
    assert contents(rq.pop(1, 0, "q")) == [b"new"]


def test_blocking_recover_takes_a_message_when_it_comes_of_age(rq):
    [id] = rq.push("q", "a")
    rq.pop(1, 0, "q")
    begun = rq.pending("q", 0, 1)[0].delivered_at
    recovered = rq.recover("q", 5, 150, block=30_000)
    assert recovered == [(id, b"a")] and recovered[0].deliveries == 2
    assert rq.pending("q", 0, 1)[0].delivered_at - begun >= 150


def test_blocking_recover_waits_for_what_is_delivered_later(rq):
    rq.push("q", "a")
    found = []
    thread = threading.Thread(target=lambda: found.append(rq.recover("q", 1, 50, block=FOREVER)))
    thread.start()
    rq.pop(1, 0, "q")
    thread.join(120)
    assert [one.content for one in found[0]] == [b"a"]


def test_blocking_recover_ends_with_nil_also_of_a_queue_that_is_not_there(rq):
    assert rq.recover("q", 1, 10, block=30) is None
    rq.push("q", "a")
    assert rq.recover("q", 1, 10, block=30) is None


def test_blocking_recover_ends_in_time_when_the_age_is_far_away(rq):
    rq.push("q", "a")
    rq.pop(1, 0, "q")
    begun = time.monotonic()
    assert rq.recover("q", 1, 3_600_000, block=50) is None
    assert time.monotonic() - begun >= 0.05


def test_rest_tells_how_long_until_something_comes_of_age(rq, at):
    rest = rq._calls.ask
    assert rest("rest", ["q"], "RECOVER", 100) == -1 == rest("rest", ["q"])
    rq.push("q", "a", now=at(0))
    rq.push("r", "a", now=at(0))
    rq.pop(1, 0, "q", now=at(0))
    rq.pop(1, 0, "r", now=at(-20))
    assert rest("rest", ["q", "r"], "RECOVER", 100, "NOW", at(10)) == 70
    assert rest("rest", ["q"], "RECOVER", 100, "NOW", at(300)) == 0


def test_lost_tickets_are_mended_by_those_who_wait(rq, wait, redis, monkeypatch):
    monkeypatch.setattr(waits, "TICK_S", 0.05)
    rq.push("q", "a")
    redis.lpop("reliable:{q}:tickets")
    assert contents(wait("q").result(120)) == [b"a"]


def stop(process):
    os.kill(process.pid, signal.SIGSTOP)
    stopped = psutil.Process(process.pid)
    until(lambda: stopped.status() == psutil.STATUS_STOPPED, "not stopped")


def go_on(process):
    os.kill(process.pid, signal.SIGCONT)
