"""The views of the current contents of queues: messages, counts, the dead."""

from __future__ import annotations

import pytest

from jobq.jobs.codec import encode
from jobq.pipeline.reading import live
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.queue.types import Ending

CALL = encode("mail.send", ["a@b"], enqueued_at=1_763_000_000_000)
KEYS = b"k" * 32


@pytest.fixture
def many(valkey_queue):
    """A message in each of the states that there are without waiting."""
    valkey_queue.enqueue(b"no call", mid="ready")
    [held] = valkey_queue.dequeue(lease=60).messages
    assert held.mid == "ready"
    for mid in ("done", "again"):
        valkey_queue.enqueue(CALL, mid=mid)
    done, again = valkey_queue.dequeue(2, lease=60).messages
    valkey_queue.finish([Ending(mid="done", token=done.token, backoff=60)])
    valkey_queue.enqueue(CALL, mid="again", on_conflict="requeue")
    valkey_queue.enqueue(CALL, mid="later", delay=60)
    valkey_queue.enqueue(CALL, mid="queued")
    return valkey_queue, again


def test_messages_have_the_status_that_the_queue_says(load, many):
    queue, _ = many
    rows = {row["mid"]: row for row in load(view="messages").rows()}
    assert {mid: row["status"] for mid, row in rows.items()} == {
        "ready": "locked", "done": "done-with-backoff", "again": "locked-with-requeue",
        "later": "queued-with-backoff", "queued": "queued",
    }  # fmt: skip
    for mid, row in rows.items():
        status = queue.status(mid)
        assert (row["status"], row["attempts"], row["ncrashes"]) == status[:3]
        for column, ms in (
            ("not_before", status.not_before),
            ("lock_expires_at", status.lock_expires_at),
        ):
            assert (round(row[column].timestamp() * 1000) if row[column] else 0) == ms


def test_messages_tell_their_job_where_they_are_calls(load, many):
    rows = {row["mid"]: row for row in load(view="messages").rows()}
    assert (rows["ready"]["job"], rows["ready"]["bytes"]) == (None, 7)
    assert (rows["later"]["job"], rows["later"]["bytes"]) == ("mail.send", len(CALL))
    assert rows["later"]["enqueued_at"].timestamp() == 1_763_000_000


def test_contents_come_when_asked_for(load, many):
    assert "content" not in load(view="messages").rows()[0]
    rows = load(view="messages", columns="mid,content").rows()
    assert {row["mid"]: row["content"] for row in rows}["ready"] == b"no call"
    [first, *_] = load(view="messages", columns="*").rows()
    assert {"content", "status"} < set(first)


def test_lengths_are_told_without_contents(load, many):
    rows = load(view="messages", columns="mid,bytes").rows()
    assert {row["mid"]: row["bytes"] for row in rows}["ready"] == 7


@pytest.mark.parametrize("page", [3, 500])
def test_each_message_comes_once_when_there_are_many(load, valkey_client, monkeypatch, page):
    monkeypatch.setattr(live, "PAGE", page)
    for name in ("low", "high"):
        Queue(name, valkey_client).enqueue_many((f"{name}{i}", b"v") for i in range(400))
    rows = load(view="messages", partitions=2).rows()
    assert len(rows) == len({row["mid"] for row in rows}) == 800


def test_each_message_comes_once_when_the_hash_shrinks_meanwhile(load, valkey_queue, monkeypatch):
    monkeypatch.setattr(live, "PAGE", 10)
    valkey_queue.enqueue_many((f"m{i}", b"v") for i in range(2_000))
    planned = load(view="messages", columns="mid")
    found = []
    for batch in planned.reader.read(planned.parts[0]):
        found += batch.to_pydict()["mid"]
        valkey_queue.cancel(*(f"m{i}" for i in range(1_000, 2_000)))
        valkey_queue.admin.collect(1_000)
    assert len(found) == len(set(found))
    assert {f"m{i}" for i in range(1_000)} <= set(found)


@pytest.mark.parametrize("prefix", [b"jobq-s1 k " + b"0" * 64 + b"\n", b""])
def test_head_reads_signed_calls_and_plain_ones(prefix):
    assert live.head(prefix + CALL) == ("mail.send", 1_763_000_000_000)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[1]", b'"x"', b'{"job": 5}', b"jobq-e1 k\nxxxx", b"[" * 100_000]
)
def test_head_of_what_is_no_call_is_nothing(content):
    assert live.head(content) == (None, None)


def test_queues_have_their_counts(load, many, valkey_client):
    Queue("other", valkey_client).enqueue(b"v")
    queue, _ = many
    queue.admin.pause()
    queue.admin.events_level("all")
    queue.admin.events_maxlen(5_000)
    low, other = sorted(load(view="queues").rows(), key=lambda row: row["queue"])
    # Each partition has a row of its own.
    counts = {k: v for k, v in queue.admin.counts()._asdict().items() if "partitions" not in k}
    assert {name: low[name] for name in counts} == counts
    assert (low["paused"], low["level"], low["maxlen"]) == (True, "all", 5_000)
    assert (low["events"], low["events_added"]) == (1, 1)
    assert (other["queue"], other["ready"], other["level"], other["paused"]) == (
        "other", 1, "attempts", False,
    )  # fmt: skip


def test_counts_are_of_when_the_read_was_planned(load, valkey_queue):
    valkey_queue.enqueue(b"v")
    planned = load(view="queues", columns="queue,messages")
    valkey_queue.enqueue(b"v")
    assert planned.rows() == planned.rows() == [{"queue": "low", "messages": 1}]


@pytest.fixture
def bury(valkey_queue):
    """bury(mid, content, reason, now): one message dead at that time."""

    def make(mid, content=b"v", reason="given up", now=None):
        valkey_queue.enqueue(content, mid=mid, now=now)
        [held] = valkey_queue.dequeue(now=now).messages
        valkey_queue.finish(
            [Ending(mid=mid, token=held.token, outcome="dead", reason=reason)], now=now
        )

    return make


def test_dead_have_reason_attempts_and_content(load, bury, valkey_queue):
    bury("a", CALL, "Traceback\x1fé\nBoom")
    [told] = valkey_queue.admin.dead()
    [row] = load(view="dead").rows()
    assert (row["queue"], row["dead_id"], row["mid"]) == ("low", told.dead_id, "a")
    assert (row["attempts"], row["ncrashes"], row["reason"]) == (1, 0, "Traceback\x1fé\nBoom")
    assert (row["content"], row["bytes"], row["job"]) == (CALL, len(CALL), "mail.send")
    assert round(row["died_at"].timestamp() * 1000) == told.died_at


def test_dead_of_one_moment_come_once_each_over_pages(load, bury, monkeypatch):
    monkeypatch.setattr(live, "PAGE", 3)
    now = 1_763_000_000_000
    # Some servers' locale has them in another order than their sorted sets.
    mids = ["B", "a", "a-b", "a_b", "ab", "aB", "é", "E", "f", "m0", "m00", "m1", "Z"]
    for mid in mids:
        bury(mid, now=now)
    bury("after", now=now + 1)
    rows = load(view="dead").rows()
    assert sorted(row["mid"] for row in rows) == sorted(["after", *mids])


def test_dead_are_those_of_the_span(load, bury):
    now = 1_763_000_000_000
    for i in range(5):
        bury(f"m{i}", now=now + 1_000 * i)
    rows = load(view="dead", since="2025-11-13T02:13:21Z", until="2025-11-13T02:13:23Z").rows()
    assert [row["mid"] for row in rows] == ["m1", "m2"]


def test_dead_that_died_after_the_plan_are_left_out(load, bury, valkey_queue):
    now = 1_763_000_000_000
    bury("a", now=now)
    planned = load(view="dead", columns="mid")
    bury("b", now=now + 5)
    assert planned.rows() == [{"mid": "a"}]
    valkey_queue.admin.purge(*(one.dead_id for one in valkey_queue.admin.dead(mid="a")))
    assert planned.rows() == []


@pytest.mark.parametrize("view", ["messages", "queues", "dead"])
def test_rows_of_partitions_name_their_queue(load, valkey_client, view):
    partition(valkey_client, "low", 3)
    low, high = Queue("low", valkey_client), Queue("a/b", valkey_client)
    for queue in (low, high):
        queue.enqueue_many((f"m{number}", CALL) for number in range(9))
        for place in queue.alone() if view == "dead" else ():
            for one in place.dequeue(9, lease=60).messages:
                place.finish([Ending(mid=one.mid, token=one.token, outcome="dead", reason="no")])

    rows = load(view=view).rows()

    names = {(row["queue"], row["base_queue"]) for row in rows}
    assert names >= {("low/0", "low"), ("low/1", "low"), ("low/2", "low"), ("a/b", "a/b")}
    assert {base for _, base in names} == {"low", "a/b"}
    assert "base_queue" not in load(view=view, columns="queue").rows()[0]
