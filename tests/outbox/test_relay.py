"""What a relay does with rows: their options, bad ones, those that can't be sent now, and two relays at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from jobq import outbox
from jobq.errors import ConfigError, NotDurableError, UnavailableError
from jobq.jobs.codec import decode
from jobq.jobs.registry import job
from jobq.outbox import relay as relay_module
from jobq.outbox.relay import Relay, RelayOptions
from jobq.outbox.tables import DatabaseAwayError, table_of
from jobq.queue.partitioning import partition
from jobq.queue.partitions import read_map
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests import tools
from tests.lifecycle.conftest import until

pytestmark = pytest.mark.one_server


@pytest.fixture
def write(database: Any) -> Any:
    """write(job, 1, 2): a committed call."""
    from sqlalchemy import create_engine

    engine = create_engine(database.url)

    def committed(job: Any, *args: Any) -> Any:
        with engine.begin() as connection:
            return outbox.enqueue(connection, job, *args)

    yield committed
    engine.dispose()


def test_rows_are_enqueued_with_their_options_and_in_their_order(
    database, client, registry, write, relayed, worked
):
    seen: list[int] = []
    note = job(name="note", registry=registry)(seen.append)
    at = time.time() + 3600
    later = [
        write(note.options(delay="1h"), 1), write(note.options(at=at), 2),
        write(note.options(delay=10), 3),
    ]  # fmt: skip
    for number in range(4, 9):
        write(note.options(key="a", ordered=number % 2 == 0), number)
    write(note.options(durability="memory", lease=60, mid="nine", until="2d"), 9)
    write(note.options(queue="high"), 10)
    # The delay counts from the enqueue, not from the relay's round.
    database.execute("UPDATE jobq_outbox SET created_at = created_at - 60000 WHERE id IN (1, 3)")
    relayed()
    queue = Queue("default", client)
    due = [queue.status(one.mid).not_before / 1000 - at for one in later[:2]]
    assert due == [pytest.approx(-60, abs=30), pytest.approx(0, abs=1)]
    assert queue.status(later[2].mid).word == "queued"
    assert worked("high") == ["done"] and seen == [10]
    worked()
    assert sorted(seen[1:]) == [3, 4, 5, 6, 7, 8, 9]
    assert [one for one in seen if one in (4, 5, 6, 7, 8)] == [4, 5, 6, 7, 8]


def test_rows_are_sent_once_when_their_queue_is_partitioned(
    database, client, registry, write, relayed, worked
):
    seen: list[int] = []
    note = job(name="note", queue="low", registry=registry)(seen.append)
    partition(client, "low", 3)
    for number in range(20):
        write(note.options(key=f"k{number % 4}", ordered=True), number)
    relayed()
    partition(client, "low", 2)
    for place in Queue("low", client).alone():
        worked(place.name)
    assert sorted(seen) == list(range(20))
    assert all(sorted(some) == some for some in ([n for n in seen if n % 4 == k] for k in range(4)))


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_relay_creates_the_partitions_that_a_job_declares(
    database, client, registry, write, relayed
):
    note = job(name="note", queue="low", partitions=3, registry=registry)(print)
    for number in range(9):
        write(note, number)
    write(note.options(queue="other"), 9)
    database.execute(
        "INSERT INTO jobq_outbox (mid, queue, content, options, created_at) "
        "SELECT 'bad', queue, content, '{\"partitions\":0}', 0 FROM jobq_outbox WHERE id = 1"
    )

    relay = relayed()

    assert (relay.totals.sent, relay.totals.failed) == (10, 1)
    assert [read_map(client, name).newest.size for name in ("low", "other")] == [3, 0]
    assert Queue("low", client).admin.counts().ready == 9


def test_row_that_is_sent_twice_runs_once_and_unique_calls_run_again(
    database, client, registry, write, relayed, worked
):
    seen: list[str] = []
    note = job(name="note", registry=registry)(seen.append)
    one = job(name="one", registry=registry, unique=True)(seen.append)
    write(note, "new")
    write(note.options(mid="mine"), "chosen")
    write(one, "alike")
    write(one, "alike")
    columns = "mid, queue, content, options, created_at"
    database.execute("CREATE TABLE kept AS SELECT * FROM jobq_outbox")
    relayed()
    assert worked() == ["done"] * 3 and sorted(seen) == ["alike", "chosen", "new"]
    # As after a relay that died before it deleted them.
    database.execute(f"INSERT INTO jobq_outbox (id, {columns}) SELECT id, {columns} FROM kept")
    relayed()
    worked()
    assert seen.count("new") == 1
    # A mid that the program chose may be used again at once, so the row can't be told from a new call.
    assert seen.count("alike") == seen.count("chosen") == 2
    write(one, "alike")
    relayed()
    worked()
    assert seen.count("alike") == 3


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("queue", "a b", "queue 'a b' can't be used"),
        ("queue", "low/3", "queue 'low/3' can't be used"),
        ("mid", "", "mid ''"),
        ("mid", "=x", "belong to unique jobs"),
        ("options", "{", "truncated"),
        ("options", '{"delay":"x"}', "delay"),
        ("options", '{"later":1}', "later"),
        ("options", '{"delay":1,"at":1}', "contradict"),
        ("options", '{"durability":"x"}', "durability='x'"),
        ("options", '{"ordered":true}', "option 'ordered' needs a key"),
        ("options", '{"key":""}', "key=''"),
    ],
)
def test_row_that_can_never_be_sent_is_set_aside_with_the_reason(
    column, value, why, database, client, registry, write, relayed
):
    note = job(name="note", registry=registry)(print)
    write(note, 1)
    database.execute(f"UPDATE jobq_outbox SET {column} = '{value}'")
    write(note, 2)
    relay = relayed()
    assert (relay.totals.sent, relay.totals.failed) == (1, 1)
    [(number, error)] = database.rows("SELECT id, error FROM jobq_outbox_failed")
    assert number == 1 and why in error
    database.execute(f"UPDATE jobq_outbox_failed SET {column} = 'right'" if column == "queue" else
                     "UPDATE jobq_outbox_failed SET mid = 'right', options = '{}'")  # fmt: skip
    table = database.table()
    assert table.retry_failed() == 1
    table.close()
    assert relayed().totals.sent == 1 and relay.backlog()[0::2] == (0, 0)


def test_rows_of_a_full_line_stay_and_others_pass(database, client, registry, write, relayed):
    note = job(name="note", registry=registry)(print)
    queue = Queue("default", client)
    queue.rule("a", waiting=1)
    for number in range(6):
        write(note.options(key="a", ordered=True), number)
    write(note, 6)
    relay = relayed(limit=2)
    assert (relay.totals.sent, relay.totals.left) == (2, 5)
    assert database.rows("SELECT id FROM jobq_outbox ORDER BY id") == [
        (n,) for n in (2, 3, 4, 5, 6)
    ]
    # Once there is room, they go in their order.
    seen: list[int] = []
    while queue.admin.counts().ready:
        [message] = queue.dequeue(1).messages
        seen += decode(message.content).args
        queue.finish([Ending(mid=message.mid, token=message.token)])
        relayed(limit=2)
    assert sorted(seen) == [0, 1, 2, 3, 4, 5, 6] and [n for n in seen if n != 6] == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_rows_of_a_full_line_stay_and_others_pass_when_the_queue_is_partitioned(
    database, client, registry, write, relayed, monkeypatch
):
    real, calls = relay_module._send, list[set[str]]()
    monkeypatch.setattr(
        relay_module,
        "_send",
        lambda *args: (calls.append({row.mid for row in args[1]}), real(*args)),
    )
    note = job(name="note", queue="low", registry=registry)(print)
    queue = Queue("low", client)
    queue.rules(key_waiting=1)
    known = partition(client, "low", 3).newest
    keys = [f"k{number}" for number in range(6)]
    for number, key in enumerate(keys):
        write(note.options(key="acme", ordered=True, mid=f"a{number}"), number)
        write(note.options(key=key, ordered=True, mid=key), number)
    write(note.options(queue="high"), 6)

    relay = relayed()

    elsewhere = {key for key in keys if known.name_for("low", key) != known.name_for("low", "acme")}
    assert elsewhere
    assert not elsewhere & set().union(*calls[1:])
    assert (relay.totals.sent, relay.totals.left, relay.trouble) == (8, 5, "")
    assert queue.admin.counts().ready == 7
    assert Queue("high", client).admin.counts().ready == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_rows_of_many_full_lines_stand_before_no_other(
    database, client, registry, write, relayed, caplog
):
    note = job(name="note", registry=registry)(print)
    queue = Queue("default", client)
    queue.rules(key_waiting=1)
    for number in range(30):
        queue.enqueue(b"v", key=f"k{number}")
        write(note.options(key=f"k{number}"), number)
    for number in range(30):
        write(note.options(key="acme"), number)
    write(note.options(key="bob"), 1)
    write(note, 2)
    write(note.options(queue="high"), 3)
    relay = relayed(limit=10)
    assert (relay.totals.sent, relay.totals.left, relay.trouble) == (4, 59, "")
    assert queue.admin.counts().ready == 33
    assert Queue("high", client).admin.counts().ready == 1
    assert len([one for one in caplog.records if "was not enqueued yet" in one.getMessage()]) == 31


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_rows_of_a_damaged_queue_stand_before_no_other(
    database, client, redis, registry, write, relayed
):
    note = job(name="note", registry=registry)(print)
    redis.set("jobq:{bad}:messages", "no hash")
    for number in range(60):
        write(note.options(queue="bad"), number)
    write(note, 1)
    relay = relayed(limit=25)
    assert (relay.totals.sent, relay.totals.left) == (1, 60)
    redis.delete("jobq:{bad}:messages")
    assert relayed(limit=25).totals.sent == 60


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_queue_without_its_durability_or_node_holds_back_no_other(
    database, client, registry, write, monkeypatch
):
    note = job(name="note", registry=registry)(print)
    write(note.options(queue="bad"), 0)
    write(note.options(queue="low"), 1)
    relay, whole = Relay(database.table(), client), Queue.enqueue_many
    monkeypatch.setattr(client, "is_cluster", True)
    errors = iter([NotDurableError("no replica"), UnavailableError("its node is away")])

    def refusing(self: Any, *args: Any, **options: Any) -> Any:
        if self.name == "bad" and (error := next(errors, None)):
            raise error
        return whole(self, *args, **options)

    monkeypatch.setattr(Queue, "enqueue_many", refusing)
    with pytest.raises(NotDurableError):
        relay.run(once=True)
    assert relay.totals.sent == 1 and relay.trouble == "no replica"
    with pytest.raises(UnavailableError):
        relay.run(once=True)
    relay.run(once=True)
    assert relay.totals.sent == 2 and relay.trouble == ""


def test_rows_wait_while_the_server_refuses_them(database, client, registry, write, monkeypatch):
    note = job(name="note", registry=registry)(print)
    for number in range(3):
        write(note.options(queue=f"q{number}"), number)
    relay = Relay(database.table(), client)
    whole = Queue.enqueue_many
    errors = iter([UnavailableError("x")] * 2)

    def refusing(self: Any, *args: Any, **options: Any) -> Any:
        if self.name == "q1" and (error := next(errors, None)):
            raise error
        return whole(self, *args, **options)

    monkeypatch.setattr(Queue, "enqueue_many", refusing)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            relay.run(once=True)
        # What the server took before is not sent again.
        assert [q for (q,) in database.rows("SELECT queue FROM jobq_outbox ORDER BY id")] == [
            "q1",
            "q2",
        ]
    relay.run(once=True)
    assert relay.totals.sent == 3 and relay.totals.errors == 0


def test_relay_goes_on_after_its_database_was_away(database, client, registry, write, monkeypatch):
    note = job(name="note", registry=registry)(print)
    table, ended, errors = database.table(), threading.Event(), iter([DatabaseAwayError("x")] * 2)
    whole = table.batch

    def away(after: int, limit: int) -> Any:
        if error := next(errors, None):
            raise error
        return whole(after, limit)

    monkeypatch.setattr(table, "batch", away)
    relay = Relay(table, client, RelayOptions(), ended.is_set)
    thread = threading.Thread(target=relay.run)
    if database.kind != "sqlite":  # its connections belong to one thread
        thread.start()
        write(note, 1)
        until(lambda: relay.totals.sent == 1)
        ended.set()
        thread.join(120)
        assert not thread.is_alive() and relay.totals.errors == 2
    else:
        write(note, 1)
        monkeypatch.setattr(relay, "_wait", ended.set)
        relay.run()
        assert relay.totals.sent == 1 and relay.totals.errors == 2


def test_two_relays_share_rows(database, client, registry, write):
    note = job(name="note", registry=registry)(print)
    for number in range(4):
        write(note, number)
    one, other = database.table(), database.table()
    try:
        first = one.batch(0, 2)
        second = other.batch(0, 10)
        assert [row.number for row in first] == [1, 2]
        # SQLite has one lock: the second relay waits for the end of the first.
        assert [row.number for row in second] == ([] if database.kind == "sqlite" else [3, 4])
        one.close()
        # The database learns of the end of the other's connection a moment later.
        until(lambda: [row.number for row in other.batch(0, 10)] == [1, 2, 3, 4])
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_commit_wakes_a_waiting_relay(database, registry, write):
    note = job(name="note", registry=registry)(print)
    table = database.table()
    assert table.notifies and table.wait(60)
    write(note, 1)
    assert table.wait(60)
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN jobq_outbox'"
    )
    with pytest.raises(DatabaseAwayError):
        table.wait(60)
    # It listens again, on a new connection.
    assert table.wait(60)
    database.execute("DROP TRIGGER jobq_outbox_notify ON jobq_outbox")
    table.close()
    assert not table.notifies and not table.wait(0.001)
    table.close()


def test_old_rows_of_the_inbox_are_deleted(database):
    for number in range(3):
        database.execute(f"INSERT INTO jobq_inbox VALUES ('{number}', 'q', 'm', {number})")
    table = database.table()
    assert (table.prune_inbox(2), table.prune_inbox(2)) == (2, 0)
    table.close()
    assert database.rows("SELECT id FROM jobq_inbox") == [("2",)]


def test_database_that_is_away_is_reported_without_its_password(tmp_path):
    tools.library("psycopg")
    for dsn in ("postgresql://u:secret@127.0.0.1:1/x", "mysql://u:secret@127.0.0.1:1/x"):
        with pytest.raises(DatabaseAwayError, match="can't be used") as caught:
            table_of(dsn).batch(0, 1)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("dsn", "why"),
    [
        ("oracle://u:secret@h/x", "is not a database that the outbox supports"),
        ("app.db", "is not a database that the outbox supports"),
        ("sqlite://", "is not a file"),
        ("sqlite:///:memory:", "is not a file"),
        ("sqlite:////no/such/folder/x.db", "there is no folder"),
    ],
)
def test_dsn_that_names_no_database_is_refused(dsn, why):
    with pytest.raises(ConfigError, match=why) as caught:
        table_of(dsn)
    assert "secret" not in str(caught.value)
