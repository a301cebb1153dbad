"""Rows are enqueued as they come, and a retried or repeated write adds the rest."""

from __future__ import annotations

import time

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import BadRecordError, ConfigError, PipelineError, ServerFullError
from jobq.jobs.codec import decode
from jobq.jobs.signing import seal_of
from jobq.pipeline.writing import writer
from jobq.queue import presence
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from tests.client.deployments import Spread
from tests.conftest import binary
from tests.pipeline.writing.table import Write, batches_of, schema_of

SCHEMA = schema_of(name="string", n="long")
ROWS = [(f"name{n}", n) for n in range(1_000)]


def names(queue):
    """Return the waiting messages of a queue, by kwargs."""
    found = []
    while taken := queue.dequeue(500).messages:
        found += [decode(message.content).kwargs["name"] for message in taken]
    return found


@pytest.mark.parametrize(
    ("served", "known", "warns"),
    [
        (("low",), ("app.sent", "app.other"), True), (("low",), ("app.send",), False),
        (("high",), ("app.other",), False), ((), (), False), (("low",), None, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("option", ["queue", "queueColumn"])
def test_driver_warns_of_a_job_that_no_worker_of_the_queue_knows(
    client, server, caplog, served, known, warns, option
):
    if served:
        now = time.time_ns() // 1_000_000
        facts = {
            "queues": list(served),
            "lease_ms": 15_000,
            "seen_at": now,
            "jobs": presence.digest_of(known or ()),
        }
        presence.put_worker(client, "w", facts)
        if known is not None:
            presence.put_jobs(client, known)
    Write(server.url, SCHEMA, job="app.send", **{option: "low" if option == "queue" else "name"})
    said = [one.getMessage() for one in caplog.records if "knows the job" in one.getMessage()]
    # A queue of each row may be any that a worker serves.
    expected = warns or (option == "queueColumn" and known == ("app.other",))
    assert len(said) == expected
    if warns:
        assert "no worker of queue" in said[0] and "did you mean 'app.sent'" in said[0]


def test_each_row_is_a_message_and_the_queue_is_listed(client, server, redis):
    queue = Queue("low", client)
    [one, two] = Write(server.url, SCHEMA, job="app.send", queue="low").save(ROWS[:600], ROWS[600:])
    assert (one.nadded, two.nadded, one.npresent) == (600, 400, 0)
    assert redis.smembers("jobq:queues") == {b"low"}
    assert queue.admin.fsck() == []
    assert sorted(names(queue)) == sorted(name for name, _ in ROWS)


def test_attempt_after_a_broken_one_adds_the_rest(client, server):
    def breaks_off():
        yield from batches_of(SCHEMA, ROWS)[:6]
        raise OSError("killed")

    write = Write(server.url, SCHEMA, job="app.send", queue="low", batch="250")
    with pytest.raises(OSError, match="killed"):
        write.attempt([], 0, breaks_off())
    assert Queue("low", client).admin.counts().ready == 500
    done = write.attempt(ROWS[::-1])  # another attempt may see the rows in another order
    assert (done.nadded, done.npresent) == (500, 500)


def test_write_again_adds_nothing_although_jobs_are_done(client, server, caplog):
    queue = Queue("low", client)
    Write(server.url, SCHEMA, job="app.send", queue="low").save(ROWS)
    while taken := queue.dequeue(500).messages:
        queue.finish([Ending(mid=one.mid, token=one.token) for one in taken])
    assert queue.admin.counts().deduped == 1_000
    Write(server.url, SCHEMA, job="app.send", queue="low").save(ROWS)
    assert "1000 of 1000 rows were skipped" in caplog.text
    assert queue.admin.counts().ready == 0
    Write(server.url, SCHEMA, job="app.send", queue="low", loadId="today").save(ROWS)
    assert queue.admin.counts().ready == 1_000


def test_equal_rows_of_two_batches_of_a_stream_are_two_messages_also_in_foreach_batch(
    client, server
):
    write = Write(server.url, SCHEMA, job="app.send", queue="low")
    assert write.attempt(ROWS, query="q", batch="0").nadded == 1_000
    assert write.attempt(ROWS, query="q", batch="1").nadded == 1_000
    assert write.attempt(ROWS, query="q", batch="1").nadded == 0


def test_stream_without_batches_is_refused(server):
    made = writer.stream_writer({"url": server.url, "job": "j"}, SCHEMA, False)
    with pytest.raises(PipelineError, match="use another trigger"):
        made.write(iter([]))


def test_row_whose_dedupe_backoff_is_over_is_enqueued_again(client, server):
    queue = Queue("low", client)
    Write(server.url, SCHEMA, job="app.send", queue="low", dedupeFor="1m").save(ROWS[:1])
    [taken] = queue.dequeue().messages
    queue.finish([Ending(mid=taken.mid, token=taken.token)])
    queue.admin.collect(now=int(time.time() * 1000) + 61_000)
    queue.admin.collect(now=int(time.time() * 1000) + 61_000)
    [done] = Write(server.url, SCHEMA, job="app.send", queue="low").save(ROWS[:1])
    assert done.nadded == 1


def test_rows_go_to_many_queues_by_their_column(client, server, redis):
    schema = schema_of(queue="string", id="long")
    rows = [(f"q{n % 40}", n) for n in range(2_000)]
    options = {"job": "app.send", "queueColumn": "queue", "idColumn": "id", "kwargsColumns": "id"}
    Write(server.url, schema, **options).save(rows)
    assert redis.scard("jobq:queues") == 40
    for number in range(40):
        queue = Queue(f"q{number}", client)
        mids = sorted(int(entry.mid) for entry in queue.admin.content(limit=100).entries)
        assert mids == list(range(number, 2_000, 40))


def test_rows_have_each_their_own_time(client, server):
    queue = Queue("low", client)
    schema = schema_of(id="long", wait="double")
    rows = [(n, 100.0 + n if n % 2 else None) for n in range(600)]
    options = {"job": "app.send", "queue": "low", "idColumn": "id", "delayColumn": "wait"}
    before = time.time() * 1000
    [done] = Write(server.url, schema, **options).save(rows)
    assert (done.nadded, queue.admin.counts().ready, queue.admin.counts().delayed) == (
        600,
        300,
        300,
    )
    backoff = queue.status("599").not_before - before
    assert 698_000 < backoff < 760_000
    [again] = Write(server.url, schema, **options).save(rows)
    assert (again.nadded, again.npresent) == (0, 600)
    assert queue.admin.fsck() == []


def test_level_all_records_what_was_enqueued(client, server):
    queue = Queue("low", client)
    queue.admin.events_level("all")
    schema = schema_of(id="long", wait="double")
    options = {"job": "app.send", "queue": "low", "idColumn": "id", "delayColumn": "wait"}
    Write(server.url, schema, **options).save([(n, float(n)) for n in range(10)])
    assert client.command("XLEN", f"{queue.prefix}events") == 10


def test_bad_row_says_how_many_before_it_are_enqueued(client, server):
    schema = schema_of(id="string")
    write = Write(server.url, schema, job="app.send", idColumn="id", batch="100")
    with pytest.raises(
        BadRecordError, match=r"row 251 of partition 3.*200 rows of this partition are"
    ):
        write.attempt([(str(n),) for n in range(250)] + [("",)], 3)
    assert Queue("default", client).admin.counts().ready == 200


def test_full_server_refuses_whole_batches(client, server, redis):
    write = Write(server.url, SCHEMA, job="app.send", queue="low")
    redis.config_set("maxmemory", 1)
    with pytest.raises(ServerFullError, match="nothing was changed"):
        write.attempt(ROWS)
    redis.config_set("maxmemory", 0)
    assert Queue("low", client).admin.counts().messages == 0
    assert write.attempt(ROWS).nadded == 1_000


def test_overwrite_and_complete_are_refused_with_what_to_do(server):
    with pytest.raises(ConfigError, match=r"use mode\('append'\)"):
        writer.batch_writer({"job": "j"}, SCHEMA, True)
    with pytest.raises(ConfigError, match="use append or update"):
        writer.stream_writer({"job": "j"}, SCHEMA, True)


def test_queues_of_a_cluster_are_written_each_on_its_node(server, tmp_path):
    spread = Spread(binary(server.kind), tmp_path)
    client = connect(settings=ServerSettings(url=spread.url))
    try:
        schema = schema_of(queue="string", id="long", wait="double")
        rows = [(f"q{n % 7}", n, 1000.0 if n % 3 else None) for n in range(700)]
        options = {"job": "j", "queueColumn": "queue", "idColumn": "id", "delayColumn": "wait"}
        Write(spread.url, schema, **options).save(rows[:350], rows[350:])
        for number in range(7):
            queue = Queue(f"q{number}", client)
            assert queue.admin.counts().messages == 100
            assert queue.admin.fsck() == []
    finally:
        client.close()
        spread.close()


def test_encrypted_calls_are_opened_by_a_worker_with_the_key(client, server, monkeypatch):
    monkeypatch.setenv("JOBQ_CODEC", "encrypt")
    monkeypatch.setenv("JOBQ_CODEC_KEYS", "k:" + "c2VjcmV0IQ" * 8)
    Write(server.url, SCHEMA, job="app.send", queue="low").save(ROWS)
    seal = seal_of(connect(url=server.url))
    entries = Queue("low", client).admin.content(limit=1_000).entries
    opened = {decode(seal.open("low", one.mid, one.content)).kwargs["n"] for one in entries}
    assert opened == set(range(1_000))
