"""A transactional outbox: calls are written to a table in the program's own transaction, and a relay enqueues them.

::

    from jobq import outbox

    with Session.begin() as session:
        session.add(order)
        outbox.enqueue(session, send_invoice, order.id)

If the transaction is rolled back, the call never happens. Once it is committed, `jobq outbox relay` enqueues the call,
at least once, and deletes the row. `jobq.outbox.inbox.once` is the receiving end: it skips work already done.
"""

from __future__ import annotations

from jobq.outbox.schema import DIALECTS, Dialect, schema
from jobq.outbox.writing import aenqueue, aenqueue_many, enqueue, enqueue_many

__all__ = ["DIALECTS", "Dialect", "aenqueue", "aenqueue_many", "enqueue", "enqueue_many", "schema"]
