"""The worker loop: deletes what it handled, keeps what it failed, renews what it holds, ends when told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobq.errors import ConfigError, Dead, Retry, Snooze, UnavailableError
from jobq.protocols.rsmq import (
    Consumed,
    Consumer,
    InvalidFormatError,
    QueueNotFoundError,
    Rsmq,
    RsmqMessage,
)
from jobq.protocols.rsmq.consumer import VisibilityRenewer

ROOT = Path(__file__).resolve().parents[3]
#: What is made is not a nonsense, but it may become so.
NOT_A_WAIT = Retry()
NOT_A_WAIT.after = float("nan")


@pytest.fixture
def plain(client: Any) -> Rsmq:
    """Under the server's clock, with a queue `q`."""
    rsmq = Rsmq(client, realtime=True)
    rsmq.create_queue("q", vt=30)
    return rsmq


def failing(error: BaseException) -> Callable[[RsmqMessage], None]:
    def handle(message: RsmqMessage) -> None:
        raise error

    return handle


@pytest.mark.parametrize("concurrency", [1, 3])
def test_consume_handles_and_deletes_every_message(plain, concurrency):
    sent = [str(number) for number in range(50)]
    plain.send_messages("q", sent)
    seen: list[str] = []
    counted = plain.consume(
        "q", lambda m: seen.append(m.message), burst=True, concurrency=concurrency
    )
    assert counted == Consumed(done=50)
    assert (seen if concurrency == 1 else sorted(seen, key=int)) == sent
    assert plain.counts("q") == (0, 0)


def test_consume_runs_so_many_handlers_at_a_time(plain):
    plain.send_messages("q", ["x"] * 6)
    together = threading.Barrier(3)
    assert plain.consume("q", lambda _: together.wait(120), burst=True, concurrency=3).done == 6


def test_failed_message_stays_hidden_until_its_timeout_ends(plain):
    sent = plain.send_message("q", "x")
    assert plain.consume("q", failing(ValueError("no")), burst=True) == Consumed(failed=1)
    [left] = plain.peek("q", "hidden")
    assert (left.id, left.rc) == (sent, 1)


@pytest.mark.parametrize(
    ("error", "options", "after_s"),
    [(Retry(after=100), {}, 100), (Retry(after=0.2), {}, 1), (Snooze(50), {}, 50), (Retry(), {}, 30),
     (ValueError(), {"retry_after": "2m"}, 120), (ValueError(), {}, 30),
     (Retry(after=-1), {}, 30), (NOT_A_WAIT, {}, 30), (Retry(after=10**9), {}, 9_999_999)],
)  # fmt: skip
def test_failed_message_comes_back_when_it_was_said(plain, redis, error, options, after_s):
    plain.send_message("q", "x")
    before = int(redis.time()[0])
    plain.consume("q", failing(error), burst=True, **options)
    after = int(redis.time()[0])
    [left] = plain.peek("q", "all")
    assert before <= left.visible_at / 1000 - after_s <= after + 1


@pytest.mark.parametrize(
    ("error", "traced"), [(Retry(after=9, reason="busy"), False), (ValueError("no"), True)]
)
def test_failure_is_logged_with_a_traceback_unless_it_was_asked_for(plain, caplog, error, traced):
    sent = plain.send_message("q", "x")
    plain.consume("q", failing(error), burst=True)
    [said] = [one for one in caplog.records if "failed" in one.message]
    assert said.message == f"queue q: message {sent} failed" + ("" if traced else ": busy")
    assert bool(said.exc_info) is traced


def test_message_is_dead_after_it_failed_so_often(plain):
    sent = plain.send_message("q", "x")
    assert plain.consume("q", failing(Retry(after=0)), burst=True, max_receives=3) == Consumed(
        failed=2, dead=1
    )
    assert plain.counts("q-dead") == (1, 0)
    assert plain.peek("q-dead")[0].id == sent
    assert plain.counts("q") == (0, 0)


def test_message_that_kills_who_receives_it_is_dead_unhandled(plain):
    plain.send_message("q", "poison")
    for _ in range(3):
        plain.receive_message("q", vt=0)
    seen: list[RsmqMessage] = []
    assert plain.consume(
        "q", seen.append, burst=True, max_receives=3, dead_letter="graves"
    ) == Consumed(dead=1)
    assert seen == []
    assert [one.message for one in plain.peek("graves")] == ["poison"]


def test_handler_sends_a_message_to_the_dead_at_once(plain):
    plain.send_message("q", "x")
    assert plain.consume("q", failing(Dead("no such user")), burst=True) == Consumed(dead=1)
    assert plain.counts("q-dead") == (1, 0)
    assert plain.get_queue_attributes("q-dead").maxsize == -1


def test_consumer_goes_on_where_no_queue_for_the_dead_can_be_named(plain, caplog):
    plain.create_queue("q" * 158)
    plain.send_message("q" * 158, "x")
    assert plain.consume("q" * 158, failing(Dead("no")), burst=True) == Consumed(failed=1)
    assert "dead_letter" in caplog.text
    assert plain.counts("q" * 158) == (0, 1)


def test_consumer_goes_on_when_the_server_is_too_full_to_bury(plain, redis):
    plain.send_message("q", "x")

    def handle(message: RsmqMessage) -> None:
        redis.config_set("maxmemory", 1)
        raise Dead("no")

    try:
        assert plain.consume("q", handle, burst=True) == Consumed(lost=1)
    finally:
        redis.config_set("maxmemory", 0)
    assert plain.counts("q") == (0, 1)


def losing(plain: Rsmq, script: str) -> None:
    """The first reply of that script is lost, after the server did what it says."""
    run, lost = plain.client.run, []

    def lossy(asked: Any, *rest: Any) -> Any:
        reply = run(asked, *rest)
        if asked.name == script and not lost:
            lost.append(reply)
            raise UnavailableError("the reply was lost")
        return reply

    plain.client.run = lossy


@pytest.mark.parametrize("script", ["next", "delete"])
def test_message_counts_as_done_when_the_reply_to_its_deletion_was_lost(plain, script):
    plain.send_messages("q", ["x"])
    losing(plain, script)
    assert plain.consume("q", lambda _: None, burst=True, concurrency=1 + (script == "delete")) == (
        Consumed(done=1)
    )
    assert plain.counts("q") == (0, 0)


def test_message_counts_as_dead_when_the_reply_to_its_move_was_lost(plain):
    plain.send_messages("q", ["x"])
    losing(plain, "move")
    assert plain.consume("q", failing(Dead()), burst=True) == Consumed(dead=1)
    assert plain.counts("q-dead") == (1, 0)


def test_message_counts_as_lost_when_somebody_received_it_and_no_reply_came(plain):
    sent = plain.send_message("q", "x")

    def taken(_: RsmqMessage) -> None:
        plain.change_message_visibility("q", sent, 0)
        plain.receive_message("q")

    losing(plain, "next")
    assert plain.consume("q", taken, burst=True) == Consumed(lost=1)
    assert plain.counts("q") == (0, 1)


def test_dead_queue_that_is_there_keeps_its_settings(plain):
    plain.create_queue("q-dead", vt=7)
    plain.consume("q", failing(Dead()), burst=True, max_receives=1)
    assert plain.get_queue_attributes("q-dead").vt == 7


def test_message_that_somebody_else_received_meanwhile_is_not_deleted(plain):
    plain.send_message("q", "x")

    def slow(message: RsmqMessage) -> None:
        plain.change_message_visibility("q", message.id, 0)
        assert plain.receive_message("q").rc == 2

    assert plain.consume("q", slow, burst=True) == Consumed(lost=1)
    assert plain.counts("q") == (0, 1)


def test_heartbeat_keeps_a_message_hidden_longer_than_its_timeout(plain):
    plain.send_message("q", "x")
    began: list[int] = []

    def long(message: RsmqMessage) -> None:
        began.append(plain.peek("q", "all")[0].visible_at)
        deadline = time.monotonic() + 120
        while plain.peek("q", "all")[0].visible_at < began[0] + 1_000:
            assert time.monotonic() < deadline, "never renewed"
            time.sleep(0.02)

    assert plain.consume("q", long, burst=True, vt=1) == Consumed(done=1)


def test_renewal_forgets_a_message_that_somebody_else_received(plain, caplog):
    plain.send_messages("q", ["a", "b"])
    mine = plain.receive_messages("q", 2, vt=0)
    held = VisibilityRenewer(plain, "q", 60)
    for message in mine:
        held.add(message)
    plain.receive_message("q", vt=0)
    held.renew()
    assert len(held) == 1
    assert "another consumer" in caplog.text
    assert plain.counts("q") == (1, 1)


def test_renewal_touches_no_message_that_was_let_go(plain):
    plain.send_message("q", "x")
    message = plain.receive_message("q", vt=0)
    held = VisibilityRenewer(plain, "q", 60)
    held.add(message)
    held.let_go(message)
    held.renew()
    assert plain.counts("q") == (1, 0)


def test_stop_ends_a_waiting_consumer_at_once(plain, redis):
    consumer = Consumer(plain, "q", lambda _: None)
    ended: list[Consumed] = []
    thread = threading.Thread(target=lambda: ended.append(consumer.run()))
    thread.start()
    while not redis.pubsub_numsub("rsmq:rt:q")[0][1]:
        time.sleep(0.005)
    consumer.stop()
    thread.join(120)
    assert ended == [Consumed()]


def test_stop_lets_the_running_handler_end_and_takes_no_more(plain):
    plain.send_messages("q", ["a", "b"])
    seen: list[str] = []

    def handle(message: RsmqMessage) -> None:
        consumer.stop()
        seen.append(message.message)

    consumer = Consumer(plain, "q", handle)
    assert consumer.run() == Consumed(done=1)
    assert seen == ["a"] and plain.counts("q") == (1, 0)


def test_interrupted_handler_gives_its_message_back_at_once(plain):
    plain.send_message("q", "x")
    with pytest.raises(KeyboardInterrupt):
        plain.consume("q", failing(KeyboardInterrupt()), burst=True)
    assert plain.counts("q") == (1, 0)


def test_signal_ends_a_consumer_after_its_running_handler(plain, server):
    plain.send_messages("q", ["a", "b"])
    program = (
        "import sys\nfrom jobq.protocols.rsmq import Rsmq\nrsmq = Rsmq(sys.argv[1])\n"
        "def handle(message):\n    print('began', flush=True)\n    sys.stdin.readline()\n"
        "print(rsmq.consume('q', handle))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    process.send_signal(signal.SIGTERM)
    assert process.poll() is None
    out, _ = process.communicate("go on\n", timeout=120)
    assert out == "Consumed(done=1, failed=0, dead=0, lost=0)\n"
    assert process.returncode == 0
    assert plain.counts("q") == (1, 0)


def test_signal_handlers_of_others_are_put_back(plain):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    plain.consume("q", lambda _: None, burst=True)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_consumer_of_a_queue_that_is_deleted_says_so(plain):
    plain.send_message("q", "x")
    with pytest.raises(QueueNotFoundError):
        plain.consume("q", lambda _: plain.delete_queue("q"))
    with pytest.raises(QueueNotFoundError):
        plain.consume("unknown", lambda _: None)


@pytest.mark.parametrize(
    "options", [{"vt": 0}, {"concurrency": 0}, {"max_receives": 0}, {"dead_letter": "q"}]
)
def test_option_that_cannot_work_is_refused(plain, options):
    with pytest.raises(ConfigError):
        plain.consume("q", lambda _: None, **options)


def test_names_that_no_dead_queue_can_have_are_refused(plain):
    with pytest.raises(InvalidFormatError):
        plain.consume("q" * 158, lambda _: None, max_receives=1)
    with pytest.raises(InvalidFormatError):
        plain.consume("q", lambda _: None, dead_letter="a.b")


def test_queue_without_a_timeout_needs_one_from_its_consumer(plain):
    plain.create_queue("z", vt=0)
    with pytest.raises(ConfigError, match="pass vt="):
        plain.consume("z", lambda _: None, burst=True)
    assert plain.consume("z", lambda _: None, burst=True, vt=1) == Consumed()
