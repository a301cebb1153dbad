"""An outbox in each database, and jobs that write into it."""

from __future__ import annotations

import itertools
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.middleware import Middlewares
from jobq.jobs.registry import Registry
from jobq.outbox import schema
from jobq.outbox.relay import Relay, RelayOptions
from jobq.outbox.tables import OutboxTable, table_of
from jobq.queue.queue import Queue
from tests import databases, tools

#: Databases that are tried: MariaDB takes as long as all the others, so it is tried by `make soak`.
KINDS = (
    ("sqlite", "postgresql", "mysql") if os.environ.get("JOBQ_OUTBOX") else ("sqlite", "postgresql")
)
_names = itertools.count(1)


class Database:
    """One fresh database with the tables, and a table of effects of the jobs."""

    def __init__(self, kind: str, dsn: str, server: databases.DatabaseServer | None) -> None:
        self.kind, self.dsn, self.server = kind, dsn, server

    @property
    def url(self) -> str:
        """As SQLAlchemy names it."""
        driver = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
        return f"{driver[self.kind]}{self.dsn[len(self.kind) :]}"

    def table(self) -> OutboxTable:
        """What a relay uses."""
        return table_of(self.dsn)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement finds, in a connection of its own."""
        from sqlalchemy import create_engine, text

        engine = create_engine(self.url)
        try:
            with engine.connect() as connection:
                return [tuple(row) for row in connection.execute(text(statement))]
        finally:
            engine.dispose()

    def execute(self, *statements: str) -> None:
        """Run statements, and commit."""
        with closing(self.table()) as table:
            table._calling(lambda: [table._execute(one) for one in statements])


@pytest.fixture(scope="session")
def database_servers(short_folder: Path) -> Iterator[dict[str, databases.DatabaseServer]]:
    """Database servers of this run, started when first asked for."""
    running: dict[str, databases.DatabaseServer] = {}
    yield running
    for server in running.values():
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture(params=KINDS)
def database(
    request: pytest.FixtureRequest, tmp_path: Path, short_folder: Path,
    database_servers: dict[str, databases.DatabaseServer],
) -> Database:  # fmt: skip
    """Database with an empty outbox, and a table `effects`."""
    made = new_database(request.param, tmp_path, short_folder, database_servers)
    made.execute(*schema(request.param), "CREATE TABLE effects (number bigint NOT NULL)")
    return made


def new_database(
    kind: str, tmp_path: Path, short_folder: Path, running: dict[str, databases.DatabaseServer]
) -> Database:
    """A database without tables."""
    name = f"jobq{next(_names)}"
    if kind == "sqlite":
        return Database(kind, f"sqlite:///{tmp_path}/{name}.db", None)
    if kind == "postgresql":
        tools.library("psycopg")
        if databases.postgresql_programs() is None:
            # There is a build of pgserver for some machines only.
            built = platform.machine() == "x86_64" and sys.version_info < (3, 13)
            tools.not_run("not run: needs postgresql, or the package pgserver", packaged=built)
        make: Callable[[Path], Any] = databases.PostgresqlServer
    else:
        tools.library("pymysql")
        if databases.mariadb_program() is None:
            tools.not_run("not run: needs mariadb-server", packaged=False)
        make = databases.MariadbServer
    if kind not in running:
        # Tests of Django have servers of their own in the same process.
        running[kind] = make(short_folder / f"{kind}-{secrets.token_hex(3)}")
    server: Any = running[kind]
    server.execute(f"CREATE DATABASE {name}")
    return Database(kind, server.dsn(name), server)


@pytest.fixture
def registry() -> Registry:
    """Jobs of one test."""
    return Registry(Middlewares())


@pytest.fixture
def relayed(database: Database, client: Any) -> Iterator[Callable[..., Relay]]:
    """relayed(dedupe_s=…): a relay has looked at all rows."""
    tables = []

    def relay(**options: Any) -> Relay:
        tables.append(database.table())
        made = Relay(tables[-1], client, RelayOptions(**options))
        made.run(once=True)
        return made

    yield relay
    for table in tables:
        table.close()


@pytest.fixture
def worked(client: Any, registry: Registry) -> Callable[..., list[str]]:
    """worked("low"): run all that is ready, as a worker does; the outcomes."""

    def work(queue: str = "default") -> list[str]:
        executor, found = Executor(registry, worker="here"), Queue(queue, client)
        outcomes = []
        while messages := found.dequeue(10).messages:
            for message in messages:
                call = executor.resolve(queue, message)
                ending = executor.run(call) if isinstance(call, Call) else call
                found.finish([ending])
                outcomes.append(ending.outcome)
        return outcomes

    return work
