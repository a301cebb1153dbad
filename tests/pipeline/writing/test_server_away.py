"""The server goes away amid a write: the attempt waits for it, or fails and the next attempt adds the rest."""

from __future__ import annotations

import threading

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import UnavailableError
from jobq.queue.queue import Queue
from tests.pipeline.writing.table import Write, batches_of, schema_of
from tests.queue.test_outage import stoppable  # noqa: F401

SCHEMA = schema_of(name="string", n="long")
ROWS = [(f"name{n}", n) for n in range(2_000)]


@pytest.fixture
def at(stoppable, monkeypatch):  # noqa: F811
    monkeypatch.setenv("JOBQ_PATIENCE", "200s")
    return f"unix://{stoppable.socket}"


def counts(at):
    client = connect(settings=ServerSettings(url=at))
    try:
        return Queue("low", client).admin.counts()
    finally:
        client.close()


def test_attempt_goes_on_when_the_server_is_back(stoppable, at):  # noqa: F811
    restart = threading.Timer(0.2, stoppable.start)

    def server_dies():
        batches = batches_of(SCHEMA, ROWS)
        yield from batches[:10]
        stoppable.kill()
        restart.start()
        yield from batches[10:]

    write = Write(at, SCHEMA, job="app.send", queue="low", batch="100")
    done = write.attempt([], 0, server_dies())
    # It answers already; the thread that started it also waits for that.
    restart.join()
    write.writer.commit([done])
    assert counts(at).ready == 2_000


def test_attempt_fails_when_it_stays_away_and_another_adds_the_rest(stoppable, at, monkeypatch):  # noqa: F811
    def server_dies():
        batches = batches_of(SCHEMA, ROWS)
        yield from batches[:10]
        stoppable.kill()
        yield from batches[10:]

    monkeypatch.setenv("JOBQ_PATIENCE", "300ms")
    write = Write(at, SCHEMA, job="app.send", queue="low", batch="100")
    with pytest.raises(UnavailableError, match="no answer"):
        write.attempt([], 0, server_dies())
    stoppable.start()
    assert counts(at).ready == 1_000
    done = write.attempt(ROWS)
    assert (done.nadded, done.npresent) == (1_000, 1_000)


def test_write_is_refused_before_any_row_when_the_server_is_away(stoppable, at, monkeypatch):  # noqa: F811
    monkeypatch.setenv("JOBQ_PATIENCE", "100ms")
    stoppable.kill()
    with pytest.raises(UnavailableError, match=r"no connection to .* nothing was sent"):
        Write(at, SCHEMA, job="app.send", queue="low")
    stoppable.start()
