"""Relay an outbox in tests. Rows are read on the connection that wrote them, because its transaction may be open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobq.client.connection import Client
from jobq.errors import JobqError
from jobq.outbox import writing
from jobq.outbox.relay import Relay
from jobq.outbox.tables import Backlog, OutboxTable, RawRow, Refused

_SELECT = "SELECT id, mid, queue, content, options, created_at FROM jobq_outbox ORDER BY id"
_DELETE = "DELETE FROM jobq_outbox WHERE id = :id"


class SessionTable(OutboxTable):
    """The outbox as one database session sees it, including uncommitted rows. This class never commits."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.refused: list[Refused] = []

    def connect(self) -> Any:
        """Return the session."""
        return self._session

    def _errors(self) -> type[Exception]:
        return JobqError

    def batch(self, after: int, limit: int) -> list[RawRow]:
        """Read up to `limit` rows after the row number `after`."""
        rows = [RawRow(*row) for row in writing.rows(self._session, _SELECT)]
        return [row for row in rows if row.number > after][:limit]

    def settle(self, sent: Sequence[int], refused: Sequence[Refused], now: int) -> None:
        """Delete the sent and the rejected rows, and record the rejected rows."""
        self.refused += refused
        gone = [*sent, *(refusal.row.number for refusal in refused)]
        if gone:
            writing.execute(self._session, _DELETE, [{"id": number} for number in gone])

    def backlog(self, now: int) -> Backlog:
        """Return an empty backlog, because this relay has no metrics."""
        return Backlog(0, 0.0, 0)

    def close(self) -> None:
        """Leave the session open."""


class DjangoOutboxes:
    """The databases of a Django project in which a test has written outbox rows."""

    def __init__(self) -> None:
        self.aliases: set[str] = set()

    def wrote(self, session: Any) -> None:
        """Record the database if the session is a Django connection."""
        if writing.kind_of(session).package == "django":
            self.aliases.add(session.alias)

    def relay(self, client: Client) -> int:
        """Enqueue the rows that the test has written. Return the number of rows."""
        from django.db import connections, transaction

        count = 0
        for alias in sorted(self.aliases):
            block: Any = transaction.atomic(using=alias)
            with block:
                count += relay(client, connections[alias])
        return count


def relay(client: Client, session: Any) -> int:
    """Enqueue and delete the outbox rows that a session can read. Return the number of rows.

    Raises AssertionError if a row is invalid.
    """
    table = SessionTable(session)
    done = Relay(table, client)
    done.run(once=True)
    if table.refused:
        row, why = table.refused[0]
        raise AssertionError(f"the relay rejects the row of {row.mid}: {why}")
    return done.totals.sent
