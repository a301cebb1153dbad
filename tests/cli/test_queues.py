"""`jobq queues`, `pause`, `resume`, `clear`, `events`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jobq.events import in_utc
from jobq.observe.facts import Collector
from jobq.observe.situation import read_situation
from jobq.queue import directory, presence
from jobq.queue.queue import Queue


def test_queues_counts_where_messages_are(cli: Any, client: Any) -> None:
    low = Queue("low", client)
    low.enqueue_many([b"1", b"2"])
    low.enqueue(b"3", delay=3600)
    low.dequeue()
    Queue("high", client).enqueue(b"4")
    high, found = cli("queues", "--json").records
    assert high["queue"] == "high" and high["ready"] == 1
    [finding] = found.pop("findings")
    assert (finding["code"], finding["remedy"]) == (
        "no_worker",
        "jobq worker --import MODULE --queues low",
    )
    assert found == {
        "queue": "low", "ready": 1, "delayed": 1, "running": 1, "requeued": 0, "finished": 0, "deduped": 0,
        "dead": 0, "messages": 3, "paused": False, "pause_ends": None, "workers": 0,
        "oldest_ms": None, "starts_per_s": None, "flow_entries": 0,
    }  # fmt: skip
    shown = cli("queues", "low").out.splitlines()
    assert shown[0].split()[:3] == ["queue", "ready", "delayed"] and len(shown) == 5
    assert shown[3] == "! queue low: 1 ready, and no worker serves it"


def test_queues_show_no_rate_when_events_are_off(cli: Any, queue: Queue, client: Any) -> None:
    queue.enqueue(b"1")
    queue.dequeue()
    client.command("XADD", f"{queue.prefix}events", "1-1", "1", "done\x1fold\x1f1\x1fa.b")
    rates = []
    for level in ("attempts", "off"):
        queue.admin.events_level(level)
        rates.append(cli("queues", "--json").records[0]["starts_per_s"])
    assert rates == [0, None]
    assert Collector(queue).collect("m").starts_per_s is None
    assert read_situation(client).queues["low"].starts_per_s is None


def test_queue_that_rests_until_flows_are_told_says_so(
    cli: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(b"1", mid="m")
    for _ in range(2):
        queue.announce("look", "import:7")
    assert cli("queues", "--json").records[0]["flow_entries"] == 2
    assert "rests" not in cli("queues").out
    for module in ("cli.queues", "observe.why"):
        monkeypatch.setattr(f"jobq.{module}.MAX_ENTRIES", 1)
    assert "blocked: 2 results for flows" in cli("queues").out
    assert "is blocked, because 2 results wait for delivery to flows" in cli("why", "m").out
    queue.cancel("m")
    queue.admin.collect()
    refused = cli("queue", "delete", "low")
    assert refused.code == 1 and "it has 2 undelivered results for flows" in refused.out


def test_queues_without_any_says_so(cli: Any) -> None:
    assert "no queues here yet" in cli("queues").err


def test_queues_watch_looks_again_and_again(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"1")
    ended = cli("queues", "--watch", "--every", "1ms", "--times", "3", "--json")
    assert [record["ready"] for record in ended.records] == [1, 1, 1]


def test_queues_of_another_namespace_are_other_queues(cli: Any, queue: Queue) -> None:
    queue.enqueue(b"1")
    assert cli("queues", "--namespace", "elsewhere", "--json").records == []


def test_pause_and_resume(cli: Any, queue: Queue, client: Any) -> None:
    for name in ("low", "high"):
        directory.register_queue(client, name)
    assert cli("pause", "low", "high").out == "low: paused\nhigh: paused\n"
    assert queue.admin.counts().paused
    assert "paused" in cli("queues", "low").out
    [record] = cli("pause", "low", "--for", "30m", "--json").records
    until = in_utc(record["pause_ends"])
    assert (
        record["paused"]
        and cli("queues", "--json", "low").records[0]["pause_ends"] == record["pause_ends"]
    )
    assert f"paused until {until}" in cli("queues", "low").out
    queue.enqueue(b"{}", mid="m")
    assert f"waiting: the queue is paused until {until}" in cli("why", "m").out
    assert cli("pause", "low", "--for", "0s").code == 2
    assert cli("resume", "low", "--json").records == [{"queue": "low", "paused": False}]
    assert not queue.admin.counts().paused


def test_clear_asks_and_drops_live_messages_only(cli: Any, queue: Queue, kill_message: Any) -> None:
    kill_message(queue, "dead")
    queue.enqueue_many([b"1", b"2"])
    refused = cli("queue", "purge", "low", given="n\n")
    assert refused.code == 1 and "2 of low" in refused.err and queue.admin.counts().messages == 2
    assert cli("queue", "purge", "low", "--yes", "--json").records == [
        {"queue": "low", "cleared": 2}
    ]
    assert (queue.admin.counts().messages, queue.admin.counts().dead) == (0, 1)


def test_queue_name_that_no_key_can_hold_is_refused(cli: Any) -> None:
    ended = cli("pause", "a{b")
    assert ended.code == 2 and ended.err.startswith("jobq: queue 'a{b'")


@pytest.mark.parametrize("verb", ["pause", "resume", "queue purge --yes"])
def test_verb_names_the_nearest_queues_when_there_was_none_of_that_name(
    cli: Any, client: Any, redis: Any, verb: str
) -> None:
    Queue("mails", client).enqueue(b"1")
    before = set(redis.keys())
    ended = cli(*verb.split(), "mail")
    assert (ended.code, ended.out) == (
        1, "queue mail has never been used here; did you mean mails?\n"
    )  # fmt: skip
    assert set(redis.keys()) == before
    # The other queues are still changed.
    ended = cli(*verb.split(), "zzz", "mails", "--json")
    assert ended.code == 1
    assert [one["queue"] for one in ended.records] == ["zzz", "mails"]


def test_forget_takes_an_empty_queue_off_the_list(cli: Any, client: Any, redis: Any) -> None:
    queue = Queue("old", client)
    queue.admin.events_level("all")
    queue.enqueue(b"1", mid="m")
    refused = cli("queue", "delete", "old")
    assert refused.code == 1 and "it holds 1 message" in refused.out
    assert [one["queue"] for one in cli("queues", "--json").records] == ["old"]
    queue.cancel("m")
    fence = int(redis.hget("jobq:{old}:meta", "fence") or 0)

    assert cli("queue", "delete", "old").out == "old: deleted\n"
    assert cli("queues", "--json").records == []
    assert not redis.exists("jobq:{old}:events")
    queue.enqueue(b"2")
    assert queue.dequeue().messages[0].fence > fence


def test_forgotten_queue_is_listed_again_within_a_minute_of_enqueues_by_a_process_that_used_it(
    cli: Any, client: Any, monkeypatch: Any
) -> None:
    queue = Queue("old", client)
    queue.enqueue(b"1", mid="m")
    queue.cancel("m")
    assert cli("queue", "delete", "old").code == 0
    later = time.monotonic() + directory.LIST_EVERY_S
    for place in ("time.monotonic", "jobq.queue.queue.monotonic"):
        monkeypatch.setattr(place, lambda: later)
    queue.enqueue(b"2")
    assert [one["queue"] for one in cli("queues", "--json").records] == ["old"]


def test_forget_is_refused_while_a_worker_serves_the_queue(cli: Any, client: Any) -> None:
    Queue("old", client).admin.pause()
    directory.register_queue(client, "old")
    facts = {"seen_at": round(time.time() * 1000), "lease_ms": 15_000, "queues": ["old"]}
    presence.put_worker(client, "host:1", facts)
    refused = cli("queue", "delete", "old")
    assert refused.code == 1 and "it is served by a worker" in refused.out


def test_queues_and_doctor_name_ready_queues_that_no_worker_serves(cli: Any, client: Any) -> None:
    for name in ("served", "lone", "resting"):
        Queue(name, client).enqueue(b"1")
    Queue("resting", client).admin.pause()
    facts = {"seen_at": round(time.time() * 1000), "lease_ms": 15_000, "queues": ["served"]}
    presence.put_worker(client, "host:1", facts)
    presence.put_worker(client, "host:2", {**facts, "seen_at": 0, "queues": ["lone"]})
    presence.put_worker(client, "host:3", {"seen_at": "x", "queues": 7})

    lines = {line.split()[0]: line for line in cli("queues").out.splitlines()[:4]}
    assert lines["lone"].endswith("no worker") and "no worker" not in lines["served"]
    assert {one["queue"]: one["workers"] for one in cli("queues", "--json").records} == {
        "served": 1, "lone": 0, "resting": 0,
    }  # fmt: skip
    told = [one for one in cli("check", "doctor", "--json").records if one["check"] == "workers"]
    assert [one["value"] for one in told] == ["queue lone: 1 ready, and no worker serves it"]
    assert [one["remedy"] for one in told] == ["jobq worker --import MODULE --queues lone"]


@pytest.mark.parametrize(
    "command",
    [("queues",), ("queue", "peek"), ("events", "tail"), ("dead", "list"), ("dead", "retention")],
    ids=" ".join,
)
def test_queues_are_arguments(
    cli: Any, client: Any, command: tuple[str, ...], kill_message: Any
) -> None:
    for name in ("low", "high", "mid"):
        queue = Queue(name, client)
        kill_message(queue, "dead")
        queue.enqueue(b"{}", mid="m")
    for words, named in [
        (("low",), {"low"}),
        (("low", "high"), {"low", "high"}),
        (("low,high",), {"low", "high"}),
        ((), {"low", "high", "mid"}),
    ]:
        records = cli(*command, *words, "--json").records
        assert {record["queue"] for record in records} == named, words
    assert "No such option" in cli(*command, "--queues", "low").err
