"""`jobq lake stats, check, compact, vacuum, expire, mark`: look after what the ingest wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobq.cli import exits
from jobq.cli.lake_place import lake_options, opened
from jobq.cli.options import DURATION, command, option, yes_option
from jobq.cli.session import Session
from jobq.cli.spark import master_option
from jobq.errors import PipelineError

if TYPE_CHECKING:
    from jobq.pipeline.lake.maintain import Compacted
    from jobq.pipeline.lake.place import Lake

wait_option = option(
    "--wait", type=DURATION, default="1m", show_default=True,
    help="Wait so long for the round of an ingest, or for other upkeep, to end.",
)  # fmt: skip


@command("stats", examples="jobq lake stats --lake ./lake\njobq lake stats --backlog --json")
@lake_options
@option("--backlog", is_flag=True, help="Ask the server, too, how much is still to be read.")
def stats(session: Session, path: str | None, storage: tuple[str, ...], backlog: bool) -> None:
    """Show rows, bytes and days of every table; with --backlog how far it is behind each queue."""
    from jobq.pipeline.lake import inspection

    lake = opened(path, storage)
    rows = [one._asdict() for one in inspection.stats(lake)]
    if not session.as_json:
        for row in rows:
            row["lost"] = ", ".join(f"{name}: {n:,}" for name, n in row["lost"].items())
    if not rows:
        session.note("an empty lake; jobq lake ingest fills it")
    session.say_all(rows, {name.replace("_", " "): name for name in inspection.Stats._fields})
    if backlog:
        behind = [
            one._asdict() for one in inspection.backlog(lake, session.client, session.tolerating)
        ]
        session.say_all(behind, {name: name for name in inspection.Backlog._fields})


@command("check", examples="jobq lake check --lake ./lake\njobq lake check --json")
@lake_options
def check(session: Session, path: str | None, storage: tuple[str, ...]) -> int:
    """Read every file: rows as committed, no row twice, offsets only forward; and tell what was lost.

    Exit code 1: something is wrong. What was dropped before it was read is told, and no fault of the lake.
    """
    from jobq.pipeline.lake import inspection

    bad = False
    for finding in inspection.check(opened(path, storage)):
        bad = bad or finding.level == "fail"
        session.say(finding._asdict(), f"{finding.level:4}  {finding.table}: {finding.text}")
    return exits.NO if bad else exits.OK


@command("compact", examples="jobq lake compact --lake ./lake\njobq lake compact --rollups --json")
@lake_options
@option(
    "--target-mb", type=click.IntRange(1), default=128, show_default=True, help="Size of a file."
)
@option(
    "--rollups/--no-rollups", default=True, help="Bring job_runs and rollup_hourly up to date, too."
)
@master_option
@wait_option
def compact(
    session: Session, path: str | None, storage: tuple[str, ...], target_mb: int, rollups: bool,
    master: str | None, wait: float,
) -> None:  # fmt: skip
    """Sort and join each day's files, so that reading is quick and takes less room.

    Once a day will do. Readers go on meanwhile, and so does an ingest: in a folder between two days, so it
    waits while one is compacted, or while the rollups are made. Vacuum deletes what was replaced.
    """
    from jobq.pipeline.lake import lock, maintain, service

    lake = opened(path, storage)
    with service.ended_by_signals() as ending:
        turns = lock.Turns(lake, wait_s=wait, enough=ending)
        try:
            done = maintain.compact(
                lake, target=target_mb << 20, told=lambda one: _told(session, one), enough=ending, alone=turns
            )  # fmt: skip
            if not done:
                session.note("every day is compact")
            if rollups and not ending():
                with turns():
                    _roll_up(session, lake, master)
        except lock.LakeBusyError:
            if not ending():
                raise


def _roll_up(session: Session, lake: Lake, master: str | None) -> None:
    from jobq.pipeline.lake import rollup
    from jobq.pipeline.lake.runner import Runner
    from jobq.pipeline.lake.tables import JOB_RUNS
    from jobq.pipeline.sessions import failures, words_of

    if not (rollup.stale(lake) or rollup.stale(lake, JOB_RUNS)):
        return
    runner = Runner(master=master)
    try:
        made = rollup.refresh(lake, runner.spark())
    except failures() as error:
        raise PipelineError(
            f"job_runs and rollup_hourly stay as they were, the days are compact: {words_of(error)}"
        ) from error
    finally:
        runner.close()
    for name, rows in made.items():
        session.say({"table": name, "rows": rows}, f"{name}: {rows:,} rows made anew")


def _told(session: Session, one: Compacted) -> None:
    session.say(
        one._asdict(),
        f"{one.table} {one.dt}: {one.rows:,} rows, {one.files_before:,} files to {one.files:,}, "
        f"{one.bytes_before:,} bytes to {one.bytes:,}",
    )


@command("vacuum", examples="jobq lake vacuum --lake ./lake\njobq lake vacuum --older 1d")
@lake_options
@option("--older", type=DURATION, default="7d", show_default=True, help="Not needed for so long.")
@wait_option
def vacuum(
    session: Session, path: str | None, storage: tuple[str, ...], older: float, wait: float
) -> None:
    """Delete files that were replaced, expired or never committed. Who reads older versions can't any more."""
    from jobq.pipeline.lake import lock, maintain

    lake = opened(path, storage)
    with lock.held(lake, wait_s=wait):
        for table, files in maintain.vacuum(lake, older).items():
            session.say({"table": table, "files": files}, f"{table}: {files:,} files deleted")


@command("expire", examples="jobq lake expire --lake ./lake --older 90d --yes")
@lake_options
@option("--older", type=DURATION, default="90d", show_default=True, help="Days older than that.")
@option(
    "--table", "tables", multiple=True, default=("events",), show_default=True,
    type=click.Choice(["events", "topics", "dead", "quarantine"]), help="Of this table; repeat for more.",
)  # fmt: skip
@yes_option
@wait_option
def expire(
    session: Session, path: str | None, storage: tuple[str, ...], older: float, tables: tuple[str, ...],
    yes: bool, wait: float,
) -> None:  # fmt: skip
    """Drop whole days of events; job_runs and rollup_hourly stay. The files go with the next vacuum."""
    from jobq.pipeline.lake import lock, maintain

    lake = opened(path, storage)
    session.confirmed(
        f"Drop what is older than {older / 86400:g} days from {', '.join(tables)}?", yes
    )
    with lock.held(lake, wait_s=wait):
        for one in maintain.expire(lake, older, tables):
            text = f"{one.table}: {one.rows:,} rows of {one.days:,} days before {one.before}"
            session.say(one._asdict(), text)


@command("mark", examples="jobq lake mark v2.4.0\njobq lake mark v2.4.0 --at 2026-11-20T14:05Z")
@click.argument("name")
@lake_options
@option(
    "--at", metavar="TIME", help="When, in ISO 8601, UTC unless it says otherwise.  [default: now]"
)
def mark(
    session: Session, name: str, path: str | None, storage: tuple[str, ...], at: str | None
) -> None:
    """Note a deploy, or whatever else reports shall compare before and after."""
    from jobq.pipeline.lake import marks
    from jobq.pipeline.options import parsed_moment

    done = marks.mark(opened(path, storage), name, parsed_moment("--at ", at) if at else None)
    session.say({"name": name, "at": done.isoformat()}, f"{name} at {done.isoformat()}")
