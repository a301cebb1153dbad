"""The receiving end of the outbox: do the work for a message once, even if the message is delivered again.

::

    @job
    def book(order_id: int) -> None:
        with Session.begin() as session:
            if inbox.once(session):
                session.add(Booking(order_id))

`once` writes a row in the job's own transaction. If the transaction commits, `once` finds the row at the next delivery,
and the job skips the work. If the transaction is rolled back, the row is also removed, and the next attempt does the
work.
"""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import Any

from jobq.errors import ConfigError
from jobq.jobs.context import current
from jobq.outbox.rows import HEADER
from jobq.outbox.writing import aexecute, execute, kind_of

_INSERTS = {
    "postgresql": "INSERT INTO jobq_inbox (id, queue, mid, done_at) VALUES (:id, :queue, :mid, :done_at) "
    "ON CONFLICT DO NOTHING",
    "mysql": "INSERT IGNORE INTO jobq_inbox (id, queue, mid, done_at) VALUES (:id, :queue, :mid, :done_at)",
    "sqlite": "INSERT OR IGNORE INTO jobq_inbox (id, queue, mid, done_at) VALUES (:id, :queue, :mid, :done_at)",
}


def once(session: Any, part: str = "") -> bool:
    """Record the running message as done; return False if a committed transaction has already recorded it.

    If another attempt of the message has recorded it in an open transaction, wait until that transaction ends.

    Args:
        session: See `outbox.enqueue`.
        part: A name for the transaction, if the job has several transactions. Each commits once per message.
    """
    statement, values = _statement(session, part)
    return execute(session, statement, [values]) == 1


async def aonce(session: Any, part: str = "") -> bool:
    """Record the running message as done, using an async session or connection; see `once`."""
    statement, values = _statement(session, part)
    return await aexecute(session, statement, [values]) == 1


def _statement(session: Any, part: str) -> tuple[str, dict[str, Any]]:
    dialect = kind_of(session).dialect(session)
    if dialect not in _INSERTS:
        raise ConfigError(
            f"the inbox doesn't support the database {dialect!r}; it supports {', '.join(_INSERTS)}"
        )
    context = current()
    # A message that a relay enqueued twice has two generations, but the same header.
    life = context.headers.get(HEADER) or context.generation
    named = "\0".join((context.queue, context.mid, life, part)).encode("utf-8", "replace")
    return _INSERTS[dialect], {
        "id": blake2b(named, digest_size=24).hexdigest(), "queue": context.queue, "mid": context.mid,
        "done_at": time.time_ns() // 1_000_000,
    }  # fmt: skip
