"""`jobq queues`, `pause`, `resume`, `clear`, `events`."""

from __future__ import annotations

from typing import Any

from jobq.engine.queue import Queue


def test_queues_counts_where_messages_are(cli: Any, client: Any) -> None:
    low = Queue("low", client)
    low.enqueue_many([b"1", b"2"])
    low.enqueue(b"3", delay=3600)
    low.dequeue()
    Queue("high", client).enqueue(b"4")
    high, found = cli("queues", "--json").records
    assert high["queue"] == "high" and high["ready"] == 1
    assert found == {
        "queue": "low", "ready": 1, "delayed": 1, "locked": 1, "requeued": 0, "done": 0, "deduped": 0,
        "dead": 0, "messages": 3, "paused": False,
    }  # fmt: skip
    shown = cli("queues", "--queues", "low").out.splitlines()
    assert shown[0].split()[:3] == ["queue", "ready", "delayed"] and len(shown) == 2


def test_queues_without_any_says_so(cli: Any) -> None:
    assert "no queue was ever used here" in cli("queues").err


def test_queues_watch_looks_again_and_again(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"1")
    ended = cli("queues", "--watch", "--every", "1ms", "--times", "3", "--json")
    assert [record["ready"] for record in ended.records] == [1, 1, 1]


def test_queues_of_another_namespace_are_other_queues(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"1")
    assert cli("queues", "--namespace", "elsewhere", "--json").records == []


def test_pause_and_resume(cli: Any, queue: Queue) -> None:
    assert cli("pause", "low", "high").out == "low: paused\nhigh: paused\n"
    assert queue.counts().paused
    assert "paused" in cli("queues", "--queues", "low").out
    assert cli("resume", "low", "--json").records == [{"queue": "low", "paused": False}]
    assert not queue.counts().paused


def test_clear_asks_and_drops_live_messages_only(cli: Any, queue: Queue, kill_message: Any) -> None:
    kill_message(queue, "dead")
    queue.enqueue_many([b"1", b"2"])
    refused = cli("clear", "low", given="n\n")
    assert refused.code == 1 and "2 of low" in refused.err and queue.counts().messages == 2
    assert cli("clear", "low", "--yes", "--json").records == [{"queue": "low", "cleared": 2}]
    assert (queue.counts().messages, queue.counts().dead) == (0, 1)


def test_queue_name_that_no_key_can_hold_is_refused(cli: Any) -> None:
    ended = cli("pause", "a{b")
    assert ended.code == 2 and ended.err.startswith("jobq: queue 'a{b'")
