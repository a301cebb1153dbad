"""`jobq lake audit`: what became of a time range's messages, from the lake."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from jobq.cli import exits
from jobq.cli.audit import show
from jobq.cli.lake_place import lake_options, opened
from jobq.cli.options import command, option, queues_option
from jobq.cli.session import Session
from jobq.cli.spark import master_option, memory_option
from jobq.config import parse_queues

if TYPE_CHECKING:
    from jobq.pipeline.lake.place import Lake
    from jobq.pipeline.lake_audit import LakeAudited, Lives


@command(
    "audit",
    examples="""
        jobq lake audit --lake ./lake --since 30d
        jobq lake audit --since 2026-10-01T00:00Z --until 2026-11-01T00:00Z --queues low --format json
        jobq lake audit --since 1d --ask
    """,
)
@lake_options
@queues_option
@option(
    "--since",
    metavar="WHEN",
    help="Accepted from then on: 30d (ago), or a moment.  [default: all on record]",
)
@option("--until", metavar="WHEN", help="Accepted up to then.  [default: all]")
@option(
    "--ask",
    is_flag=True,
    help="Ask the server whether it still holds what hasn't ended: live, else lost.",
)
@option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to show it.",
)
@master_option
@memory_option
def audit(
    session: Session, path: str | None, storage: tuple[str, ...], queues: str | None, since: str | None,
    until: str | None, ask: bool, form: str, master: str | None, memory: str | None,
) -> int:  # fmt: skip
    """Count, from the lake alone, what was accepted in a time range and what became of it.

    Needs events of level all in the range. What hasn't ended is 'open': the server may still hold it; --ask
    tells. Exit code 1: something is lost; 2: the events don't tell all, and why.
    """
    lake = opened(path, storage)
    names = [name for name, _ in parse_queues(queues)] if queues else []
    start, end = _range(since, until)
    results = _audited(lake, names, start, end, _lives(session) if ask else None, (master, memory))
    shown = Session(session.url, session.namespace, session.as_json or form == "json")
    for result in results:
        show(shown, result, {"open: the server may still hold them": result.open})
        for note in result.notes:
            click.echo(f"jobq: {result.queue}: {note}", err=True)
    if not results:
        session.note("the lake has no queue with enqueues on record; jobq events level all")
        return exits.USAGE
    if any(result.lost for result in results):
        return exits.NO
    return exits.USAGE if any(result.notes for result in results) else exits.OK


def _audited(
    lake: Lake, names: list[str], since: datetime | None, until: datetime | None, lives: Lives | None,
    spark_options: tuple[str | None, str | None],
) -> list[LakeAudited]:  # fmt: skip
    from jobq.pipeline.commits import losses
    from jobq.pipeline.lake import quarantine
    from jobq.pipeline.lake.reading import read
    from jobq.pipeline.lake_audit import LakeAudit
    from jobq.pipeline.sessions import session as spark_session

    master, memory = spark_options
    spark = spark_session("jobq lake audit", master=master, memory=memory)
    try:
        events = read(spark, lake, "events")
        missed = losses(lake.table("events"))
        audit = LakeAudit(spark, events)
        return audit.run(_ms(since), _ms(until), names, lives, missed, quarantine.entries(lake))
    finally:
        spark.stop()


def _range(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    from jobq.pipeline.report.asked import moment

    now = datetime.now(UTC)
    return (moment(since, now) if since else None, moment(until, now) if until else None)


def _lives(session: Session) -> Callable[[str, str], bool]:
    from jobq.queue.audited import LIVE
    from jobq.queue.fsck import unplaced

    def lives(name: str, mid: str) -> bool:
        queue = session.queue(name)
        return queue.status(mid).word in LIVE and not unplaced(queue, [mid])

    return lives


def _ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)
