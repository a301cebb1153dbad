"""`jobq outbox`: print the SQL for its tables, run the relay, count and prune rows."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from jobq.cli.options import group, option
from jobq.cli.session import Session, command, opens
from jobq.durations import counted
from jobq.metrics.exposition import metrics_page
from jobq.metrics.health import probe
from jobq.metrics.of_outbox import relay_families
from jobq.metrics.serving import Page, PageServer, listen, parse_endpoint
from jobq.observe.log import Logging
from jobq.outbox.relay import BATCH, Relay, RelayOptions, logger
from jobq.outbox.schema import DIALECTS, drop_schema
from jobq.outbox.schema import schema as schema_of
from jobq.outbox.tables import OutboxTable, table_of

#: Interval between counts of waiting rows, for metrics.
COUNT_S = 10.0
#: A relay whose loop made no turn for this time hangs. A call to a server that is away may take a minute.
HANGS_S = 120.0


@group(
    "outbox",
    "schema --dialect postgresql | psql shop",
    "relay --dsn postgresql://shop@db.example/shop",
    "status --dsn sqlite:///shop.db",
)
def outbox() -> None:
    """Enqueue calls from the outbox table of a database.

    A program writes calls in its own transaction, with jobq.outbox. A relay enqueues the calls after the commit.
    """


def _opened(session: Session, dsn: str) -> OutboxTable:
    return table_of(dsn)


on_table = opens(
    "table", _opened,
    option(
        "--dsn URL", "Database: postgresql://user@host/name, mysql://… or sqlite:///file.",
        required=True, shared=("JOBQ_OUTBOX_DSN",),
    ),
)  # fmt: skip


@command(
    "schema",
    "--dialect postgresql | psql shop",
    "--dialect mysql | mysql shop",
    "--dialect sqlite | sqlite3 shop.db",
    group=outbox,
)
@option(
    f"--dialect {'|'.join(DIALECTS)}", "Kind of database; mysql includes MariaDB.", required=True
)
@option("--no-notify", "Omit the trigger that wakes relays; they poll instead.")
@option("--drop", "Print statements that drop the tables.")
def schema(session: Session, dialect: str, no_notify: bool, drop: bool) -> None:
    """Print the SQL that creates the tables of the outbox and the inbox.

    The SQL leaves existing tables unchanged. The command does not connect to a database.
    """
    for statement in drop_schema(dialect) if drop else schema_of(dialect, notify=not no_notify):
        session.say({"statement": statement}, f"{statement};")


@command(
    "relay",
    "--dsn postgresql://shop@db.example/shop",
    "--dsn sqlite:///shop.db --once",
    group=outbox,
    server="awaits",
)
@on_table
@option("--once", "Exit when all rows have been processed.")
@option("--poll DURATION", "Interval between searches for new rows.", default="200ms")
@option(
    "--batch N",
    "Maximum number of rows per transaction.",
    type=click.IntRange(1, 10_000),
    default=BATCH,
)
@option(
    "--dedupe DURATION",
    "Reject the id of a row for this long after its message is done.",
    default="1d",
)
@option("--health ADDRESS", "Serve /healthz, /readyz and /metrics at host:port or unix:path.")
@option("--log-level debug|info|warning|error", "Minimum level to log.", default="info")
@option("--log-format text|json", "Format of log lines.", default="text")
def relay(session: Session, table: OutboxTable, once: bool, **given: Any) -> None:
    """Enqueue the rows of the outbox until TERM or INT.

    A row is deleted after the server has accepted its message. If the relay dies before it deletes a row, the row is
    enqueued again with the same message id. The server rejects the id until --dedupe has passed since the message was
    done. Several relays may run, but on SQLite only one of them works at a time.
    """
    Logging(given["log_level"], given["log_format"]).settle()
    options = RelayOptions(
        dedupe_s=given["dedupe"], poll_s=max(0.01, given["poll"]), limit=given["batch"],
        count_s=COUNT_S if given["health"] else 0.0,
    )  # fmt: skip
    with ended_by_signals() as ending:
        work = Relay(table, session.client, options, ending.is_asked)
        if given["health"]:
            serve(work, given["health"])
        work.run(once=once)
    totals = work.totals
    record = {"sent": totals.sent, "failed": totals.failed, "left": totals.left}
    session.say(record, f"{totals.sent:,} sent, {totals.failed:,} rejected, {totals.left:,} left")


@command("status", "--dsn postgresql://shop@db.example/shop", group=outbox)
@on_table
def status(session: Session, table: OutboxTable) -> None:
    """Count waiting and rejected rows.

    Counts stop at 100,000.
    """
    backlog = table.backlog(_now())
    table.close()
    record = {
        "rows": backlog.rows,
        "oldest_s": round(backlog.oldest_s, 3),
        "failed": backlog.failed,
    }
    session.say(
        record,
        f"{counted(backlog.rows, 'row')} waiting, the oldest for {backlog.oldest_s:.1f} s; {backlog.failed:,} rejected",
    )


@command("retry", "--dsn postgresql://shop@db.example/shop", group=outbox)
@on_table
def retry(session: Session, table: OutboxTable) -> None:
    """Put rejected rows back into the outbox.

    The relay rejects a row with an invalid queue, message id or option. The reason is in the relay's log and in the
    column `error` of jobq_outbox_failed.
    """
    count = table.retry_failed()
    table.close()
    session.say({"rows": count}, f"{counted(count, 'row')} put back into the outbox")


@command("purge", "--dsn postgresql://shop@db.example/shop --older-than 30d", group=outbox)
@on_table
@option("--older-than DURATION", "Delete rows older than this.", default="30d")
def prune(session: Session, table: OutboxTable, older_than: float) -> None:
    """Delete old rows of the inbox.

    If a message is retried or revived after its row was deleted, its effects are repeated. So keep each row until its
    message can no longer be retried or revived.
    """
    count = table.prune_inbox(_now() - round(older_than * 1000))
    table.close()
    session.say({"rows": count}, f"{counted(count, 'row')} deleted")


def serve(work: Relay, address: str) -> None:
    """Serve the relay's health checks and metrics in a thread."""
    endpoint = parse_endpoint(address)
    PageServer(listen(endpoint), pages_of(work)).serve_in_thread()
    logger.info("probes and metrics at %s", endpoint.shown)


def pages_of(work: Relay) -> dict[str, Page]:
    """Return the relay's pages for health checks and metrics."""
    return {
        "/healthz": probe(lambda: why_dead(work)),
        "/readyz": probe(lambda: why_dead(work) or work.trouble or _why_new(work)),
        "/metrics": metrics_page(lambda: relay_families(work)),
    }


def why_dead(work: Relay) -> str:
    """Return why the relay should be restarted, or ''. An unreachable server isn't a reason."""
    age_s = time.monotonic() - work.turned_at
    return f"the relay has been idle for {age_s:.0f} s" if age_s >= HANGS_S else ""


def _why_new(work: Relay) -> str:
    return "" if work.totals.well_at else "relay started"


class StopSignal:
    """Records whether TERM or INT was received."""

    asked = False

    def is_asked(self) -> bool:
        return self.asked


@contextmanager
def ended_by_signals() -> Iterator[StopSignal]:
    """Make TERM and INT end the relay after its current batch. A second signal ends the process immediately."""
    ending = StopSignal()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}

    def ask(number: int, frame: FrameType | None) -> None:
        ending.asked = True
        signal.signal(number, before[signal.Signals(number)])

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield ending
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def _now() -> int:
    return time.time_ns() // 1_000_000
