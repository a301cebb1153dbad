"""`jobq lake`: history that outlives the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from jobq.cli import exits, output
from jobq.cli.arguments import names_of, pairs_of
from jobq.cli.check import show_audit
from jobq.cli.options import Function, group, option, queues_option, yes_option
from jobq.cli.output import Listing
from jobq.cli.session import Session, command, opens
from jobq.cli.spark import master_option, memory_option
from jobq.client.names import base_of
from jobq.config import parse_time
from jobq.durations import counted
from jobq.errors import ConfigError, PipelineError
from jobq.events import in_utc
from jobq.queue.audit import LIVE
from jobq.queue.fsck import unplaced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobq.pipeline.engine import Engine
    from jobq.pipeline.lake.audit import LakeAudited, Lives
    from jobq.pipeline.lake.erase import Selection
    from jobq.pipeline.lake.erasure import Erasure, ErasureRequest, LiveErased
    from jobq.pipeline.lake.ingest import IngestBatch, IngestRound
    from jobq.pipeline.lake.lake import Lake
    from jobq.pipeline.lake.reading import ArchivedRows, ArchiveSummary, TimeSpan
    from jobq.pipeline.lake.upkeep import Compacted
    from jobq.pipeline.replay import Replayed, ReplayTarget

storage_option = option(
    "--storage-option KEY=VALUE",
    "storage",
    "Access option of a bucket, such as AWS_ENDPOINT_URL=…; repeatable. AWS_… variables are also read.",
    multiple=True,
)


def lake_option(needed: str = "required") -> Callable[[Function], Function]:
    """Declare the option --lake. The text `needed` in its help says when --lake is required."""
    text = f"The lake: a folder, or s3://bucket/folder.  [{needed}]"
    return option("--lake PATH", "path", text, shared=("JOBQ_LAKE",))


def opened(session: Session, path: str | None, storage: Sequence[str]) -> Lake:
    """Open the lake given by --lake and --storage-option."""
    from jobq.pipeline.lake.lake import Lake

    return Lake.open(path, pairs_of("--storage-option", storage))


source_option = option(
    "--source NAME",
    "Name of the server if several share a lake, which stores queue mails as {NAME}mails.",
    default="",
)
engine_option = option(
    "--engine auto|local|spark",
    "Engine: this process (local) or Spark; auto starts Spark from a million rows.",
    default="auto",
)
on_lake = opens("lake", opened, lake_option(), storage_option)


@group(
    "lake",
    "ingest --lake ./lake --once",
    "ingest --lake s3://history/jobq --every 30s --trim",
    "stats --lake ./lake",
    "compact --lake ./lake",
)
def lake() -> None:
    """Keep events, topics and dead messages in a lake.

    A lake is a folder or an S3 bucket, and outlives the server.
    """


@command(
    "ingest",
    "--lake ./lake --once",
    "--lake ./lake --every 30s --trim",
    "--lake s3://history/jobq --once --storage-option AWS_REGION=eu-central-1",
    "--once --engine spark --master spark://host:7077",
    group=lake,
    server="awaits",
)
@lake_option()
@storage_option
@option("--once", "Read the available entries, then exit.  [default, without --every]")
@option("--every DURATION", "Read at this interval until TERM.")
@option(
    "--max-rows",
    "Approximate number of entries per commit.",
    type=click.IntRange(1),
    default=1_000_000,
)
@option("--trim", "Delete committed events from their streams.")
@option("--audit-log", "audit_log", "Also copy the audit log.")
@engine_option
@master_option
@option(
    "--rollup DURATION",
    "Minimum interval between updates of job_runs and rollup_hourly; 0: only compact updates them.",
    default="1h",
)
@option("--wait DURATION", "Maximum wait for an ingest or maintenance.", default="0s")
@option("--adopt", "Rebuild lost offsets from the rows; see docs/data/ingest.md.")
@source_option
@queues_option
def ingest(
    session: Session, path: str | None, storage: tuple[str, ...], once: bool, every: float | None,
    queues: str | None, **given: Any,
) -> bool:  # fmt: skip
    """Copy new events, topic messages and dead messages into the lake, each exactly once.

    The command reads all topics and queues, including new topics and queues. With --queues, it reads only the given
    queues and no topics. TERM ends the command between two batches. Exit code 1: a stream dropped entries before they
    were read. Without --every, exit code 1 can also mean that more than half of a stream was unread, so the stream may
    drop entries before the next run.
    """
    if once and every is not None:
        raise ConfigError("use either --once or --every, not both")
    if every is not None and every < 0.1:
        raise ConfigError(f"--every {every:g}s is too short; use 100ms or more")
    from jobq.pipeline.engine import Engine
    from jobq.pipeline.lake import commit
    from jobq.pipeline.lake.ingest import Ingest, IngestOptions, rounds, stopped_by_signals
    from jobq.pipeline.lake.lake import Lake, locked
    from jobq.pipeline.lake.rollup import RollupTimer

    lake = Lake.create(path, pairs_of("--storage-option", storage))
    engine = Engine(given["engine"], master=given["master"])
    options = IngestOptions(
        names=names_of(queues) or None, max_rows=given["max_rows"], trim=given["trim"],
        source=given["source"], audit_log=given["audit_log"],
    )  # fmt: skip
    work = Ingest(lake, session.client, engine, options, problem=session.problem)
    lost = near = False
    with stopped_by_signals() as ending:
        try:
            if given["adopt"]:
                with locked(lake, wait_s=given["wait"], enough=ending):
                    commit.adopt(lake, session.client, given["source"])
            due = RollupTimer(lake, given["rollup"], session.note)
            for result in rounds(
                work, every, lambda batch: _note_batch(session, batch), ending,
                lambda result: due.refresh(engine, ending), given["wait"],
            ):  # fmt: skip
                lost, near = lost or bool(result.lost), near or bool(result.overruns)
                if every is None or not result.is_empty:
                    _say_round(session, lake, result, engine)
        finally:
            engine.close()
    return not (lost or (near and every is None))


def _note_batch(session: Session, batch: IngestBatch) -> None:
    for queue, number in batch.lost.items():
        session.note(
            f"{batch.table} of {queue}: {number:,} entries were dropped before they were read; "
            "ingest more often, or keep more"
        )
    for queue, overrun in batch.overruns.items():
        session.note(
            f"queue {queue} will drop unread events in {overrun.seconds:,.0f} s, at the rate of the last "
            f"{overrun.lag_s:,.0f} s: {overrun.unread:,} events are unread, and it keeps {overrun.kept:,}; "
            "ingest more often, or keep more ('jobq events maxlen') and --trim"
        )
    for queue in batch.remade:
        session.note(f"{batch.table} of {queue}: deleted or recreated since; read from its start")
    if batch.bad:
        session.note(
            f"{counted(batch.bad, 'entry')} added to the table quarantine, because they are not event records"
        )
    if batch.more:
        session.note(f"{batch.table}: {counted(batch.rows, 'row')} committed; more follow")


def _say_round(session: Session, lake: Lake, round_: IngestRound, engine: Engine) -> None:
    from jobq.pipeline.engine import WHERE

    where = WHERE[round_.engine]
    if len(set(round_.engines.values())) > 1:
        where = ", ".join(f"{part} {WHERE[used]}" for part, used in round_.engines.items())
    text = (
        f"{counted(round_.events, 'event')}, {counted(round_.topics, 'topic message')}, {round_.dead:,} dead in "
        f"{counted(round_.batches, 'batch')}, {where}{engine.rule}"
    )
    if round_.audit:
        text += f"; {counted(round_.audit, 'entry')} of the audit log"
    overruns = {queue: round(overrun.seconds, 1) for queue, overrun in round_.overruns.items()}
    record = {
        "lake": lake.store.uri,
        **round_._asdict(),
        "lost": dict(round_.lost),
        "overruns": overruns,
        "engines": dict(round_.engines),
    }
    session.say(record, "nothing new" if round_.is_empty else text)


wait_option = option("--wait DURATION", "Maximum wait for an ingest or maintenance.", default="1m")


@command("stats", "--lake ./lake", "--backlog --json", group=lake)
@on_lake
@option("--backlog", "Also show how much is still unread.")
@source_option
def stats(session: Session, lake: Lake, backlog: bool, source: str) -> None:
    """Show the rows, bytes and days of every table. With --backlog, also show how much of each queue is unread."""
    from jobq.pipeline.lake import inspection

    rows = [table._asdict() for table in inspection.stats(lake)]
    if not session.as_json:
        for row in rows:
            row["lost"] = ", ".join(f"{name}: {n:,}" for name, n in row["lost"].items())
    columns = [f"{name.replace('_', ' ')}:{name}" for name in inspection.TableStats._fields]
    drops = [column.partition(":")[0] for column in columns[:0:-1]]
    empty = "the lake is empty; run 'jobq lake ingest'"
    session.say_all(rows, Listing(columns, drops, empty))
    if backlog:
        behind = [
            queue._asdict()
            for queue in inspection.backlog(lake, session.client, session.tolerating, source)
        ]
        empty = "no backlog: there are no events or topics"
        session.say_all(behind, Listing(inspection.QueueBacklog._fields, empty=empty))


@command("check", "--lake ./lake", "--json", group=lake)
@on_lake
@engine_option
@master_option
def check(session: Session, lake: Lake, engine: Any, master: str | None) -> bool:
    """Read every file and check that its rows match the commit, are unique, and have increasing offsets.

    Entries that a stream dropped before they were read are printed, but don't fail the check. Exit code 1: a check
    failed.
    """
    from jobq.pipeline.engine import Engine
    from jobq.pipeline.lake import inspection

    runner = Engine(engine, master=master)
    try:
        with output.waiting("reading every file of the lake", quiet=session.as_json):
            findings = list(inspection.check(lake, runner))
    finally:
        runner.close()
    for finding in findings:
        session.say(finding._asdict(), f"{finding.level:4}  {finding.table}: {finding.text}")
    return all(finding.level != "fail" for finding in findings)


@command("compact", "--lake ./lake", "--rollups --json", group=lake)
@on_lake
@option("--target-mb", "Target size of files.", type=click.IntRange(1), default=128)
@option(
    "--rollups/--no-rollups", "Also update job_runs and rollup_hourly with Spark.", default=True
)
@engine_option
@master_option
@wait_option
def compact(
    session: Session, lake: Lake, target_mb: int, rollups: bool, wait: float, **given: Any
) -> None:
    """Sort and join each day's files, so that reading is fast and the lake is smaller.

    Run this command once a day. The lake stays readable. An ingest into a folder waits while this command merges a
    day's files or builds the rollups. 'jobq lake vacuum' deletes the replaced files.
    """
    from jobq.pipeline.engine import Engine
    from jobq.pipeline.lake import upkeep
    from jobq.pipeline.lake.ingest import stopped_by_signals
    from jobq.pipeline.lake.lake import LakeBusyError, RepeatedLock

    engine = Engine(given["engine"], master=given["master"])
    with stopped_by_signals() as ending:
        turns = RepeatedLock(lake, wait_s=wait, enough=ending)
        try:
            done = upkeep.compact(
                lake, engine=engine, target=target_mb << 20, enough=ending, alone=turns,
                on_compacted=lambda done: _say_compacted(session, done, engine),
            )  # fmt: skip
            if not done:
                session.note("all days are already compact")
            if rollups and not ending():
                with turns():
                    _roll_up(session, lake, engine)
        except LakeBusyError:
            if not ending():
                raise
        finally:
            engine.close()


def _roll_up(session: Session, lake: Lake, engine: Engine) -> None:
    from jobq.pipeline.engine import WHERE
    from jobq.pipeline.lake import rollup
    from jobq.pipeline.lake.tables import JOB_RUNS
    from jobq.pipeline.sessions import failures, words_of

    if not (rollup.stale(lake) or rollup.stale(lake, JOB_RUNS)):
        return
    try:
        made = rollup.refresh(lake, engine.spark())
    except failures() as error:
        raise PipelineError(
            f"the days were compacted, but job_runs and rollup_hourly were not updated: {words_of(error)}"
        ) from error
    for name, rows in made.items():
        session.say(
            {"table": name, "rows": rows, "engine": "spark"},
            f"{name}: {counted(rows, 'row')} written, {WHERE['spark']}",
        )


def _say_compacted(session: Session, compacted: Compacted, engine: Engine) -> None:
    from jobq.pipeline.engine import WHERE

    session.say(
        compacted._asdict(),
        f"{compacted.table} {compacted.dt}: {counted(compacted.rows, 'row')}, "
        f"{counted(compacted.files_before, 'file')} to "
        f"{compacted.files:,}, {counted(compacted.bytes_before, 'byte')} to {compacted.bytes:,}, "
        f"{WHERE[compacted.engine]}{engine.rule}",
    )


@command("vacuum", "--lake ./lake", "--older-than 1d", group=lake)
@on_lake
@option("--older-than DURATION", "Delete files unneeded for this long.", default="7d")
@wait_option
def vacuum(session: Session, lake: Lake, older_than: float, wait: float) -> None:
    """Delete replaced, expired and uncommitted files. Older versions of the tables can no longer be read."""
    from jobq.pipeline.engine import WHERE
    from jobq.pipeline.lake import upkeep
    from jobq.pipeline.lake.lake import locked

    with locked(lake, wait_s=wait):
        for table, files in upkeep.vacuum(lake, older_than).items():
            session.say(
                {"table": table, "files": files, "engine": "local"},
                f"{table}: {counted(files, 'file')} deleted, {WHERE['local']}",
            )


@command("expire", "--lake ./lake --older-than 90d --yes", group=lake)
@on_lake
@option("--older-than DURATION", "Drop days older than this.", default="90d")
@option(
    "--table events|topics|dead|quarantine|audit",
    "tables",
    "Table; repeatable.",
    multiple=True,
    default=("events",),
)
@option(
    "--rollups/--no-rollups",
    "First add uncounted events to job_runs and rollup_hourly, with Spark.",
    default=True,
)
@master_option
@yes_option
@wait_option
def expire(session: Session, lake: Lake, tables: tuple[str, ...], yes: bool, **given: Any) -> None:
    """Drop whole days of events; job_runs and rollup_hourly are kept. The next vacuum deletes the files."""
    from jobq.pipeline.engine import WHERE, Engine
    from jobq.pipeline.lake import upkeep
    from jobq.pipeline.lake.lake import locked

    session.confirmed(
        f"Drop rows older than {given['older_than'] / 86400:g} days from {', '.join(tables)}?",
        yes,
    )
    engine = Engine("spark", master=given["master"])
    try:
        with locked(lake, wait_s=given["wait"]):
            done = upkeep.expire(
                lake, given["older_than"], tables,
                first=lambda before: _count_first(session, lake, engine, before, given["rollups"]),
            )  # fmt: skip
    finally:
        engine.close()
    for drop in done:
        text = f"{drop.table}: {counted(drop.rows, 'row')} of {counted(drop.days, 'day')} before {drop.before}"
        session.say({**drop._asdict(), "engine": "local"}, f"{text}, dropped {WHERE['local']}")


def _count_first(session: Session, lake: Lake, engine: Engine, before: str, rollups: bool) -> None:
    """Add the events to the rollups before the command drops the events. Raise PipelineError if that fails.

    If `rollups` is false, print how many of the events may be missing from the rollups.
    """
    from jobq.pipeline.engine import WHERE
    from jobq.pipeline.lake import rollup
    from jobq.pipeline.sessions import words_of

    days = rollup.uncounted(lake, before)
    if not days:
        return
    some = f"{counted(sum(days.values()), 'event')} of {counted(len(days), 'day')} before {before}"
    if not rollups:
        session.note(f"{some} may now be missing from job_runs and rollup_hourly")
        return
    try:
        rollup.refresh(lake, engine.spark())
    except Exception as error:  # Spark, its JVM and storage raise many classes
        raise PipelineError(
            f"{some} aren't in job_runs and rollup_hourly yet, so nothing was dropped: {words_of(error)}; "
            "run `jobq lake compact` and try again, or drop them uncounted with --no-rollups"
        ) from error
    session.note(f"{some} were counted in job_runs and rollup_hourly first, {WHERE['spark']}")


@command(
    "erase",
    "--lake ./lake --mid 01JD2Y6YV0 --mid 01JD2Y7A3K --yes",
    "--arg customer=7 --dry-run",
    "--where \"key = 'acme' and job = 'shop.mail'\" --yes",
    "--arg customer=7 --live --yes",
    "--resume",
    group=lake,
    operation="lake-erase",
)
@on_lake
@option("--mid MID", "mids", "Erase the message with this mid; repeatable.", multiple=True)
@option("--where CONDITION", "Erase rows that match, such as key = 'acme' and job = 'shop.mail'.")
@option(
    "--arg NAME=VALUE",
    "argument",
    "Erase calls with this argument, or with this key in an argument.",
)
@option("--queue NAME", "Only in this queue or topic.  [default: all]")
@option("--live", "Ingest first, and also erase the messages on the server.")
@option("--resume", "Only finish an interrupted erasure.")
@option("--dry-run", "Show how many rows would be erased, without erasing them.")
@source_option
@yes_option
@option(
    "--engine auto|local|spark",
    "Engine for rewriting files: auto starts Spark from a million rows.",
    default="auto",
)
@master_option
@wait_option
def erase(session: Session, lake: Lake, live: bool, **given: Any) -> bool:
    """Erase messages from all tables and files of the lake.

    The lake keeps a salted hash of each erased message's id, so that an ingest doesn't add the message again. The next
    erasure, or --resume, continues an interrupted erasure. Earlier versions of the tables can no longer be read. Exit
    code 1: there is nothing to erase.
    """
    from jobq.pipeline.engine import WHERE, Engine
    from jobq.pipeline.lake import erase as erasing
    from jobq.pipeline.lake.erasure import Erasure, ErasureRequest
    from jobq.pipeline.lake.ingest import Ingest, IngestOptions, stopped_by_signals
    from jobq.pipeline.lake.lake import RepeatedLock

    how = [name for name in ("mids", "where", "argument", "resume") if given[name]]
    if len(how) != 1 or (given["resume"] and live):
        raise ConfigError(
            "choose rows with one of --mid, --where, --arg and --resume; --live works only with the first three"
        )
    request = ErasureRequest.parsed(
        given["mids"], given["where"], given["argument"], given["queue"]
    )
    engine = Engine(given["engine"], master=given["master"])
    options = IngestOptions(source=given["source"])
    with stopped_by_signals() as ending, closing(engine):
        turns = RepeatedLock(lake, wait_s=given["wait"], enough=ending)
        work = Erasure(
            lake, engine, turns, ending,
            Ingest(lake, session.client, engine, options, problem=session.problem) if live else None,
            lambda batch: _note_batch(session, batch),
        )  # fmt: skip
        if not given["resume"]:
            has_rows = _begin_erasure(session, work, request, given["dry_run"], given["yes"])
            if not has_rows or given["dry_run"]:
                return has_rows
        elif not erasing.pending(lake):
            session.note("no interrupted erasure; searching for erased rows anyway")
        done = erasing.finish(lake, engine, alone=turns, enough=ending)
        used = engine.used
    if done is None:
        raise PipelineError("the erasure is unfinished; 'jobq lake erase --resume' continues it")
    where = f"{WHERE[used]}{engine.rule}"
    text = ", ".join(f"{number:,} of {name}" for name, number in done.items() if number)
    session.say({"erased": done, "engine": used}, f"erased {where}: {text or 'no rows'}")
    return True


def _begin_erasure(
    session: Session, work: Erasure, request: ErasureRequest, dry_run: bool, yes: bool
) -> bool:
    """Select the messages, ask for confirmation, and start the erasure; with --live, also erase the messages on the
    server. Return whether there was anything to erase.
    """
    from jobq.pipeline.lake.tables import parted

    chosen = work.select(request, ingest=not dry_run)
    _say_selected(session, chosen)
    if dry_run or not chosen.names:
        return bool(chosen.names)
    place = "the lake and the server" if work.server else "the lake"
    session.confirmed(f"Permanently erase {counted(chosen.rows.total(), 'row')} from {place}?", yes)
    work.begin(request, chosen)
    if work.server:
        queue = request.sought.queue and parted(request.sought.queue)[1]
        with session.operation(queue, request.basis.replace(" ", ":")):
            done = work.erase_live(work.server, chosen)
        _say_live(session, done)
    return True


def _say_selected(session: Session, chosen: Selection) -> None:
    rows = ", ".join(f"{number:,} of {name}" for name, number in chosen.rows.items() if number)
    record = {
        "selected": len(chosen.names),
        "rows": dict(chosen.rows),
        "unsearched": dict(chosen.unsearched),
    }
    session.say(record, f"{len(chosen.names):,} selected: rows: {rows or 'none'}")
    for name, number in chosen.unsearched.items():
        session.note(
            f"{name}: {number:,} contents can't be searched, because they are encrypted, compressed or no "
            "calls; erase them with --mid or --where"
        )


#: Messages and entries that --live doesn't delete, with the remedy.
_LEFT = {
    "topics": "messages of topics stay in their logs until retention or 'jobq topic retention --before' drops them",
    "events": "new entries of event streams arrived; run the command again",
    "done": "finished messages are removed by workers within seconds",
}


def _say_live(session: Session, done: LiveErased) -> None:
    text = ", ".join(f"{name}: {number:,}" for name, number in done.erased.items() if number)
    record = {"live": dict(done.erased), "left": dict(+done.left)}
    session.say(record, f"erased on the server: {text or 'nothing'}")
    for name, number in (+done.left).items():
        session.note(f"{_LEFT[name]} ({number:,} left)")


@command("mark", "v2.4.0", "v2.4.0 --at 2026-11-20T14:05Z", group=lake)
@click.argument("name")
@on_lake
@option("--at TIME", "Time in ISO 8601, UTC if it has no zone.  [default: now]")
def mark(session: Session, lake: Lake, name: str, at: str | None) -> None:
    """Record the time of a deploy or another event, so that reports can compare before and after."""
    from jobq.pipeline.lake.upkeep import mark

    done = mark(lake, name, parse_time(at, zone=UTC) if at else None)
    session.say({"name": name, "at": done.isoformat()}, f"{name} at {done.isoformat()}")


NOTE_EVERY_S = 5.0
#: How long a queue rejects the id of a replayed message after it is done. Dead messages keep their original ids,
#: which others may enqueue, so these are rejected only while a server remembers a call.
DEDUPE_S, DEDUPE_DEAD_S = 86_400.0, 600.0
#: Maximum number of rejected mids to name.
NAMED = 5


@command("ddl", "--lake s3://history/jobq --for trino", "--for duckdb | duckdb", group=lake)
@on_lake
@option(
    "--for spark|databricks|duckdb|trino|snowflake",
    "engine",
    "Database to print SQL for.",
    required=True,
)
@option("--schema NAME", "Schema to create the tables in.", default="jobq")
def ddl(session: Session, lake: Lake, engine: Any, schema: str) -> None:
    """Print the SQL that registers the tables with another engine.

    The table `events` stores some times as differences from finished_at. Use the view `events_view`, which computes
    these times.
    """
    from jobq.pipeline.lake.ddl import statements

    for text in statements(lake, engine, schema):
        session.say({"sql": text}, f"{text};")


@command(
    "replay",
    "--topic orders --since 2026-11-01T00:00Z --until 2026-11-08T00:00Z --to-topic orders-again",
    "--topic orders --since 7d --to-queue low --job app.jobs.bill --as json",
    "--topic orders --since 7d --to-queue low --dry-run",
    "--dead --queue low --since 2d",
    group=lake,
    operation="lake-replay",
)
@on_lake
@option("--topic NAME", "Replay messages of this topic.")
@option("--dead", "Replay dead messages of --queue.")
@option("--queue NAME", "With --dead: queue of the messages.")
@option("--since WHEN", "Earliest append or dead-letter time: 7d (ago) or a time.", required=True)
@option("--until WHEN", "End of the time range.  [default: now]")
@option("--to-topic NAME", "Append to this topic, in order.")
@option("--to-queue NAME", "Enqueue to this queue.")
@option("--job NAME", "With --to-queue: call this job.  [default: enqueue contents as they are]")
@option(
    "--as text|json|base64",
    "shape",
    "With --job: how to convert the content to the job's argument.",
    default="text",
)
@option("--id NAME", "name", "Name of this replay; a new name sends messages again.", default="")
@option("--plain", "With --to-topic: don't add headers about the origin of messages.")
@option(
    "--rate N",
    "Maximum number of messages per second.",
    type=click.FloatRange(min=0, min_open=True),
)
@option(
    "--dedupe-for DURATION",
    "To queues: reject a message again for this long after it is done.  [default: 1d, with --dead 10m]",
)
@option("--remember DURATION", "How long to remember sent messages.", default="30d")
@option("--dry-run", "Show the matching messages without sending them.")
@option(
    "--engine auto|local|spark",
    "Engine for reading: auto starts Spark for days over 256 MB.",
    default="auto",
)
@master_option
def replay(session: Session, lake: Lake, topic: str | None, dead: bool, **given: Any) -> bool:
    """Resend topic messages or dead messages that the lake stores. Dead messages are enqueued as new messages.

    If the command was killed, run it again: it continues where it stopped and sends each message only once. With
    --dead, run it again within the time in --dedupe-for, because later the queue accepts the same ids again. Exit code
    1: the range has no message, or the queue rejected all messages.
    """
    from jobq.pipeline.lake.tables import parted

    _check_options(topic, dead, given)
    asked = _asked_span(given["since"], given["until"])
    reading = _Reading(given["engine"], given["master"])
    target = parted(given["queue"] or "")[1] or given["to_queue"] or ""
    what = "place:dead" if dead else f"topic:{topic}"
    what += f" to-topic:{given['to_topic']}" if given["to_topic"] else ""
    try:
        with session.operation(target, f"{what} since:{given['since']}", when=not given["dry_run"]):
            if dead:
                return _replay_dead(session, lake, asked, reading, given)
            return _replay_topic(session, lake, str(topic), asked, reading, given)
    finally:
        reading.close()


def _check_options(topic: str | None, dead: bool, given: dict[str, Any]) -> None:
    targets = [name for name in ("to_topic", "to_queue") if given[name]]
    if bool(topic) == dead:
        fault = "--topic and --dead can't be combined" if dead else "nothing to replay"
        raise ConfigError(f"{fault}; use either --topic NAME, or --dead --queue NAME")
    if dead and (not given["queue"] or targets or given["job"]):
        raise ConfigError(
            "--dead sends messages to their own queue; use --queue NAME, and leave out the target and --job"
        )
    if topic and given["queue"]:
        raise ConfigError(
            f"--queue {given['queue']!r} works only with --dead; for a topic use --to-queue"
        )
    if topic and len(targets) != 1:
        raise ConfigError(
            f"a replay needs one target, not {len(targets) or 'none'}; use either --to-topic NAME or --to-queue NAME"
        )
    if given["job"] and not given["to_queue"]:
        raise ConfigError(f"--job {given['job']!r} works only with --to-queue")


def _asked_span(since: str, until: str | None) -> TimeSpan:
    from jobq.pipeline.lake.reading import TimeSpan

    span = TimeSpan(*_moments(since, until))
    if span.until is not None and span.since is not None and span.until <= span.since:
        raise ConfigError(f"--until {until!r} is not after --since {since!r}; swap them")
    return span


class _Reading:
    """Reads the lake. Starts a Spark session when a read needs it; `close` stops the session."""

    def __init__(self, when: Any, master: str | None) -> None:
        self._when, self._master = when, master
        self._spark: SparkSession | None = None

    def of(self, archive: ArchivedRows) -> Callable[[], SparkSession] | None:
        """Return a function that starts a Spark session; None if the rows can be read without Spark."""
        return self._made if archive.is_big(self._when) else None

    def _made(self) -> SparkSession:
        from jobq.pipeline.sessions import session

        self._spark = self._spark or session("jobq lake replay", master=self._master, fast=True)
        return self._spark

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


def _replay_topic(
    session: Session,
    lake: Lake,
    topic: str,
    asked: TimeSpan,
    reading: _Reading,
    given: dict[str, Any],
) -> bool:
    from jobq.pipeline.lake.reading import ArchivedRows
    from jobq.pipeline.replay import Pace, replay

    archive = ArchivedRows(lake, "topics", "topic", topic, ("index",), asked)
    reader = reading.of(archive)
    summary = archive.summary(reader, sized=given["dry_run"])
    if not summary.rows:
        _check_known(lake, "topic", topic, ("topics",))
    _say_summary(session, topic, summary, given["dry_run"])
    if given["dry_run"] or not summary.rows:
        return bool(summary.rows)
    target = _target(session, topic, given)
    with target:
        done = replay(
            archive.rows(reader), target, Pace(given["rate"]), _progress(session, summary.rows)
        )
    place = given["to_topic"] or given["to_queue"]
    _say_replayed(session, {"topic": topic, "to": place}, done, f"{topic} to {place}")
    return True


def _target(session: Session, topic: str, given: dict[str, Any]) -> ReplayTarget:
    if given["to_topic"]:
        from jobq.pipeline.replay import TopicReplay

        return TopicReplay(
            session.client, given["to_topic"], topic, given["name"],
            remember_s=given["remember"], marked=not given["plain"],
        )  # fmt: skip
    from jobq.pipeline.replay import QueueReplay

    return QueueReplay(
        session.queue(given["to_queue"]), topic, given["name"], job=given["job"] or "", shape=given["shape"],
        dedupe_s=_dedupe_s(given, DEDUPE_S), remember_s=given["remember"],
    )  # fmt: skip


def _replay_dead(
    session: Session, lake: Lake, asked: TimeSpan, reading: _Reading, given: dict[str, Any]
) -> bool:
    from jobq.pipeline.lake.reading import ArchivedRows
    from jobq.pipeline.lake.tables import parted
    from jobq.pipeline.replay import DeadReplay, Pace, newest_deaths

    name = given["queue"]
    archive = ArchivedRows(lake, "dead", "queue", name, ("died_at", "dead_id"), asked)
    messages = newest_deaths(archive.rows(reading.of(archive)))
    nbytes = sum(len(message.content) for message in messages)
    record = {"queue": name, "dead": len(messages), "bytes": nbytes}
    if not messages:
        _check_known(lake, "queue", name, ("dead", "events"))
    if given["dry_run"] or not messages:
        session.say(
            record, f"{name}: {counted(len(messages), 'dead message')}, {counted(nbytes, 'byte')}"
        )
        return bool(messages)
    dedupe_s = _dedupe_s(given, DEDUPE_DEAD_S)
    # In the lake, a queue may have the name of its server before it.
    source, queue = parted(name)
    revival = DeadReplay(
        session.queue(queue), f"{{{source}}}{given['name']}" if source else given["name"],
        dedupe_s=dedupe_s, remember_s=given["remember"],
    )  # fmt: skip
    done = revival.replay(messages, Pace(given["rate"]), _progress(session, len(messages)))
    where = {"queue": name, "refused": revival.refused, "dedupe_s": dedupe_s}
    what = f"dead messages of {name}"
    session.say({**where, **done._asdict()}, f"{what}: {done.sent:,} sent in {done.seconds:.1f} s")
    if done.sent:
        session.note(
            f"after a message is done, the queue rejects its id for {dedupe_s:g} s; --dedupe-for sets this time"
        )
    if done.behind:
        session.note(
            f"{done.behind:,} were skipped: this replay already sent them; to send them again, choose a new --id"
        )
    if revival.refused:
        some = ", ".join(revival.refused[:NAMED]) + (", …" if len(revival.refused) > NAMED else "")
        session.note(
            f"the queue rejected {len(revival.refused):,}: messages with these ids are live or recently done: {some}"
        )
    return bool(done.sent or done.behind or not revival.refused)


def _dedupe_s(given: dict[str, Any], default: float) -> float:
    return default if given["dedupe_for"] is None else float(given["dedupe_for"])


def _check_known(lake: Lake, column: str, name: str, tables: Sequence[str]) -> None:
    """Raise ConfigError if the column of these tables never had this value. The error suggests a similar value."""
    from jobq.pipeline.lake.reading import stored_rows
    from jobq.pipeline.lake.tables import TABLES
    from jobq.pipeline.options import unknown

    known: set[str] = set()
    for table in tables:
        for rows in stored_rows(lake, TABLES[table], [column]):
            known.update(map(str, rows[column].unique().to_pylist()))
    if column == "queue":
        known |= {base_of(value) for value in known}
    if known and name not in known:
        raise ConfigError(unknown(column, name, known))


def _say_summary(session: Session, topic: str, summary: ArchiveSummary, alone: bool) -> None:
    gaps = summary.last - summary.first + 1 - summary.rows if summary.rows else 0
    if alone or not summary.rows:
        first, last = (
            in_utc(at // 1000) if summary.rows else "" for at in (summary.first_us, summary.last_us)
        )
        record = {
            "topic": topic, "messages": summary.rows, "bytes": summary.nbytes, "first": summary.first,
            "last": summary.last, "first_at": first, "last_at": last, "missing": gaps,
        }  # fmt: skip
        span = f", {summary.first} of {first} to {summary.last} of {last}" if summary.rows else ""
        session.say(
            record,
            f"{topic}: {counted(summary.rows, 'message')}, {counted(summary.nbytes, 'byte')}{span}",
        )
    if gaps:
        session.note(
            f"the lake lacks {counted(gaps, 'message')} in this range, dropped before they were ingested"
        )


def _say_replayed(session: Session, where: dict[str, Any], done: Replayed, what: str) -> None:
    told = f"{what}: {done.sent:,} sent in {done.seconds:.1f} s"
    session.say({**where, **done._asdict()}, told)
    if done.behind or done.exists:
        session.note(
            f"{done.behind + done.exists:,} were skipped: they exist, or were already sent; "
            "to send them again, choose a new --id"
        )


def _progress(session: Session, total: int) -> Callable[[int], None]:
    noted_at = time.monotonic()

    def note(sent: int) -> None:
        nonlocal noted_at
        if time.monotonic() - noted_at >= NOTE_EVERY_S:
            noted_at = time.monotonic()
            session.note(f"{sent:,} of {total:,} sent")

    return note


@command(
    "audit",
    "--lake ./lake --since 30d",
    "--since 2026-10-01T00:00Z --until 2026-11-01T00:00Z --queues low --format json",
    "--since 1d --ask",
    group=lake,
)
@on_lake
@queues_option
@option("--since WHEN", "Earliest enqueue time: 30d (ago) or a time.  [default: all recorded]")
@option("--until WHEN", "Latest enqueue time.  [default: all]")
@option("--ask", "Ask the server whether open messages are live or lost.")
@source_option
@option("--format table|json", "form", "Output format.", default="table")
@master_option
@memory_option
def audit(
    session: Session, lake: Lake, queues: str | None, since: str | None, until: str | None, form: str,
    **given: Any,
) -> int:  # fmt: skip
    """Search the lake's events for messages lost in a time range.

    The queues must have recorded all events during the whole range. An unfinished message is 'open', because it may
    still be on the server; --ask checks this. Exit code 1: a message is lost. Exit code 2: the events are incomplete.
    """
    lives = _lives(session, given["source"]) if given["ask"] else None
    results = _audited(lake, names_of(queues), _moments(since, until), lives, given)
    shown = Session(session.url, session.namespace, session.as_json or form == "json")
    for result in results:
        show_audit(shown, result, {"open: the server may still hold them": result.open})
        for note in result.notes:
            click.echo(f"jobq: {result.queue}: {note}", err=True)
    if not results:
        session.note("the lake has no enqueue events; run 'jobq events level all'")
        return exits.USAGE
    if any(result.lost for result in results):
        return exits.NO
    return exits.USAGE if any(result.notes for result in results) else exits.OK


def _audited(
    lake: Lake, names: list[str], span: tuple[datetime | None, datetime | None], lives: Lives | None,
    spark_options: dict[str, Any],
) -> list[LakeAudited]:  # fmt: skip
    from jobq.pipeline.lake import quarantine
    from jobq.pipeline.lake.audit import LakeAudit
    from jobq.pipeline.lake.commit import losses
    from jobq.pipeline.lake.files import live_files
    from jobq.pipeline.lake.reading import read
    from jobq.pipeline.sessions import session as spark_session

    if not live_files(lake.table("events")):
        return []
    master, memory = spark_options["master"], spark_options["memory"]
    with output.waiting("starting Spark", quiet=False):
        spark = spark_session("jobq lake audit", master=master, memory=memory)
    try:
        events = read(spark, lake, "events")
        missed = losses(lake)
        audit = LakeAudit(spark, events)
        return audit.audit(
            _ms(span[0]), _ms(span[1]), names, lives, missed, quarantine.entries(lake)
        )
    finally:
        spark.stop()


def _moments(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    now = datetime.now(UTC)
    start, end = (parse_time(text, now=now, zone=UTC) if text else None for text in (since, until))
    return start, end


def _lives(session: Session, source: str) -> Callable[[str, str], bool]:
    from jobq.pipeline.lake.tables import parted

    def lives(name: str, mid: str) -> bool:
        owner, own = parted(name)
        if owner != source:
            raise ConfigError(
                f"queue {name!r} belongs to source {owner!r}, but --source is {source!r}, so the queue's server "
                f"can't be read; use queues of one source, and name that source with --source"
            )
        queue = session.queue(own)
        place = queue.place_of(mid) or queue
        return place.status(mid).word in LIVE and not unplaced(place, [mid])

    return lives


def _ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)
