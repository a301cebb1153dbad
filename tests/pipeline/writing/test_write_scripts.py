"""deliver: a repeated call after a lost reply has no effect."""

from __future__ import annotations

from collections import deque

import pytest

from jobq.client.functions import load_library
from jobq.client.scripts import load
from jobq.errors import KeyFullError, LeaseLostError, ServerFullError
from jobq.pipeline.writing.delivery import Delivery, QueueSender, packed
from jobq.pipeline.writing.rows import RowMessage
from jobq.queue import keys
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.pipeline.writing.table import Write, schema_of

MESSAGES = [RowMessage("low", "", f"m{n}", b"{}" * n) for n in range(5)]
LATER = [RowMessage("low", "d60000", f"l{n}", b"\xff") for n in range(3)]


def call(client, name, *args):
    """A script of the pipeline as `low`'s; the reply as text."""
    script, prefix = load("pipeline", name), keys.prefix(client.namespace, "low")
    names = [keys.key(prefix, key, "caller") for key in script.keys]
    return [part.decode() for part in client.run(script, names, args)]


def test_deliver_repeats_its_reply_and_refuses_an_older_call(client):
    queue, batch = Queue("low", client), packed([*MESSAGES, *LATER])
    assert call(client, "deliver", "caller", 2, "", 1000, "", batch) == ["ok", "8", "0"]
    assert call(client, "deliver", "caller", 2, "", 1000, "", batch) == ["ok", "8", "0"]
    assert call(client, "deliver", "caller", 3, "", 1000, "", batch) == ["ok", "0", "8"]
    assert call(client, "deliver", "caller", 2, "", 1000, "", batch) == ["closed"]
    counts = queue.admin.counts()
    assert (counts.ready, counts.delayed) == (5, 3)
    assert [entry.content for entry in queue.admin.content("due").entries] == [b"\xff"] * 3


def test_event_is_the_one_that_enqueue_writes(client, redis):
    queue = Queue("low", client)
    queue.admin.events_level("all")
    queue.enqueue(b"abc", mid="m1")
    call(client, "deliver", "caller", 1, "", "", "", packed([RowMessage("low", "", "m2", b"abc")]))
    one, two = (fields[b"1"].split(b"\x1f") for _, fields in redis.xrange("jobq:{low}:events"))
    assert (one[1], two[1]) == (b"m1", b"m2")
    assert (one[0], one[3:]) == (two[0], two[3:])


def test_mid_that_comes_twice_in_a_batch_keeps_its_first_time_and_content(client):
    twice = [
        RowMessage("low", when, "m", content) for when, content in (("", b"1"), ("d60000", b"2"))
    ]
    assert call(client, "deliver", "caller", 1, "", "", "", packed(twice)) == ["ok", "1", "1"]
    queue = Queue("low", client)
    assert [entry.content for entry in queue.admin.content("ready").entries] == [b"1"]
    assert queue.admin.fsck() == []


def test_older_call_is_told_as_refused(client):
    sender = QueueSender(client, "low", 1000)
    sender.send(MESSAGES)
    sender.send(LATER)
    sender._caller.number = 0
    with pytest.raises(LeaseLostError, match="queue 'low' rejected caller"):
        sender.send(MESSAGES)
    assert (sender.nadded, Queue("low", client).admin.counts().messages) == (8, 8)


def test_full_server_refuses_the_call_whole(client, redis):
    sender = QueueSender(client, "low", 1000)
    sender.send(MESSAGES)
    before = {key: redis.dump(key) for key in redis.keys("*")}
    redis.config_set("maxmemory", 1)
    with pytest.raises(ServerFullError):
        sender.send(LATER)
    redis.config_set("maxmemory", 0)
    assert {key: redis.dump(key) for key in redis.keys("*")} == before


def test_writes_work_by_functions_alone(client, server, monkeypatch):
    load_library(client)
    client.command("SCRIPT", "FLUSH")
    monkeypatch.setenv("JOBQ_FUNCTIONS", "1")
    schema = schema_of(id="long", wait="double")
    options = {"job": "j", "queue": "low", "idColumn": "id", "delayColumn": "wait"}
    Write(server.url, schema, **options).save([(n, None) for n in range(10)])
    assert Queue("low", client).admin.counts().ready == 10
    client.command("FUNCTION", "FLUSH")


def test_rows_with_keys_wait_in_the_lines_of_their_keys(client):
    queue = Queue("low", client)
    queue.rule("bob", waiting=1)
    sender = QueueSender(client, "low", 1000, "ordered")
    sender.send(
        [
            RowMessage("low", "", "a1", b"1", "acme"),
            RowMessage("low", "", "a2", b"2", "acme"),
            RowMessage("low", "", "b1", b"3", "bob"),
            RowMessage("low", "", "plain", b"4"),
            RowMessage("low", "a1", "a3", b"5", "acme"),
            RowMessage("low", "d60000", "a4", b"6", "acme"),
        ]
    )
    waiting = {row.key: (row.waiting, row.oldest) for row in queue.admin.iter_keys()}
    assert waiting == {"acme": (3, "a1"), "bob": (1, "b1")}
    assert (queue.admin.counts().ready, queue.admin.counts().delayed) == (5, 1)
    with pytest.raises(KeyFullError, match="key bob has 1 waiting message, the maximum;"):
        sender.send(
            [RowMessage("low", "", "c", b"7", "eve"), RowMessage("low", "", "b2", b"8", "bob")]
        )
    assert queue.admin.counts().messages == 6
    assert {one.mid for one in queue.dequeue(10).messages} == {"a1", "b1", "plain"}
    assert queue.admin.fsck() == []


def keyed_rows(*given):
    """Rows of keys: a1 is the first of the key a."""
    return [RowMessage("low", "", mid, b"{}", mid[0]) for mid in given]


def test_rows_of_a_full_line_let_others_pass_and_go_as_there_is_room(client, monkeypatch):
    queue = Queue("low", client)
    queue.rules(key_waiting=2)
    delivery, seen = Delivery(client, 4, 1000, "ordered"), []

    def work(_):
        """In place of a pause."""
        assert all(row.waiting <= 2 for row in queue.admin.iter_keys())
        messages = queue.dequeue(2).messages
        seen.extend(one.mid for one in messages)
        queue.finish([Ending(mid=one.mid, token=one.token) for one in messages])

    monkeypatch.setattr("jobq.pipeline.writing.delivery.sleep", work)
    for message in keyed_rows("a1", "a2", "a3", "b1", "a4", "c1", "b2", "a5", "a6", "d1"):
        delivery.put(message)
    assert queue.status("b2").word == "queued", "it waits behind rows of another key"
    delivery.flush()
    assert delivery.nadded == 10 and delivery.npresent == 0
    while queue.admin.counts().ready:
        work(0)
    assert len(seen) == 10
    assert [mid for mid in seen if mid[0] == "a"] == ["a1", "a2", "a3", "a4", "a5", "a6"]


def test_line_that_stays_full_fails_the_write_once_all_other_rows_are_enqueued(client, monkeypatch):
    monkeypatch.setattr("jobq.pipeline.writing.delivery.FULL_S", 0.0)
    queue = Queue("low", client)
    queue.rules(key_waiting=2)
    delivery = Delivery(client, 3, 1000, "key")
    for message in keyed_rows("a1", "a2", "a3", "a4", "b1"):
        delivery.put(message)
    with pytest.raises(
        KeyFullError, match=r"2 rows of this partition .* key a has 2 waiting messages, the maximum"
    ):
        delivery.flush()
    assert queue.admin.counts().ready == 3
    # The same write again adds the rest.
    queue.rules(key_waiting=4)
    again = Delivery(client, 3, 1000, "key")
    for message in keyed_rows("a1", "a2", "a3", "a4", "b1"):
        again.put(message)
    again.flush()
    assert (again.nadded, again.npresent, queue.admin.counts().ready) == (2, 3, 5)


def test_rows_that_are_set_aside_take_bounded_memory(client, monkeypatch):
    monkeypatch.setattr("jobq.pipeline.writing.delivery.FULL_S", 0.0)
    monkeypatch.setattr("jobq.pipeline.writing.delivery.MAX_WAITING", 5)
    Queue("low", client).rules(key_waiting=1)
    delivery = Delivery(client, 2, 1000, "key")
    rows = iter(keyed_rows(*[f"a{number}" for number in range(20)]))
    with pytest.raises(KeyFullError):
        deque(map(delivery.put, rows))
    assert len(list(rows)) > 10
