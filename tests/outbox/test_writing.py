"""What a transaction commits is enqueued; what it rolls back never was. For each library."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from jobq import outbox
from jobq.config import CodecSettings, ServerSettings
from jobq.errors import CodecError, ConfigError, ResultTimeoutError
from jobq.jobs.job import Outgoing
from jobq.jobs.registry import job
from jobq.outbox import inbox
from jobq.queue.queue import Queue
from tests import tools

sqlalchemy = tools.library("sqlalchemy")
orm = tools.library("sqlalchemy.orm")

pytestmark = pytest.mark.one_server


class Undone(Exception):
    """Ends a transaction."""


def of_session(database: Any) -> Any:
    @contextmanager
    def begun() -> Iterator[Any]:
        engine = sqlalchemy.create_engine(database.url)
        try:
            with orm.sessionmaker(engine).begin() as session:
                yield session
        finally:
            engine.dispose()

    return begun


def of_scoped(database: Any) -> Any:
    @contextmanager
    def begun() -> Iterator[Any]:
        engine = sqlalchemy.create_engine(database.url)
        session = orm.scoped_session(orm.sessionmaker(engine))
        try:
            with session.begin():
                yield session
        finally:
            session.remove()
            engine.dispose()

    return begun


def of_connection(database: Any) -> Any:
    @contextmanager
    def begun() -> Iterator[Any]:
        engine = sqlalchemy.create_engine(database.url)
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()

    return begun


def of_driver(database: Any) -> Any:
    @contextmanager
    def begun() -> Iterator[Any]:
        if database.kind == "sqlite":
            connection: Any = sqlite3.connect(database.dsn.partition("///")[2])
        else:
            connection = database.table().connect()
            if database.kind == "postgresql":
                connection.autocommit = False
            else:
                connection.begin()
        try:
            yield connection
            connection.commit()
        finally:
            connection.rollback()
            connection.close()

    return begun


def of_autocommit(database: Any) -> Any:
    @contextmanager
    def begun() -> Iterator[Any]:
        # psycopg's transaction block, on a connection that commits by itself outside of it.
        connection = database.table().connect()
        try:
            if database.kind == "postgresql":
                with connection.transaction():
                    yield connection
            else:
                connection.execute("BEGIN")
                try:
                    yield connection
                except Undone:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
        finally:
            connection.close()

    return begun


SYNC = [of_session, of_scoped, of_connection, of_driver]


@pytest.mark.parametrize("library", SYNC)
def test_call_is_enqueued_once_its_transaction_is_committed(
    library, database, client, registry, relayed, worked
):
    seen: list[tuple[Any, ...]] = []

    @job(name="note", registry=registry, result_ttl=60)
    def note(number: int, *, word: str = "") -> int:
        seen.append((number, word))
        return number

    begun = library(database)
    with suppress(Undone), begun() as session:
        lost = outbox.enqueue(session, note, 1)
        raise Undone
    with begun() as session:
        kept = outbox.enqueue(session, note, 2, word="a")
        many = outbox.enqueue_many(session, note, [(3,), note.args(4, word="b")])
        assert kept.action == "written" and kept.status().word == "nil"
    with pytest.raises(ResultTimeoutError):
        kept.result(timeout=0.001)

    relay = relayed()
    assert (relay.totals.sent, relay.totals.failed, relay.backlog().rows) == (3, 0, 0)
    assert sorted(worked()) == ["done"] * 3
    assert sorted(seen) == [(2, "a"), (3, ""), (4, "b")]
    assert [one.result(timeout=60) for one in (kept, *many)] == [2, 3, 4]
    assert Queue("default", client).status(lost.mid).word == "nil"


@pytest.mark.parametrize("library", SYNC)
def test_inbox_lets_a_message_do_its_work_once(
    library, database, client, registry, relayed, worked
):
    begun, runs = library(database), []

    @job(name="effect", registry=registry, retries=5)
    def effect(number: int, fails: bool) -> None:
        with begun() as session:
            first = inbox.once(session)
            runs.append(first)
            if first:
                insert(session, number)
            if fails and len(runs) == 1:
                raise Undone

    def insert(session: Any, number: int) -> None:
        statement = f"INSERT INTO effects VALUES ({number})"
        if hasattr(session, "get_bind") or hasattr(session, "dialect"):
            session.execute(sqlalchemy.text(statement))
        else:
            session.cursor().execute(statement)

    with begun() as session:
        receipt = outbox.enqueue(session, effect.options(queue="low"), 7, fails=True)
    relayed()
    queue = Queue("low", client)
    # Rolled back, done, and handed out once more, as after a relay that sent the row twice.
    assert worked("low") == ["retry"] and database.rows("SELECT number FROM effects") == []
    content = queue.content(receipt.mid)
    assert content is not None
    queue.enqueue(content, mid=receipt.mid, on_conflict="replace", delay=0)
    assert worked("low") == ["done"]
    queue.admin.clear()
    queue.enqueue(content, mid=receipt.mid)
    assert worked("low") == ["done"]
    assert runs == [True, True, False]
    assert database.rows("SELECT number FROM effects") == [(7,)]
    assert [row[:2] for row in database.rows("SELECT queue, mid FROM jobq_inbox")] == [
        ("low", receipt.mid)
    ]
    # The same call under another mid is another message.
    queue.enqueue(content)
    assert worked("low") == ["done"] and runs[-1] is True


def mysql_place(dsn: str) -> dict[str, Any]:
    """What a driver of MySQL is given."""
    parts = urlsplit(dsn)
    return {
        "unix_socket": dict(parse_qsl(parts.query))["unix_socket"],
        "user": parts.username or "root", "password": parts.password or "", "db": parts.path[1:],
    }  # fmt: skip


async def write_by_asyncmy(dsn: str, effect: Any) -> None:
    """Write 4, 5 and 6 in two transactions, and others that don't stay."""
    connection = await tools.library("asyncmy").connect(**mysql_place(dsn))
    try:
        await outbox.aenqueue(connection, effect, 4)
        await connection.commit()
        await outbox.aenqueue(connection, effect, 7)
        await connection.rollback()
        await connection.autocommit(True)
        with pytest.raises(ConfigError, match="begin a transaction first"):
            await outbox.aenqueue(connection, effect, 8)
        with pytest.raises(ConfigError, match="aenqueue"):
            outbox.enqueue(connection, effect, 8)
        await connection.begin()
        await outbox.aenqueue_many(connection, effect, [(5,), (6,)])
        await connection.commit()
    finally:
        connection.close()


def test_async_sessions_and_connections(database, client, registry, relayed, worked):
    aio = tools.library("sqlalchemy.ext.asyncio")
    url = database.url.replace("sqlite:", "sqlite+aiosqlite:").replace("+pymysql:", "+asyncmy:")
    seen: list[tuple[str, bool]] = []

    @job(name="effect", registry=registry)
    async def effect(number: int) -> None:
        async with sessions() as session, session.begin():
            seen.append((str(number), await inbox.aonce(session)))

    @asynccontextmanager
    async def sessions() -> Any:
        engine = aio.create_async_engine(url)
        try:
            async with aio.AsyncSession(engine) as session:
                yield session
        finally:
            await engine.dispose()

    async def write() -> None:
        async with sessions() as session:
            async with session.begin():
                await outbox.aenqueue(session, effect, 1)
                await outbox.aenqueue_many(session, effect, [(2,)])
                with pytest.raises(ConfigError, match="aenqueue"):
                    outbox.enqueue(session, effect, 1)
            await outbox.aenqueue(session, effect, 3)
            await session.rollback()
        if database.kind == "postgresql":
            import psycopg

            async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
                await outbox.aenqueue(connection, effect, 4)
                await outbox.aenqueue_many(connection, effect, [(5,), (6,)])
        if database.kind == "mysql":
            await write_by_asyncmy(database.dsn, effect)

    asyncio.run(write())
    relayed()
    found = Queue("default", client)
    numbers = ["1", "2"] + ([] if database.kind == "sqlite" else ["4", "5", "6"])
    assert found.admin.counts().ready == len(numbers)

    async def run_all() -> None:
        from jobq.jobs.context import Call
        from jobq.jobs.executor import Executor

        executor = Executor(registry, worker="here")
        for message in found.dequeue(10).messages:
            call = executor.resolve("default", message)
            assert isinstance(call, Call)
            assert (await executor.arun(call)).outcome == "done"
            assert (await executor.arun(call)).outcome == "done"

    asyncio.run(run_all())
    assert seen == [(number, first) for number in numbers for first in (True, False)]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_connection_that_commits_each_statement_is_refused(
    kind, tmp_path, short_folder, database_servers, registry
):
    from tests.outbox.conftest import new_database

    database = new_database(kind, tmp_path, short_folder, database_servers)
    database.execute(*outbox.schema(kind))
    note = job(name="note", registry=registry)(print)
    engine = sqlalchemy.create_engine(database.url, isolation_level="AUTOCOMMIT")
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        with pytest.raises(ConfigError, match="begin a transaction first"):
            outbox.enqueue(connection, note, 1)
    engine.dispose()
    plain = database.table().connect()
    with pytest.raises(ConfigError, match="begin a transaction first"):
        outbox.enqueue(plain, note, 1)
    plain.close()
    with of_autocommit(database)() as connection:
        outbox.enqueue(connection, note, 1)
    assert database.rows("SELECT count(*) FROM jobq_outbox") == [(1,)]


def test_what_is_no_session_is_refused_and_nothing_is_written(registry):
    note = job(name="note", registry=registry)(lambda number: None)
    with pytest.raises(ConfigError, match="can't be used as a session"):
        outbox.enqueue(object(), note, 1)
    connection = sqlite3.connect(":memory:")
    for statement in outbox.schema("sqlite"):
        connection.execute(statement)
    with pytest.raises(TypeError, match="lambda"):
        outbox.enqueue(connection, note, 1, 2)
    with pytest.raises(CodecError, match="set"):
        outbox.enqueue(connection, note, {1})
    with pytest.raises(ConfigError, match="the relay's --url"):
        outbox.enqueue(connection, note.options(client=object()), 1)
    with pytest.raises(ConfigError, match="can't be the mid of many"):
        outbox.enqueue_many(connection, note.options(mid="a"), [(1,)])
    with pytest.raises(ConfigError, match="tuples of arguments"):
        outbox.enqueue_many(connection, note, ["a"])
    with pytest.raises(ConfigError, match="isn't for async code"):
        asyncio.run(outbox.aenqueue(connection, note, 1))
    with pytest.raises(ConfigError, match="unknown dialect 'oracle'"):
        outbox.schema("oracle")
    assert outbox.enqueue_many(connection, note, []) == []
    assert connection.execute("SELECT count(*) FROM jobq_outbox").fetchone() == (0,)
    connection.close()


def test_middleware_and_seals_take_part(registry, monkeypatch):
    """A program needs no server to write: only the keys."""
    from jobq.client.runtime import runtime
    from jobq.jobs.codec import decode
    from jobq.jobs.signing import seal_for

    class Tagged:
        def enqueue(self, outgoing: Outgoing, next: Callable[..., Any]) -> Any:
            outgoing.headers["team"] = "billing"
            return next(outgoing)

    codec = CodecSettings(mode="sign", keys=(("k", bytes(32)),))
    unreachable = type(
        "Client", (), {"settings": ServerSettings(url="redis://0.0.0.0:1", codec=codec)}
    )
    monkeypatch.setattr(runtime, "default", unreachable)
    registry.middleware.add(Tagged())
    note = job(name="note", registry=registry, queue="low")(lambda number: None)
    connection = sqlite3.connect(":memory:")
    for statement in outbox.schema("sqlite"):
        connection.execute(statement)
    receipt = outbox.enqueue(connection, note, 1)
    [(mid, queue, content)] = connection.execute(
        "SELECT mid, queue, content FROM jobq_outbox"
    ).fetchall()
    connection.close()
    assert (mid, queue) == (receipt.mid, "low")
    seal = seal_for(codec)
    assert seal is not None
    call = decode(seal.open("low", mid, content))
    assert call.args == [1] and call.headers["team"] == "billing" and call.headers["jobq-outbox"]
