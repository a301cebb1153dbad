"""Write calls to the outbox in the transaction of the program's session or connection.

Sessions and connections of SQLAlchemy, psycopg, Django, sqlite3, PyMySQL and asyncmy are supported. The session's class
identifies its package, so these packages aren't imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from jobq.errors import ConfigError
from jobq.jobs.job import Args, Arguments, Job
from jobq.jobs.results import Receipt
from jobq.outbox.rows import OutboxRow, rows_of

P = ParamSpec("P")
R = TypeVar("R")
#: Called with each session after rows were written on it, except async sessions. Tests use this to relay the rows.
listeners: list[Callable[[Any], object]] = []
#: Inserts a row. The values are the fields of an OutboxRow.
_INSERT = (
    "INSERT INTO jobq_outbox (mid, queue, content, options, created_at) "
    "VALUES (:mid, :queue, :content, :options, :created_at)"
)


def enqueue(session: Any, job: Job[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
    """Write one call to the outbox, in the transaction of `session`.

    The returned receipt has the message id; its `action` is 'written'. Set options with `job.options(...)`.

    Args:
        session: A SQLAlchemy Session or Connection, a psycopg Connection, Django's `connection`, or a connection of
            sqlite3 or PyMySQL.

    Raises:
        TypeError: The arguments don't fit the function.
        CodecError: JSON can't represent an argument.
        ConfigError: `session` isn't in a transaction.
    """
    job.check_arguments(args, kwargs)
    rows, receipts = rows_of(job, [(args, kwargs)])
    _insert(session, rows)
    return receipts[0]


def enqueue_many(
    session: Any, job: Job[P, R], arguments: Iterable[Args[P, R]] | Iterable[Sequence[Any]], /
) -> list[Receipt[R]]:
    """Write many calls in one transaction: `enqueue_many(session, resize, (resize.args(path) for path in paths))`."""
    rows, receipts = rows_of(job, _calls(job, arguments))
    _insert(session, rows)
    return receipts


async def aenqueue(
    session: Any, job: Job[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> Receipt[R]:
    """Write one call, using an async session or connection; see `enqueue`.

    Pass an AsyncSession or AsyncConnection of SQLAlchemy, an AsyncConnection of psycopg, or a connection of asyncmy.
    """
    job.check_arguments(args, kwargs)
    rows, receipts = rows_of(job, [(args, kwargs)])
    await _ainsert(session, rows)
    return receipts[0]


async def aenqueue_many(
    session: Any, job: Job[P, R], arguments: Iterable[Args[P, R]] | Iterable[Sequence[Any]], /
) -> list[Receipt[R]]:
    """Write many calls, using a session that `aenqueue` accepts; see `enqueue_many`."""
    rows, receipts = rows_of(job, _calls(job, arguments))
    await _ainsert(session, rows)
    return receipts


def _calls(job: Job[..., Any], arguments: Iterable[Any]) -> list[Arguments]:
    if job.settings.mid is not None:
        raise ConfigError(
            f"mid={job.settings.mid!r} can't be the mid of many messages; enqueue them one by one"
        )
    calls: list[Arguments] = []
    for item in arguments:
        if isinstance(item, Args) and item.job == job.name:
            calls.append((item.args, item.kwargs))
        elif isinstance(item, tuple | list):
            job.check_arguments(item, {})
            calls.append((item, {}))
        else:
            raise ConfigError(
                f"enqueue_many of {job.name} takes {job.name}.args(…) or tuples of arguments, not {item!r:.80}"
            )
    return calls


class Kind(NamedTuple):
    """How to use one kind of database session.

    Attributes:
        mark: The placeholder for a value in statements.
        dialect: A function that returns the SQL dialect of a session.
    """

    package: str
    mark: Callable[[str], str]
    dialect: Callable[[Any], str]
    is_outside: Callable[[Any], bool]


def kind_of(session: Any) -> Kind:
    """Return the kind of `session`; raise ConfigError if it is unknown."""
    for base in type(session).__mro__:
        package = base.__module__.partition(".")[0]
        if package in KINDS:
            return KINDS[package]
    shown = f"{type(session).__module__}.{type(session).__qualname__}"
    raise ConfigError(
        f"{shown} can't be used as a session; pass a session or connection of SQLAlchemy, psycopg, Django "
        "(django.db.connection), sqlite3, PyMySQL or asyncmy"
    )


def execute(session: Any, statement: str, values: Sequence[Mapping[str, Any]]) -> int:
    """Execute a statement once for each mapping in `values`. The mapping fills the `:name` placeholders.

    Return the number of changed rows.
    """
    kind = kind_of(session)
    if _is_async(kind, session):
        raise ConfigError(
            f"{type(session).__qualname__} is for async code; use await outbox.aenqueue(…) and inbox.aonce(…)"
        )
    _refuse_outside(kind, session)
    if kind.package == "sqlalchemy":
        return int(session.execute(_text(statement), _many(values)).rowcount)
    cursor = session.cursor()
    try:
        text, rows = _positional(kind, statement, values)
        if len(rows) == 1:
            cursor.execute(text, rows[0])
        else:
            cursor.executemany(text, rows)
        return int(cursor.rowcount)
    finally:
        cursor.close()


def rows(session: Any, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows that a statement selects."""
    if kind_of(session).package == "sqlalchemy":
        return [tuple(row) for row in session.execute(_text(statement))]
    cursor = session.cursor()
    try:
        cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()]
    finally:
        cursor.close()


async def aexecute(session: Any, statement: str, values: Sequence[Mapping[str, Any]]) -> int:
    """Execute a statement, using an async session or connection; see `execute`."""
    kind = kind_of(session)
    if not _is_async(kind, session):
        raise ConfigError(
            f"{type(session).__qualname__} isn't for async code; use outbox.enqueue(…) and inbox.once(…)"
        )
    _refuse_outside(kind, session)
    if kind.package == "sqlalchemy":
        return int((await session.execute(_text(statement), _many(values))).rowcount)
    async with session.cursor() as cursor:
        text, rows = _positional(kind, statement, values)
        if len(rows) == 1:
            await cursor.execute(text, rows[0])
        else:
            await cursor.executemany(text, rows)
        return int(cursor.rowcount)


def _is_async(kind: Kind, session: Any) -> bool:
    # A connection of asyncmy has no execute.
    return kind.package == "asyncmy" or inspect.iscoroutinefunction(
        getattr(session, "execute", None)
    )


def _insert(session: Any, rows: Sequence[OutboxRow]) -> None:
    if rows:
        execute(session, _INSERT, [row._asdict() for row in rows])
        for listener in listeners:
            listener(session)


async def _ainsert(session: Any, rows: Sequence[OutboxRow]) -> None:
    if rows:
        await aexecute(session, _INSERT, [row._asdict() for row in rows])


def _text(statement: str) -> Any:
    from sqlalchemy import text

    return text(statement)


def _many(values: Sequence[Mapping[str, Any]]) -> Any:
    return dict(values[0]) if len(values) == 1 else [dict(value) for value in values]


def _positional(
    kind: Kind, statement: str, values: Sequence[Mapping[str, Any]]
) -> tuple[str, list[tuple[Any, ...]]]:
    names = sorted(values[0], key=lambda name: statement.index(f":{name}"))
    for name in names:
        statement = statement.replace(f":{name}", kind.mark(name), 1)
    return statement, [tuple(value[name] for name in names) for value in values]


def _refuse_outside(kind: Kind, session: Any) -> None:
    if kind.is_outside(session):
        raise ConfigError(
            f"this {kind.package} connection commits each statement, so the row would be kept even if your changes "
            f"are rolled back; begin a transaction first (Django: transaction.atomic(), psycopg: "
            f"connection.transaction())"
        )


def _sqlalchemy_dialect(session: Any) -> str:
    bind = session.get_bind() if hasattr(session, "get_bind") else session
    name = str(bind.dialect.name)
    return "mysql" if name == "mariadb" else name


def _sqlalchemy_is_outside(session: Any) -> bool:
    # A session has the options of its bind; a connection's options include them.
    bind = session.get_bind() if hasattr(session, "get_bind") else session
    options = getattr(bind, "sync_connection", None) or bind
    return bool(options.get_execution_options().get("isolation_level") == "AUTOCOMMIT")


def _psycopg_is_outside(connection: Any) -> bool:
    # 0 = IDLE. Without autocommit, the first statement begins a transaction.
    return bool(connection.autocommit and int(connection.info.transaction_status) == 0)


def _sqlite_is_outside(connection: Any) -> bool:
    commits = connection.isolation_level is None or getattr(connection, "autocommit", -1) is True
    return bool(commits and not connection.in_transaction)


def _mysql_is_outside(connection: Any) -> bool:
    # 1 = SERVER_STATUS_IN_TRANS
    return bool(connection.get_autocommit() and not connection.server_status & 1)


def _percent(name: str) -> str:
    return "%s"


KINDS = {
    "sqlalchemy": Kind("sqlalchemy", ":{}".format, _sqlalchemy_dialect, _sqlalchemy_is_outside),
    "psycopg": Kind("psycopg", _percent, lambda session: "postgresql", _psycopg_is_outside),
    "django": Kind(
        "django", _percent, lambda session: str(session.vendor),
        lambda session: not session.in_atomic_block and bool(session.get_autocommit()),
    ),
    "sqlite3": Kind("sqlite3", lambda name: "?", lambda session: "sqlite", _sqlite_is_outside),
    **{
        package: Kind(package, _percent, lambda session: "mysql", _mysql_is_outside)
        for package in ("pymysql", "asyncmy")
    },
}  # fmt: skip
