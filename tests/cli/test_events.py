"""jobq events: level, maxlen, tail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from jobq.events import attempt_record
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
RECORD = attempt_record("mail.send", 1, 0, 250_000, 9_000, 4_096, "w1", "Boom", "f1", 2, TRACE)


@pytest.fixture
def one_done(queue: Queue) -> Queue:
    """A queue whose only event is an attempt's end."""
    queue.enqueue(b"{}", mid="m")
    [held] = queue.dequeue().messages
    queue.finish([Ending(mid="m", token=held.token, outcome="retry", record=RECORD)])
    return queue


def test_events_level_is_shown_and_set(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"1")
    assert cli("events", "level").out == "low: attempts\n"
    assert cli("events", "level", "all", "-q", "low", "--json").records == [
        {"queue": "low", "level": "all"}
    ]
    assert queue.admin.events_level() == "all"
    assert cli("events", "level", "some").code == 2


def test_events_maxlen_is_shown_and_set_beside_the_level(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"1")
    queue.admin.events_level("all")
    assert cli("events", "maxlen").out == "low: 100,000\n"
    assert cli("events", "maxlen", "5000", "-q", "low", "--json").records == [
        {"queue": "low", "maxlen": 5000}
    ]
    assert (queue.admin.events_maxlen(), queue.admin.events_level()) == (5000, "all")
    assert cli("events", "maxlen", "99").code == 2


def test_tail_shows_what_is_on_record(cli: Any, one_done: Queue) -> None:
    [line] = cli("events", "tail").out.splitlines()
    told = f"waited 0 ms, ran 250.0 ms in w1 (Boom f1) trace {TRACE}"
    assert line.endswith(f"  low  retry mail.send m attempt 1 {told}")


def test_tail_gives_every_column_as_json(cli: Any, one_done: Queue) -> None:
    [record] = cli("events", "tail", "--json").records
    assert record | {"id": "", "finished_at": 0} == {
        "id": "", "queue": "low", "kind": "retry", "mid": "m", "finished_at": 0, "job": "mail.send",
        "attempt": 1, "enqueued_at": 0, "run_us": 250_000, "cpu_us": 9_000, "rss_kib": 4_096,
        "worker": "w1", "error": "Boom", "fingerprint": "f1", "bytes": 2, "trace_id": TRACE, "key": "", "place": "",
    }  # fmt: skip


def test_tail_takes_the_newest_of_all_queues_oldest_first(cli: Any, client: Any) -> None:
    for at, name in enumerate(("low", "high", "low", "high"), 1):
        queue = Queue(name, client)
        queue.enqueue(b"1")
        client.command("XADD", f"{queue.prefix}events", f"{at}-0", "1", "done\x1fm\x1f5")
    records = cli("events", "tail", "-n", "3", "--json").records
    assert [record["queue"] for record in records] == ["high", "low", "high"]


def test_tail_tells_of_what_is_no_record_and_goes_on(cli: Any, one_done: Queue) -> None:
    client, key = one_done.client, f"{one_done.prefix}events"
    client.command("XADD", key, "*", "9", b"\x1b[2J\xff")
    client.command("XADD", key, "*", "1", "done\x1fn\x1fsoon")
    lines = cli("events", "tail").out.splitlines()
    assert len(lines) == 3
    assert "not a record: version b'9' of event records is unknown" in lines[1]
    assert "not a record: finished_at 'soon' in an event record must be a number" in lines[2]
    assert cli("events", "tail", "--json").records[1]["fields"] == "9\x1f\x1b[2J\\xff"


def test_tail_of_nothing_exits_with_one(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"1")
    ended = cli("events", "tail")
    assert (ended.code, ended.out) == (1, "")


def test_tail_follows_until_interrupted(queue: Queue, client: Any) -> None:
    queue.admin.events_level("all")
    queue.enqueue(b"1", mid="before")
    command = [
        sys.executable,
        "-m",
        "jobq",
        "events",
        "tail",
        "--follow",
        "--json",
        "--url",
        client.url,
    ]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert '"before"' in process.stdout.readline()
        queue.enqueue(b"1", mid="after")
        assert '"after"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
