"""commit=atomic: nothing is visible before every partition is written, and nothing stays of a failed write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import Full, PipelineError
from jobq.jobs.codec import decode
from jobq.jobs.signing import seal_of
from jobq.pipeline.writing import janitor
from jobq.pipeline.writing.outlet import Outlet
from jobq.queue.queue import Queue
from tests.client.deployments import Spread
from tests.conftest import binary
from tests.pipeline.writing.table import Write, batches_of, schema_of

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = schema_of(name="string", n="long")
ROWS = [(f"name{n}", n) for n in range(1_000)]
ATOMIC = {"job": "app.send", "queue": "low", "commit": "atomic", "batch": "100"}


def kept(redis):
    """Keys that would stay; callers' records end by themselves."""
    return {key for key in redis.keys("*") if redis.ttl(key) == -1}


def test_nothing_is_visible_before_the_commit(client, server, redis):
    write = Write(server.url, SCHEMA, **ATOMIC)
    done = [write.attempt(ROWS[:500], 0), write.attempt(ROWS[500:], 1)]
    assert kept(redis) == {b"jobq:staged"}  # who stages; what is staged has a TTL
    assert Queue("low", client).counts().messages == 0
    write.writer.commit(done)
    queue = Queue("low", client)
    assert queue.counts().ready == 1_000
    assert not redis.keys("*staged*")
    assert queue.fsck() == []
    assert redis.smembers("jobq:queues") == {b"low"}


def test_losing_attempt_of_a_partition_is_not_published(client, server, redis):
    write = Write(server.url, SCHEMA, **ATOMIC)
    write.attempt(ROWS[:300], 0)  # speculation: another attempt of the same partition wins
    winner = write.attempt(ROWS[:200], 0)
    write.writer.commit([winner])
    assert Queue("low", client).counts().ready == 200
    assert not redis.keys("*staged*")


def test_failed_write_leaves_nothing(client, server, redis):
    write = Write(server.url, SCHEMA, **ATOMIC)
    done = write.attempt(ROWS, 0)

    def breaks_off():
        yield from batches_of(SCHEMA, ROWS)[:3]
        raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        write.attempt([], 1, breaks_off())
    write.writer.abort([done, None])
    assert kept(redis) == set()
    assert not redis.keys("*staged*")
    assert Queue("low", client).counts().messages == 0


def test_attempt_that_goes_on_after_the_abort_is_refused(client, server, redis):
    write = Write(server.url, SCHEMA, **ATOMIC)

    def aborted_midway():
        batches = batches_of(SCHEMA, ROWS)
        yield from batches[:3]
        write.writer.abort([None])
        yield from batches[3:]

    with pytest.raises(PipelineError, match="what was staged for queue 'low' is gone"):
        write.attempt([], 0, aborted_midway())
    assert not redis.keys("*staged*")


def test_what_an_attempt_stages_after_the_abort_is_swept(client, server, redis):
    write = Write(server.url, SCHEMA, **ATOMIC)
    write.writer.abort([])
    write.attempt(ROWS, 0)  # a sibling that Spark didn't stop in time
    [stage] = redis.keys("jobq:{low}:staged:*")
    assert 0 < redis.pttl(stage) <= 3_600_000
    Write(server.url, SCHEMA, **ATOMIC)  # the next write: too early, it may be alive
    assert redis.exists(stage)
    redis.zincrby("jobq:staged", -janitor.GONE_MS, redis.zrange("jobq:staged", 0, 0)[0])
    Write(server.url, SCHEMA, **ATOMIC)
    assert not redis.keys("*staged*")


def test_signs_of_life_keep_a_stage(client, server, redis):
    write = Write(server.url, SCHEMA, **ATOMIC)
    done = write.attempt(ROWS, 0)
    [stage] = redis.keys("jobq:{low}:staged:*")
    redis.zincrby("jobq:staged", -2 * janitor.GONE_MS, redis.zrange("jobq:staged", 0, 0)[0])
    redis.pexpire(stage, 60_000)
    with janitor.signs_of_life(ServerSettings(url=server.url), done.run, every_s=0.01):
        while redis.pttl(stage) <= 60_000:
            time.sleep(0.005)
    assert janitor.sweep(client) == 0
    write.writer.commit([done])
    assert Queue("low", client).counts().ready == 1_000


def test_encrypted_calls_are_staged_and_published_as_they_are(client, server, redis, monkeypatch):
    monkeypatch.setenv("JOBQ_CODEC", "encrypt")
    monkeypatch.setenv("JOBQ_CODEC_KEYS", "k:" + "c2VjcmV0IQ" * 8)
    write = Write(server.url, SCHEMA, **ATOMIC)
    write.save(ROWS)
    seal = seal_of(connect(url=server.url))
    entries = Queue("low", client).content(limit=1_000).entries
    opened = {decode(seal.open("low", one.mid, one.content)).kwargs["n"] for one in entries}
    assert opened == set(range(1_000))


def test_publishing_refuses_when_a_part_is_gone(client, server, redis):
    write = Write(server.url, schema_of(queue="string", id="long"), job="j", queueColumn="queue",
                  idColumn="id", commit="atomic")  # fmt: skip
    done = write.attempt([("a", 1), ("b", 2)])
    redis.delete(*redis.keys("jobq:{b}:staged:*"))
    with pytest.raises(PipelineError, match="queue 'b' is gone"):
        write.writer.commit([done])
    assert Queue("a", client).counts().messages == 0


def test_stage_that_was_lost_and_begun_anew_is_not_taken_for_whole(client, server, redis):
    write = Write(server.url, SCHEMA, **ATOMIC)
    first = write.attempt(ROWS[:500], 0)
    redis.delete(*redis.keys("jobq:{low}:staged:*"))
    second = write.attempt(ROWS[500:], 1)
    with pytest.raises(PipelineError, match="is gone"):
        write.writer.commit([first, second])
    assert Queue("low", client).counts().messages == 0


def test_full_server_while_staging_leaves_nothing(client, server, redis):
    write = Write(server.url, SCHEMA, **ATOMIC)
    redis.config_set("maxmemory", 1)
    with pytest.raises(Full, match="nothing was changed"):
        write.attempt(ROWS)
    write.writer.abort([None])
    redis.config_set("maxmemory", 0)
    assert not redis.keys("*staged*")
    assert Queue("low", client).counts().messages == 0


def test_full_server_is_told_before_anything_is_published(client, server, redis):
    write = Write(server.url, SCHEMA, **ATOMIC)
    done = write.attempt(ROWS)
    redis.config_set("maxmemory", redis.info("memory")["used_memory"] + 100_000)
    with pytest.raises(Full, match=r"no room for what was staged.*nothing was enqueued"):
        write.writer.commit([done])
    assert Queue("low", client).counts().messages == 0
    redis.config_set("maxmemory", 0)
    write.writer.commit([done])
    assert Queue("low", client).counts().ready == 1_000


def test_server_that_fills_up_amid_publishing_is_told_with_what_to_do(
    client, server, redis, monkeypatch
):
    write = Write(server.url, SCHEMA, **ATOMIC)
    done = write.attempt(ROWS)
    real, calls = Outlet.publish, []

    def fills_up(self, *args):
        calls.append(args)
        self.patience_s = 0.1
        if len(calls) == 4:
            redis.config_set("maxmemory", 1)
        return real(self, *args)

    monkeypatch.setattr(Outlet, "publish", fills_up)
    with pytest.raises(Full, match="3 batches of this write are enqueued, the others are not"):
        write.writer.commit([done])
    write.writer.abort([done])
    redis.config_set("maxmemory", 0)
    assert not redis.keys("*staged*")
    assert Queue("low", client).counts().ready == 300
    Write(server.url, SCHEMA, **ATOMIC).save(ROWS)
    assert Queue("low", client).counts().ready == 1_000


DRIVER = """
import sys, time
from jobq.pipeline.writing.outlet import Outlet
from tests.pipeline.writing.test_atomic import ATOMIC, SCHEMA
from tests.pipeline.writing.table import Write
publish = Outlet.publish
def slowly(*args):
    time.sleep(0.01)  # so that it is at it when it is killed
    publish(*args)
Outlet.publish = slowly
write = Write(sys.argv[1], SCHEMA, **{**ATOMIC, "batch": "10"})
done = [write.attempt([(f"name{n}", n) for n in range(at, at + 10_000)], at) for at in (0, 10_000)]
print("staged", flush=True)
sys.stdin.readline()
write.writer.commit(done)
"""


def test_write_whose_driver_was_killed_amid_publishing_is_completed_by_another(
    client, server, redis
):
    queue = Queue("low", client)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, server.url], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with driver:
        assert driver.stdin and driver.stdout
        assert driver.stdout.readline() == "staged\n"
        driver.stdin.write("\n")
        driver.stdin.flush()
        while queue.counts().ready == 0:
            pass
        os.kill(driver.pid, signal.SIGKILL)
    published = queue.counts().ready
    assert 0 < published < 20_000
    rows = [(f"name{n}", n) for n in range(20_000)]
    write = Write(server.url, SCHEMA, **ATOMIC)
    done = [write.attempt(rows[at : at + 10_000], at) for at in (0, 10_000)]
    write.writer.commit(done)
    assert queue.counts().ready == 20_000
    assert queue.fsck() == []
    janitor.sweep(client, gone_ms=-1)
    assert not redis.keys("*staged*")


def test_queues_of_a_cluster_are_published_each_on_its_node(server, tmp_path):
    spread = Spread(binary(server.kind), tmp_path)
    client = connect(settings=ServerSettings(url=spread.url))
    try:
        schema = schema_of(queue="string", id="long", wait="double")
        rows = [(f"q{n % 7}", n, 1000.0 if n % 3 else None) for n in range(700)]
        options = {"job": "j", "queueColumn": "queue", "idColumn": "id", "delayColumn": "wait"}
        for commit in ("atomic", "idempotent"):
            Write(spread.url, schema, **options, commit=commit).save(rows[:350], rows[350:])
            for number in range(7):
                queue = Queue(f"q{number}", client)
                assert queue.counts().messages == 100
                assert queue.fsck() == []
        assert janitor.sweep(client, gone_ms=-1) == 0
    finally:
        client.close()
        spread.close()
