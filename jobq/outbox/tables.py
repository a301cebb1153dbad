"""The relay's access to the database: lock a batch of rows, delete enqueued rows, and wait for more.

There is one class per database. An object keeps one connection, and a transaction from `batch` to `settle` or `close`.
The connection is opened when needed. So to recover from an error, it is enough to call `close`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from jobq import extras
from jobq.errors import ConfigError, JobqError, masked
from jobq.outbox.schema import schema

#: Upper bound of a count in the statements: counting millions of rows every few seconds would cost more than
#: relaying them.
MAX_COUNTED = 100_000
T = TypeVar("T")
#: How long to wait for a connection, and for a lock.
CONNECT_S = 5
#: Polling interval that also applies with a trigger, because another relay may have returned some rows.
NOTIFIED_POLL_S = 5.0
#: Maximum duration of a single wait, because a signal doesn't interrupt it.
PIECE_S = 0.2


class DatabaseAwayError(JobqError):
    """The database of the outbox is currently unavailable."""


class RawRow(NamedTuple):
    """One row of the outbox, not decoded."""

    number: int
    mid: str
    queue: str
    content: bytes
    options: str
    created_at: int


class Refused(NamedTuple):
    """A row for the table of failed rows, and why the row failed."""

    row: RawRow
    why: str


class Backlog(NamedTuple):
    """Number of waiting rows (up to MAX_COUNTED), age in seconds of the oldest row, and number of failed rows."""

    rows: int
    oldest_s: float
    failed: int


class OutboxTable(ABC):
    """Reads and writes the outbox tables of one database."""

    dialect: str
    #: Placeholder of a value in statements.
    mark = "%s"
    #: Statement for a batch. Its values are the number of the row before the batch, and the maximum number of rows.
    select = (
        "SELECT id, mid, queue, content, options, created_at FROM jobq_outbox WHERE id > ? ORDER BY id LIMIT ? "
        "FOR UPDATE SKIP LOCKED"
    )
    #: Statement that deletes rows. Its value is a list of their numbers.
    delete = "DELETE FROM jobq_outbox WHERE id = ANY(?)"

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        # The driver's errors. Importing a missing driver fails here, so that it isn't taken for a database outage.
        self.errors = self._errors()
        self._connection: Any = None

    @abstractmethod
    def connect(self) -> Any:
        """Open a connection in which only `begin` starts transactions."""

    @abstractmethod
    def _errors(self) -> type[Exception]:
        """Return the base class of the driver's errors; raise ConfigError if the driver isn't installed."""

    def begin(self) -> None:
        """Begin a transaction."""
        self._execute("BEGIN")

    def batch(self, after: int, limit: int) -> list[RawRow]:
        """Lock and return up to `limit` rows after the row number `after`. Skip rows that other relays have locked."""
        return self._calling(lambda: self._batch(after, limit))

    def settle(self, sent: Sequence[int], refused: Sequence[Refused], now: int) -> None:
        """Delete sent rows, move rejected rows to the table of failed rows, and commit the transaction."""
        self._calling(lambda: self._settle(sent, refused, now))

    def backlog(self, now: int) -> Backlog:
        return self._calling(lambda: self._backlog(now))

    def retry_failed(self) -> int:
        """Move failed rows back to the outbox; return how many there were."""
        return self._calling(self._retry_failed)

    def prune_inbox(self, before: int) -> int:
        """Delete rows of the inbox written before this time (epoch ms); return their number."""
        delete = "DELETE FROM jobq_inbox WHERE done_at < ?"
        return self._calling(lambda: int(self._execute(delete, (before,)).rowcount))

    def create(self, *, notify: bool = True) -> None:
        """Create the tables of the outbox and the inbox unless they exist."""
        self._calling(lambda: [self._execute(sql) for sql in schema(self.dialect, notify=notify)])

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds`; return whether new rows may have been committed."""
        time.sleep(seconds)
        return False

    @property
    def notifies(self) -> bool:
        """Return whether `wait` returns early when rows are committed."""
        return False

    def close(self) -> None:
        """Close the database connection and roll back its transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except self.errors:
                pass

    def _calling(self, call: Callable[[], T]) -> T:
        try:
            if self._connection is None:
                self._connection = self.connect()
            return call()
        except self.errors as error:
            self.close()
            raise self._away(error) from error
        except BaseException:
            self.close()
            raise

    def _away(self, error: Exception) -> DatabaseAwayError:
        # The drivers have no common class for a missing table.
        missing = re.search(r"no such table|does not exist|doesn't exist", str(error))
        remedy = (
            f"; jobq outbox schema --dialect {self.dialect} prints the tables" if missing else ""
        )
        return DatabaseAwayError(
            f"the database of the outbox, {masked(self.dsn)}, can't be used: {error}{remedy}"
        )

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(statement.replace("?", self.mark), tuple(values))
        return cursor

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self._execute(statement, values)
        rows = list(cursor.fetchall())
        cursor.close()
        return rows

    def _batch(self, after: int, limit: int) -> list[RawRow]:
        self.begin()
        rows = self._rows(self.select, (after, limit))
        if not rows:
            self._execute("ROLLBACK")
        return [RawRow(*row) for row in rows]

    def _settle(self, sent: Sequence[int], refused: Sequence[Refused], now: int) -> None:
        for row, why in refused:
            self._execute(
                "INSERT INTO jobq_outbox_failed (id, mid, queue, content, options, created_at, failed_at, error) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, now, why),
            )
        gone = [*sent, *(failed.row.number for failed in refused)]
        if gone:
            self._execute(self.delete, (self.listed(gone),))
        self._execute("COMMIT")

    def listed(self, numbers: list[int]) -> Any:
        """Return row numbers as a single parameter for the statement `delete`."""
        return numbers

    def _backlog(self, now: int) -> Backlog:
        [(rows, oldest)] = self._rows(
            "SELECT count(*), min(created_at) FROM (SELECT created_at FROM jobq_outbox ORDER BY id LIMIT 100000) "
            "AS found"
        )
        [(failed,)] = self._rows(
            "SELECT count(*) FROM (SELECT id FROM jobq_outbox_failed LIMIT 100000) AS found"
        )
        return Backlog(int(rows), max(0, now - oldest) / 1000 if rows else 0.0, int(failed))

    def _retry_failed(self) -> int:
        self.begin()
        self._execute(
            "INSERT INTO jobq_outbox (id, mid, queue, content, options, created_at) "
            "SELECT id, mid, queue, content, options, created_at FROM jobq_outbox_failed"
        )
        count = int(self._execute("DELETE FROM jobq_outbox_failed").rowcount)
        self._execute("COMMIT")
        return count


class PostgresqlTable(OutboxTable):
    """The outbox in PostgreSQL, through psycopg 3.

    If a trigger sends notifications of new rows, a second connection listens.
    """

    dialect = "postgresql"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._listener: Any = None
        self._notifies: bool | None = None

    def _errors(self) -> type[Exception]:
        return cast("type[Exception]", self._driver().Error)

    @staticmethod
    def _driver() -> Any:
        try:
            import psycopg
        except ImportError as error:
            raise ConfigError(
                f"PostgreSQL needs psycopg: {extras.install('postgresql')}"
            ) from error
        return psycopg

    def connect(self) -> Any:
        return self._driver().connect(self.dsn, autocommit=True, connect_timeout=CONNECT_S)

    @property
    def notifies(self) -> bool:
        if self._notifies is None:
            reply = self._calling(
                lambda: self._rows(
                    "SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass('jobq_outbox') "
                    "AND tgname = 'jobq_outbox_notify'"
                )
            )
            self._notifies = bool(reply)
        return self._notifies

    def wait(self, seconds: float) -> bool:
        """Wait for a notification about new rows.

        The first call only starts to listen, and returns True because rows may have been committed earlier.
        """
        if not self.notifies:
            return super().wait(seconds)
        try:
            if self._listener is None:
                self._listener = self.connect()
                self._listener.execute("LISTEN jobq_outbox")
                return True
            return any(True for _ in self._listener.notifies(timeout=seconds, stop_after=1))
        except self.errors as error:
            self.close()
            raise self._away(error) from error

    def close(self) -> None:
        listener, self._listener, self._notifies = self._listener, None, None
        if listener is not None:
            listener.close()
        super().close()


class MysqlTable(OutboxTable):
    """The outbox in MySQL 8.0 or later, or MariaDB 10.6 or later, through PyMySQL."""

    dialect = "mysql"
    delete = "DELETE FROM jobq_outbox WHERE id IN ?"

    def _errors(self) -> type[Exception]:
        return cast("type[Exception]", self._driver().MySQLError)

    @staticmethod
    def _driver() -> Any:
        try:
            import pymysql
        except ImportError as error:
            raise ConfigError(f"MySQL needs PyMySQL: {extras.install('mysql')}") from error
        return pymysql

    def connect(self) -> Any:
        parts = urlsplit(self.dsn)
        options = dict(parse_qsl(parts.query))
        where = {"unix_socket": options["unix_socket"]} if "unix_socket" in options else {
            "host": parts.hostname or "localhost", "port": parts.port or 3306,
        }  # fmt: skip
        return self._driver().connect(
            **where, user=unquote(parts.username or "root"), password=unquote(parts.password or ""),
            database=unquote(parts.path.lstrip("/")), charset="utf8mb4", autocommit=True, connect_timeout=CONNECT_S,
            # Other levels lock the gap after the last row, which would block inserts during a batch.
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )  # fmt: skip


class SqliteTable(OutboxTable):
    """The outbox in SQLite.

    Rows aren't locked, because a lock would block all writers. So only one relay at a time may use the file.
    """

    dialect = "sqlite"
    mark = "?"
    select = "SELECT id, mid, queue, content, options, created_at FROM jobq_outbox WHERE id > ? ORDER BY id LIMIT ?"
    delete = "DELETE FROM jobq_outbox WHERE id IN (SELECT value FROM json_each(?))"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._path = sqlite_path(urlsplit(dsn))
        if not self._path.parent.is_dir():
            raise ConfigError(f"--dsn {dsn!r}: there is no folder {self._path.parent}; create it")
        self._alone: int | None = None

    def _errors(self) -> type[Exception]:
        return sqlite3.Error

    def connect(self) -> Any:
        return sqlite3.connect(self._path, isolation_level=None, timeout=CONNECT_S)

    def batch(self, after: int, limit: int) -> list[RawRow]:
        """Return up to `limit` rows after the row number `after`; [] while another relay uses this file."""
        return super().batch(after, limit) if self._is_alone() else []

    def begin(self) -> None:
        pass

    def _batch(self, after: int, limit: int) -> list[RawRow]:
        return [RawRow(*row) for row in self._rows(self.select, (after, limit))]

    def listed(self, numbers: list[int]) -> Any:
        return json.dumps(numbers)

    def _settle(self, sent: Sequence[int], refused: Sequence[Refused], now: int) -> None:
        self._execute("BEGIN IMMEDIATE")
        super()._settle(sent, refused, now)

    def _retry_failed(self) -> int:
        self._execute("BEGIN IMMEDIATE")
        return super()._retry_failed()

    def _is_alone(self) -> bool:
        if self._alone is None:
            lock = os.open(
                f"{self._path}-relay", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._alone = lock
        return True

    def close(self) -> None:
        super().close()
        if self._alone is not None:
            os.close(self._alone)
            self._alone = None


def sqlite_path(parts: SplitResult) -> Path:
    """Return the file in a URL such as `sqlite:///relative.db` or `sqlite:////absolute.db` (SQLAlchemy's format)."""
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or path == ":memory:":
        raise ConfigError(
            f"{parts.geturl()!r} is not a file that two processes can share; use sqlite:///app.db, or "
            "sqlite:////srv/app.db for an absolute path"
        )
    return Path(path)


_TABLES: dict[str, type[OutboxTable]] = {
    "postgresql": PostgresqlTable, "postgres": PostgresqlTable, "mysql": MysqlTable, "mariadb": MysqlTable,
    "sqlite": SqliteTable,
}  # fmt: skip


def table_of(dsn: str) -> OutboxTable:
    """Return the outbox in the database at the URL `dsn`.

    A driver in the URL, as in postgresql+asyncpg://, is ignored.
    """
    scheme, colon, rest = dsn.partition("://")
    name = scheme.partition("+")[0]
    if not colon or name not in _TABLES:
        known = "postgresql://, mysql:// or sqlite:///"
        raise ConfigError(
            f"--dsn {masked(dsn)!r} is not a database that the outbox supports; use {known}"
        )
    return _TABLES[name](f"{name}://{rest}")
