"""`jobq lake ingest`: events, topics and the dead into the lake, once or again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobq.cli import exits
from jobq.cli.lake_place import lake_options, opened
from jobq.cli.options import DURATION, command, option, queues_option
from jobq.cli.session import Session
from jobq.cli.spark import master_option
from jobq.config import parse_queues
from jobq.errors import ConfigError

if TYPE_CHECKING:
    from jobq.pipeline.lake.ingest import Batch, Ingest
    from jobq.pipeline.lake.place import Lake
    from jobq.pipeline.lake.service import Round


@command(
    "ingest",
    examples="""
        jobq lake ingest --lake ./lake --once
        jobq lake ingest --lake ./lake --every 30s --trim
        jobq lake ingest --lake s3://history/jobq --once --storage-option AWS_REGION=eu-central-1
        jobq lake ingest --once --spark always --master spark://host:7077
    """,
)
@lake_options
@option("--once", is_flag=True, help="Read what there is, then end.  [default, without --every]")
@option("--every", type=DURATION, metavar="DURATION", help="Stay, and read so often until TERM.")
@option(
    "--max-rows", type=click.IntRange(1), default=1_000_000, show_default=True,
    help="About so many entries in one batch, that is one commit.",
)  # fmt: skip
@option("--trim", is_flag=True, help="Drop events from their streams once they are committed.")
@option(
    "--spark", "when", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
    help="Whether executors read: auto starts Spark for a backlog of a million entries.",
)  # fmt: skip
@master_option
@option(
    "--rollup", type=DURATION, default="1h", show_default=True,
    help="Bring job_runs and rollup_hourly up to date at most so often; 0: only compact does.",
)  # fmt: skip
@option(
    "--wait", type=DURATION, default="0s", show_default=True,
    help="Wait so long for the round of another ingest, or for upkeep, to end.",
)  # fmt: skip
@option(
    "--adopt",
    is_flag=True,
    help="Take lost offsets from the rows; see docs/guides/spark/ingest.md.",
)
@queues_option
def ingest(
    session: Session, path: str | None, storage: tuple[str, ...], once: bool, every: float | None,
    queues: str | None, **given: Any,
) -> int:  # fmt: skip
    """Take what is new in event streams, topics and among the dead; each entry gets there once.

    All queues there are, also those that appear later; with --queues those alone, and no topics. TERM
    ends it between two batches, and nothing is lost by any other end. Exit code 1: entries were dropped
    from their stream before they were read; how many of which queue is told, and kept in the lake.
    """
    if once and every is not None:
        raise ConfigError("--once and --every both say how often; give one")
    if every is not None and every < 0.1:
        raise ConfigError(f"--every {every:g}s is too often; take 100ms or more")
    return _ingest(session, opened(path, storage, create=True), every, queues, **given)


def _ingest(
    session: Session, lake: Lake, every: float | None, queues: str | None, max_rows: int, trim: bool,
    when: Any, master: str | None, rollup: float, wait: float, adopt: bool,
) -> int:  # fmt: skip
    from jobq.pipeline.lake import adoption, lock, rollup_due, service
    from jobq.pipeline.lake.ingest import Ingest
    from jobq.pipeline.lake.runner import Runner

    names = [name for name, _ in parse_queues(queues)] if queues else None
    runner = Runner(when, master=master)
    work = Ingest(
        lake,
        session.client,
        runner,
        names=names,
        max_rows=max_rows,
        trim=trim,
        problem=session.problem,
    )
    lost = False
    with service.ended_by_signals() as ending:
        try:
            if adopt:
                with lock.held(lake, wait_s=wait, enough=ending):
                    adoption.adopt(lake, session.client)
            due = rollup_due.Due(lake, rollup, session.note)
            for found in service.rounds(
                work, every, lambda batch: _progress(session, batch), ending,
                lambda found: due.refresh(runner, ending), wait,
            ):  # fmt: skip
                lost = lost or bool(found.lost)
                _say(session, work, found, quiet=every is not None)
        finally:
            runner.close()
    return exits.NO if lost else exits.OK


def _progress(session: Session, batch: Batch) -> None:
    """What can't wait for the end of the round."""
    for queue, number in batch.lost.items():
        session.note(
            f"{batch.table} of {queue}: {number:,} entries were dropped before they were read; "
            "ingest more often, or keep more"
        )
    for queue in batch.remade:
        session.note(f"{batch.table} of {queue}: deleted or made anew since; read from its begin")
    if batch.bad:
        session.note(
            f"{batch.bad:,} entries are no event records; they are in the table quarantine"
        )
    if batch.more:
        session.note(f"{batch.table}: {batch.rows:,} rows committed, and there are more")


def _say(session: Session, work: Ingest, found: Round, *, quiet: bool) -> None:
    if quiet and found.is_empty:
        return
    record = {"lake": work.lake.store.uri, **found._asdict(), "lost": dict(found.lost)}
    told = f"{found.events:,} events, {found.topics:,} topic messages, {found.dead:,} dead"
    session.say(
        record, f"{told} in {found.batches:,} batches" if not found.is_empty else "nothing new"
    )
