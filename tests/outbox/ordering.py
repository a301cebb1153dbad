"""A program whose transactions enqueue jobs, and the job: for tests that kill both.

``python -m tests.outbox.ordering URL FIRST LAST`` writes an order and its call in each transaction, and rolls three of
ten back. What is in `orders` is what was committed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError

from jobq import job, outbox, retry
from jobq.outbox import inbox

URL = os.environ.get("ORDERING_URL", "")


def engine_of(url: str) -> Any:
    """Of SQLite with transactions that take the lock for writing first, so that none fails halfway."""
    if not url.startswith("sqlite"):
        return create_engine(url)
    engine = create_engine(url, connect_args={"timeout": 60})

    @event.listens_for(engine, "connect")
    def no_own_begin(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous=OFF")

    @event.listens_for(engine, "begin")
    def begin_immediate(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@job(queue="orders", retries=10_000, retry=retry.fixed(0.05))
def ship(number: int) -> None:
    """Each run is noted; its effect happens once."""
    engine = engine_of(URL)
    try:
        with engine.begin() as connection:
            connection.execute(text(f"INSERT INTO runs VALUES ({number})"))
            if inbox.once(connection):
                connection.execute(text(f"INSERT INTO effects VALUES ({number})"))
    finally:
        engine.dispose()


def order(first: int, last: int) -> None:
    """Make these orders; those whose outcome is unknown are not made again."""
    engine, luck = engine_of(URL), random.Random(first)
    for number in range(first, last):
        try:
            with engine.connect() as connection, connection.begin() as transaction:
                connection.execute(text(f"INSERT INTO orders VALUES ({number})"))
                outbox.enqueue(connection, ship, number)
                if luck.random() < 0.3:
                    transaction.rollback()
        except DBAPIError:  # the database is away
            time.sleep(0.01)
        print(number, flush=True)


if __name__ == "__main__":
    from tests.outbox import ordering

    ordering.order(int(sys.argv[1]), int(sys.argv[2]))
