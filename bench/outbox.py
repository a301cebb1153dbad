"""`python -m bench.outbox`: costs of an outbox for its writing program, and the rate of one relay.

Each transaction writes one row of the program and, in the second case, one call. PostgreSQL and MariaDB are measured
where they are installed, on private servers. SQLite and MariaDB sync each transaction, this PostgreSQL doesn't.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jobq
from bench.page import measure
from bench.server import private_server, server_s
from jobq import outbox
from jobq.outbox.relay import Relay, RelayOptions
from jobq.outbox.tables import OutboxTable, table_of
from tests import databases

#: Of this share of the rows each is a transaction of its own, which is slow on SQLite.
ALONE_SHARE, BATCH = 0.1, 500


@jobq.job(name="invoice", queue="bench", registry=jobq.Registry())
def invoice(number: int) -> None:
    """Do nothing; the call is stored but never run."""
    raise NotImplementedError(number)


def dsns(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each database that can be started here, by name; it stops before the next."""
    yield "SQLite", f"sqlite:///{folder}/shop.db"
    kinds: list[tuple[str, bool, Callable[[Path], Any]]] = [
        ("PostgreSQL", databases.postgresql_programs() is not None, databases.PostgresqlServer),
        ("MariaDB", databases.mariadb_program() is not None, databases.MariadbServer),
    ]
    for name, found, start in kinds:
        if found:
            server = start(folder / name.lower())
            try:
                server.execute("CREATE DATABASE shop")
                yield name, server.dsn("shop")
            finally:
                server.stop()


def written(table: OutboxTable, numbers: range, calls: int) -> float:
    """Return seconds per transaction; each writes a row of the program and this many calls."""
    connection: Any = table.connect()
    with closing(connection), closing(connection.cursor()) as cursor:
        began = time.perf_counter()
        for number in numbers:
            cursor.execute("BEGIN")
            cursor.execute(f"INSERT INTO orders VALUES ({number})")  # noqa: S608
            if calls:
                outbox.enqueue_many(connection, invoice, [(index,) for index in range(calls)])
            cursor.execute("COMMIT")
        return (time.perf_counter() - began) / len(numbers)


def measured(dsn: str, count: int, start: int) -> tuple[float, ...]:
    """µs of a transaction without and with a call; rows/s of the relay; µs of its CPU and of the server's per row."""
    alone = max(10, round(count * ALONE_SHARE))
    with private_server() as client, closing(table_of(dsn)) as table:
        table.create()
        plain = written(table, range(start, start + alone), 0)
        called = written(table, range(start + alone, start + 2 * alone), 1)
        written(
            table, range(start + 2 * alone, start + 2 * alone + (count - alone) // BATCH), BATCH
        )
        used, began, cpu = server_s(client), time.perf_counter(), time.process_time()
        relay = Relay(table, client, RelayOptions())
        relay.run(once=True)
        took, own = time.perf_counter() - began, time.process_time() - cpu
        sent = relay.totals.sent
        return (
            plain * 1e6, called * 1e6, sent / took, own / sent * 1e6, (server_s(client) - used) / sent * 1e6,
        )  # fmt: skip


def tables(count: int, runs: int) -> Iterator[str]:
    """Return the medians as Markdown."""
    limit = RelayOptions().limit
    yield f"Medians of {runs} runs of {count:,} rows, Valkey. The relay takes rows in batches of {limit}."
    yield ""
    yield "| database | transaction, µs | with a call, µs | rows/s of a relay | its CPU, µs/row | server, µs/row |"
    yield "|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        for name, dsn in dsns(Path(folder)):
            with closing(table_of(dsn)) as table, closing(table.connect()) as connection:
                connection.cursor().execute("CREATE TABLE orders (number bigint PRIMARY KEY)")
            rows = [measured(dsn, count, run * 10_000_000) for run in range(runs)]
            plain, called, rate, own, server = map(statistics.median, zip(*rows, strict=True))
            yield f"| {name} | {plain:,.0f} | {called:,.0f} | {rate:,.0f} | {own:.0f} | {server:.1f} |"


if __name__ == "__main__":
    measure("bench.outbox", __doc__, tables, 3)
