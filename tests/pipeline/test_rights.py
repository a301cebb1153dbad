"""The user that `jobq acl pipeline` prints may all that the pipeline does with a server, and little else."""

from __future__ import annotations

import shlex

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from jobq.cli import main
from jobq.client import functions
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import JobqError
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake.ingest import Ingest, IngestOptions, one_round
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.schema import VIEWS
from jobq.queue.audit_log import Act, AuditLog
from jobq.queue.types import Ending
from jobq.topics import Topic
from pyspark_jobq import JobqDataSource
from tests.pipeline.writing.table import Write, schema_of

SCHEMA = schema_of(name="string", later="long")


@pytest.fixture
def url_of(valkey, valkey_redis, valkey_client, capsys, monkeypatch):
    """url_of("pipeline"): where the user of that kind logs in, with the library in place."""
    made = []

    def make(kind: str) -> str:
        assert main(["acl", kind, "--namespace", "jobq"]) == 0
        valkey_redis.execute_command(*shlex.split(capsys.readouterr().out), ">x")
        made.append(f"jobq_{kind}")
        return valkey.url.replace("unix://", f"unix://{made[-1]}:x@")

    functions.load_library(valkey_client)
    monkeypatch.setenv("JOBQ_FUNCTIONS", "1")
    yield make
    valkey_redis.execute_command("ACL", "DELUSER", *made)
    valkey_redis.function_flush()


@pytest.fixture
def url(url_of):
    """Where the user of the pipeline logs in."""
    return url_of("pipeline")


@pytest.mark.parametrize("kind", ["pipeline", "producer"])
def test_frames_are_written(url_of, valkey_queue, kind):
    options = {"job": "app.send", "queue": "low", "delayColumn": "later"}
    Write(url_of(kind), SCHEMA, **options).save([("a", None), ("b", 60_000)], [("c", None)])
    counts = valkey_queue.admin.counts()
    assert (counts.ready, counts.delayed) == (2, 1)


def test_views_are_read_and_a_lake_is_filled(url, valkey_client, valkey_queue, tmp_path):
    valkey_queue.admin.events_level("all")
    valkey_queue.enqueue_many([b"x", b"y"])
    [held] = valkey_queue.dequeue(1).messages
    valkey_queue.finish([Ending(mid=held.mid, token=held.token, outcome="dead", reason="no")])
    Topic("orders", valkey_client).append(b"z")
    for view in VIEWS:
        one = JobqDataSource(CaseInsensitiveDict({"url": url, "view": view}))
        reader = one.reader(one.schema())
        assert sum(found.num_rows for part in reader.partitions() for found in reader.read(part)), (
            view
        )
    AuditLog(valkey_client).append(Act("anna", "cli", "pause", "low"), "done")
    user = connect(settings=ServerSettings(url=url, functions=True))
    work = Ingest(
        Lake.create(str(tmp_path / "lake")),
        user,
        Engine("local"),
        IngestOptions(trim=True, audit_log=True),
    )
    found = one_round(work, lambda batch: None, lambda: False)
    assert (found.events, found.topics, found.dead, found.audit) == (3, 1, 1, 1)
    user.close()


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("GET", "other"),
        ("EVAL", "return 1", 0),
        ("DEL", "jobq:queues"),
    ],
)
def test_nothing_else_is_allowed(url, command):
    user = connect(settings=ServerSettings(url=url, functions=True))
    with pytest.raises(JobqError, match="permission"):
        user.command(*command, routed_by="jobq:{low}:x")
    user.close()
