"""`jobq lake replay`: archived topic messages and dead messages, put back."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from jobq.cli import exits
from jobq.cli.lake_place import lake_options, opened
from jobq.cli.options import DURATION, command, option
from jobq.cli.session import Session
from jobq.cli.spark import master_option
from jobq.errors import ConfigError
from jobq.events import in_utc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jobq.pipeline.archived import Archive, Summary
    from jobq.pipeline.lake.place import Lake
    from jobq.pipeline.lake.span import Span
    from jobq.pipeline.replay import Replayed, Target

TOLD_EVERY_S = 5.0


@command(
    "replay",
    examples="""
        jobq lake replay --topic orders --since 2026-11-01T00:00Z --until 2026-11-08T00:00Z --to-topic orders-again
        jobq lake replay --topic orders --since 7d --to-queue low --job app.jobs.bill --as json
        jobq lake replay --topic orders --since 7d --to-queue low --dry-run
        jobq lake replay --dead --queue low --since 2d
    """,
)
@lake_options
@option("--topic", metavar="NAME", help="Put back messages of this topic.")
@option("--dead", is_flag=True, help="Put back dead messages of --queue.")
@option("--queue", metavar="NAME", help="With --dead: which queue's.")
@option(
    "--since",
    required=True,
    metavar="WHEN",
    help="Appended, or dead, from then on: 7d (ago), or a moment.",
)
@option("--until", metavar="WHEN", help="Before then.  [default: all up to now]")
@option("--to-topic", metavar="NAME", help="Append to this topic, in order.")
@option("--to-queue", metavar="NAME", help="Enqueue to this queue.")
@option(
    "--job",
    metavar="NAME",
    help="With --to-queue: call this job.  [default: enqueue contents as they are]",
)
@option("--as", "shape", type=click.Choice(["text", "json", "base64"]), default="text", show_default=True,
        help="With --job: what its one argument is, of the content.")  # fmt: skip
@option(
    "--id",
    "name",
    metavar="NAME",
    default="",
    help="Name this replay, to send again what was sent before.",
)
@option(
    "--plain",
    is_flag=True,
    help="With --to-topic: no headers that tell where a message comes from.",
)
@option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="At most N messages a second.",
)
@option(
    "--dedupe-for",
    type=DURATION,
    default="1d",
    show_default=True,
    help="To queues: refuse a message so long after it is done.",
)
@option(
    "--remember",
    type=DURATION,
    default="30d",
    show_default=True,
    help="How long to know what was sent.",
)
@option("--dry-run", is_flag=True, help="Say what there is, and send nothing.")
@option("--spark", "when", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
        help="Whether Spark reads: auto does for days over 256 MB.")  # fmt: skip
@master_option
def replay(
    session: Session, path: str | None, storage: tuple[str, ...], topic: str | None, dead: bool,
    **given: Any,
) -> int:  # fmt: skip
    """Put back what the lake has and the server no longer: topic messages, or dead messages as new ones.

    Run again, also after it was killed, it goes on where it was: nothing gets there twice. Exit code 1: there
    was nothing in the range.
    """
    _check(topic, dead, given)
    lake, asked = opened(path, storage), _asked(given["since"], given["until"])
    reading = _Reading(given["when"], given["master"])
    try:
        if dead:
            return _dead(session, lake, asked, reading, given)
        return _topic(session, lake, str(topic), asked, reading, given)
    finally:
        reading.close()


def _check(topic: str | None, dead: bool, given: dict[str, Any]) -> None:
    targets = [name for name in ("to_topic", "to_queue") if given[name]]
    if bool(topic) == dead:
        raise ConfigError("say what to put back: --topic NAME, or --dead --queue NAME")
    if dead and (not given["queue"] or targets or given["job"]):
        raise ConfigError(
            "--dead puts messages back into their own queue; give --queue NAME, and no target or job"
        )
    if topic and given["queue"]:
        raise ConfigError(
            f"--queue {given['queue']!r} goes with --dead; a topic is sent --to-queue"
        )
    if topic and len(targets) != 1:
        raise ConfigError("say where the messages go: --to-topic NAME or --to-queue NAME")
    if given["job"] and not given["to_queue"]:
        raise ConfigError(f"--job {given['job']!r} goes with --to-queue")


def _asked(since: str, until: str | None) -> Span:
    from jobq.pipeline.lake.span import Span
    from jobq.pipeline.report.asked import moment

    now = datetime.now(UTC)
    span = Span(moment(since, now), moment(until, now) if until else None)
    if span.until is not None and span.since is not None and span.until <= span.since:
        raise ConfigError(f"--until {until!r} isn't after --since {since!r}; turn them round")
    return span


class _Reading:
    """Who reads the lake; a session is made when it is needed, and ended with this."""

    def __init__(self, when: Any, master: str | None) -> None:
        self._when, self._master = when, master
        self._spark: SparkSession | None = None

    def of(self, archive: Archive) -> Callable[[], SparkSession] | None:
        """What makes the session that reads it; None: this process reads."""
        return self._made if archive.is_big(self._when) else None

    def _made(self) -> SparkSession:
        from jobq.pipeline.sessions import session

        self._spark = self._spark or session("jobq lake replay", master=self._master, fast=True)
        return self._spark

    def close(self) -> None:
        """End it."""
        if self._spark is not None:
            self._spark.stop()


def _topic(
    session: Session, lake: Lake, topic: str, asked: Span, reading: _Reading, given: dict[str, Any]
) -> int:
    from jobq.pipeline.archived import Archive
    from jobq.pipeline.replay import Pace, replay

    archive = Archive(lake, "topics", "topic", topic, ("index",), asked)
    reader = reading.of(archive)
    summary = archive.summary(reader, sized=given["dry_run"])
    _say_summary(session, topic, summary, given["dry_run"])
    if given["dry_run"] or not summary.rows:
        return exits.OK if summary.rows else exits.NO
    target = _target(session, topic, given)
    with target:
        done = replay(
            archive.rows(reader), target, Pace(given["rate"]), _progress(session, summary.rows)
        )
    place = given["to_topic"] or given["to_queue"]
    _say_done(session, {"topic": topic, "to": place}, done, f"{topic} to {place}")
    return exits.OK


def _target(session: Session, topic: str, given: dict[str, Any]) -> Target:
    if given["to_topic"]:
        from jobq.pipeline.replay_topic import ToTopic

        return ToTopic(
            session.client, given["to_topic"], topic, given["name"],
            remember_s=given["remember"], marked=not given["plain"],
        )  # fmt: skip
    from jobq.pipeline.replay_queue import ToQueue

    return ToQueue(
        session.queue(given["to_queue"]), topic, given["name"], job=given["job"] or "", shape=given["shape"],
        dedupe_s=given["dedupe_for"], remember_s=given["remember"],
    )  # fmt: skip


def _dead(
    session: Session, lake: Lake, asked: Span, reading: _Reading, given: dict[str, Any]
) -> int:
    from jobq.pipeline.archived import Archive
    from jobq.pipeline.replay import Pace
    from jobq.pipeline.replay_dead import Revival, deaths

    name = given["queue"]
    archive = Archive(lake, "dead", "queue", name, ("died_at", "dead_id"), asked)
    found = deaths(archive.rows(reading.of(archive)))
    nbytes = sum(len(one.content) for one in found)
    record = {"queue": name, "dead": len(found), "bytes": nbytes}
    if given["dry_run"] or not found:
        session.say(record, f"{name}: {len(found):,} dead messages, {nbytes:,} bytes")
        return exits.OK if found else exits.NO
    revival = Revival(
        session.queue(name),
        given["name"],
        dedupe_s=given["dedupe_for"],
        remember_s=given["remember"],
    )
    done = revival.run(found, Pace(given["rate"]), _progress(session, len(found)))
    _say_done(session, {"queue": name}, done, f"dead messages of {name}")
    return exits.OK


def _say_summary(session: Session, topic: str, found: Summary, alone: bool) -> None:
    gaps = found.last - found.first + 1 - found.rows if found.rows else 0
    if alone or not found.rows:
        first, last = (
            in_utc(at // 1000) if found.rows else "" for at in (found.first_us, found.last_us)
        )
        record = {
            "topic": topic, "messages": found.rows, "bytes": found.nbytes, "first": found.first, "last": found.last,
            "first_at": first, "last_at": last, "missing": gaps,
        }  # fmt: skip
        span = f", {found.first} of {first} to {found.last} of {last}" if found.rows else ""
        session.say(record, f"{topic}: {found.rows:,} messages, {found.nbytes:,} bytes{span}")
    if gaps:
        session.note(
            f"{gaps:,} indexes between them are not in the lake: dropped before they were ingested"
        )


def _say_done(session: Session, where: dict[str, Any], done: Replayed, what: str) -> None:
    told = f"{what}: {done.sent:,} sent in {done.seconds:.1f} s"
    session.say({**where, **done._asdict()}, told)
    if done.behind or done.exists:
        session.note(
            f"{done.behind + done.exists:,} were left out: they are there, or were sent before; "
            "to send them again, name the replay by --id"
        )


def _progress(session: Session, total: int) -> Callable[[int], None]:
    told_at = time.monotonic()

    def tell(sent: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= TOLD_EVERY_S:
            told_at = time.monotonic()
            session.note(f"{sent:,} of {total:,} sent")

    return tell
