"""Reading without a JVM: the data source's classes, called as Spark calls them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from jobq.client.connection import Client

if TYPE_CHECKING:
    from pyspark_jobq import JobqDataSource

#: The ms of the first event that `events` writes.
BEGIN = 1_763_000_000_000


@pytest.fixture
def source(valkey_client: Client) -> Callable[..., JobqDataSource]:
    """source(view=…, …): the data source on the test's server."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from pyspark_jobq import JobqDataSource

    def make(**options: Any) -> JobqDataSource:
        given: Any = CaseInsensitiveDict()
        for name, value in {"url": valkey_client.url, **options}.items():
            given[name] = str(value)
        return JobqDataSource(given)

    return make


class Read:
    """A planned read; `rows()` reads it, as often as asked."""

    def __init__(self, made: Any, schema: Any) -> None:
        self.reader, self.schema = made, schema
        self.parts = made.partitions()

    def rows(self) -> list[dict[str, Any]]:
        # As in an executor: it gets the reader and a partition in pickles.
        reader = pickle.loads(pickle.dumps(self.reader))
        found = []
        for part in pickle.loads(pickle.dumps(self.parts)):
            for batch in reader.read(part):
                assert batch.schema.equals(self.schema)
                found += batch.to_pylist()
        return found


@pytest.fixture
def load(source: Callable[..., JobqDataSource]) -> Callable[..., Read]:
    """load(view=…, …): a batch read, planned now."""
    from pyspark.sql.pandas.types import to_arrow_schema

    def make(**options: Any) -> Read:
        one = source(**options)
        schema = one.schema()
        return Read(one.reader(schema), to_arrow_schema(schema, timezone="UTC"))

    return make


@pytest.fixture
def events(valkey_redis: Any) -> Callable[..., None]:
    """events(queue, n, start=0): n events of one ms each, `m<i>` starting at `start`."""

    def write(queue: str, n: int, start: int = 0) -> None:
        valkey_redis.sadd("jobq:queues", queue)
        with valkey_redis.pipeline(transaction=False) as pipe:
            for i in range(start, start + n):
                record = f"done\x1fm{i}\x1f{BEGIN + i}\x1fmail.send\x1f1"
                pipe.xadd(f"jobq:{{{queue}}}:events", {"1": record}, id=f"{BEGIN + i}-0")
            pipe.execute()

    return write


def mids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["mid"] for row in rows]
