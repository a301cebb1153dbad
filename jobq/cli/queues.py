"""`jobq queues`, `pause`, `resume` and `jobq queue`: count messages, and control queues."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from difflib import get_close_matches
from io import StringIO
from itertools import count
from typing import Any, NamedTuple

import click

from jobq.cli import output
from jobq.cli.attention import attention, incidents_at, records_of
from jobq.cli.messages import content_facts
from jobq.cli.options import (
    group,
    limit_option,
    offset_option,
    option,
    queues_arguments,
    yes_option,
)
from jobq.cli.output import Listing
from jobq.cli.session import Session, command
from jobq.client.names import base_of, is_partition
from jobq.durations import counted, lasting
from jobq.errors import JobqError, ScriptError
from jobq.jobs.envelope import head_enqueued_at
from jobq.jobs.states import state_word
from jobq.observe.facts import starts_per_s
from jobq.observe.why import pause_words
from jobq.queue.admin import SHORT_PAGE
from jobq.queue.directory import forget_queue, queue_names
from jobq.queue.folding import by_base, folded, without_partitions
from jobq.queue.keys import key, prefix
from jobq.queue.members import MAX_ENTRIES
from jobq.queue.partitioning import remove_partitions
from jobq.queue.partitions import read_map
from jobq.queue.presence import served
from jobq.queue.queue import Queue
from jobq.queue.types import Entry, Place, Status, WaitingHead

COLUMNS = ("ready", "delayed", "running", "requeued", "finished", "deduped", "dead", "messages")
#: Column -> its name in Counts, if that differs.
_COUNTED = {"running": "locked", "finished": "done"}
QUEUES = Listing(
    ("queue", *COLUMNS, "oldest", "starts/s:starts", ":remark"),
    drops=("deduped", "requeued", "finished", "messages", "starts/s"),
)
#: Field of a queue's sample, until records are added up.
_SAMPLE = "sample"
#: State of messages -> their place.
PLACES: dict[str, Place] = {"ready": "ready", "delayed": "due", "running": "circle"}


@command("queues", "", "--watch", "low high --json", "--watch --every 5s --json | jq .ready")
@queues_arguments
@option("--partitions", "Also show each partition of a partitioned queue.")
@option("-w, --watch", "Repeat until Ctrl-C.")
@option("--every DURATION", "With --watch: interval.", default="1s")
@option(
    "--times", "With --watch: screens to show.  [default: until Ctrl-C]", type=click.IntRange(1)
)
def queues(
    session: Session, queues: str | None, partitions: bool, watch: bool, every: float,
    times: int | None,
) -> None:  # fmt: skip
    """Count the messages of each queue and its partitions, once or repeatedly.

    ready: can start now. delayed: waiting for the start time. running: has a running attempt. requeued: runs again with
    newer arguments after the current run. finished: ended, and soon to be removed; 'jobq report' counts all finished
    messages. deduped: ended, but its id is still rejected. dead: out of attempts. oldest: age of the next message;
    empty for a retry and for an encrypted call. starts/s: finished attempts per second in the last minute; with
    --watch, started attempts per second since the previous screen.

    The last column says whether the queue is paused, has no worker, or is blocked because over 1,000,000 results wait
    for delivery to flows. Below the table, the command lists problems and remedies. A cause comes before its symptoms.
    """
    rates = Rates()
    if not watch:
        _print(_look(session, queues, rates, partitions))
        return
    live = not session.as_json and sys.stdout.isatty()
    with _screen() if live else nullcontext():
        for look in range(times) if times else count():
            if look:
                output.pause(every)
            # On the second screen, messages for stderr are shown below the table while they apply.
            problems = StringIO()
            with redirect_stderr(problems) if live else nullcontext():
                shown = _look(session, queues, rates, partitions, first=live)
            if live:
                _draw([*shown, *problems.getvalue().splitlines()])
                session.problems.clear()
            else:
                _print(shown)


def _look(
    session: Session, queues: str | None, rates: Rates, partitions: bool, *, first: bool = False
) -> Iterable[str]:
    """Print one screen: the table and the problems (problems first on a short screen), or JSON lines."""
    records = list(rows(session, queues, rates))
    wrong = incidents_at(session.client, [record["queue"] for record in records])
    records = list(_folded(records, partitions))
    if not session.as_json:
        below = list(attention(wrong))
        return [*(below[1:] if first else ()), *lines(session, records), *(() if first else below)]
    return lines(session, [row | {"findings": records_of(wrong, row["queue"])} for row in records])


class Rates:
    """Computes a queue's starts per second from two samples or, if there is only one sample, from events."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int]] = {}

    def of(self, queue: Queue, fence: int) -> float | None:
        """Return how many messages of a queue start per second, or None if that is unknown."""
        now, before = time.monotonic(), self._before.get(queue.name)
        self._before[queue.name] = now, fence
        if before is None:
            return starts_per_s(queue) if fence else None
        return max(0, fence - before[1]) / max(0.001, now - before[0])


def rows(session: Session, names: str | None, rates: Rates) -> Iterator[dict[str, Any]]:
    """Yield one record for each queue that can be read."""
    served = _served(session)

    def row(queue: Queue) -> Iterator[dict[str, Any]]:
        sample = queue.admin.sample()
        numbers = {
            column: getattr(sample.counts, _COUNTED.get(column, column)) for column in COLUMNS
        }
        workers = None if served is None else served.get(queue.name, 0)
        try:
            rate = rates.of(queue, sample.fence)
        except ScriptError:  # the events are of another type, or closed to this user
            rate = None
        is_base = sample.sealed and not is_partition(queue.name)
        known = read_map(session.client, queue.name) if is_base else None
        yield {
            "queue": queue.name, **numbers, "paused": sample.counts.paused, "pause_ends": sample.pause_ends or None,
            "workers": workers,
            "flow_entries": sample.flow_entries,
            "oldest_ms": _oldest_ms(queue, sample.head),
            "starts_per_s": None if rate is None else round(rate, 3),
            **({} if known is None else {"partitions": known.newest.size}),
            _SAMPLE: sample,
        }  # fmt: skip

    yield from session.from_each(names, row)


def _folded(all_records: list[dict[str, Any]], partitions: bool) -> Iterator[dict[str, Any]]:
    """Yield one record per queue, with the sums of its partitions. With `partitions`, also yield a record per
    partition.

    If a queue has no record of its own, its partitions aren't added up.
    """
    records = {record["queue"]: record for record in all_records}
    samples = {name: record.pop(_SAMPLE) for name, record in records.items()}
    for base, names in by_base(records).items():
        some = [records[name] for name in names]
        if base not in records or len(some) == 1:
            yield from some
            continue
        total = folded([samples[name] for name in names])
        yield _sum(records[base], some) | {
            "paused": total.counts.paused,
            "pause_ends": total.pause_ends or None,
            "paused_partitions": total.counts.paused_partitions,
            "served_partitions": total.counts.served_partitions,
        }
        if partitions:
            yield from (record for record in some if record["queue"] != base)


def _sum(base: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    def known(column: str) -> list[Any]:
        return [record[column] for record in records if record[column] is not None]

    return {
        **base, **{column: sum(known(column)) for column in COLUMNS},
        "workers": max(known("workers"), default=None), "flow_entries": max(known("flow_entries")),
        "oldest_ms": max(known("oldest_ms"), default=None),
        "starts_per_s": round(sum(known("starts_per_s")), 3) if known("starts_per_s") else None,
    }  # fmt: skip


def _oldest_ms(queue: Queue, head: WaitingHead | None) -> int | None:
    """Return how long ago the next message was enqueued, by its producer's clock. Return None for a retry."""
    at = head_enqueued_at(head)
    return max(0, queue.client.clock_ms(queue.wake_key) - at) if at else None


def lines(session: Session, records: list[dict[str, Any]]) -> Iterable[str]:
    """Return the records as lines of a table, or as JSON lines."""
    if session.as_json:
        return session.lines(records, QUEUES)
    shown = [record | _for_people(record) for record in records]
    return session.lines(shown, QUEUES)


def _for_people(record: dict[str, Any]) -> dict[str, str]:
    oldest, rate = record["oldest_ms"], record["starts_per_s"]
    return {
        "oldest": "" if oldest is None else lasting(oldest / 1000),
        "starts": "" if rate is None else f"{rate:,.1f}",
        "remark": _remark(record),
    }


def _served(session: Session) -> dict[str, int] | None:
    with session.tolerating("workers", "list of"):
        return served(session.client)
    return None


def _remark(record: dict[str, Any]) -> str:
    remarks = [counted(record["partitions"], "partition")] if record.get("partitions") else []
    parts = record.get("paused_partitions", 0), record.get("served_partitions", 0)
    remarks += [pause_words(record["pause_ends"], *parts)] if record["paused"] else []
    if record["ready"] and record["workers"] == 0:
        remarks.append("no worker")
    if record["flow_entries"] > MAX_ENTRIES:
        remarks.append(f"blocked: {record['flow_entries']:,} results for flows")
    return ", ".join(remarks)


def _print(shown: Iterable[str]) -> None:
    for line in shown:
        click.echo(line)


def _draw(shown: Iterable[str]) -> None:
    """Redraw the screen in one write, and clear each line, so that nothing flickers."""
    heading = f"{time.strftime('%H:%M:%S')}  jobq queues, stop with Ctrl-C"
    fitting = [heading, "", *shown][: shutil.get_terminal_size().lines - 1]
    click.echo("\x1b[H" + "\x1b[K\n".join(fitting) + "\x1b[J", nl=False, color=True)


@contextmanager
def _screen() -> Iterator[None]:
    """Switch to the terminal's alternate screen, so that the main screen stays unchanged."""
    click.echo("\x1b[?1049h\x1b[?25l", nl=False, color=True)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        click.echo("\x1b[?25h\x1b[?1049l", nl=False, color=True)


names_argument = click.argument("names", metavar="QUEUE...", nargs=-1, required=True)


@command("pause", "low", "low high --json", "low --for 30m", operation="pause", server="joins")
@names_argument
@option("--for DURATION", "span", "End the pause after this time.  [default: with jobq resume]")
def pause(session: Session, names: tuple[str, ...], span: float | None) -> bool:
    """Pause a queue until it is resumed, or for a given time.

    Running jobs continue, and producers can still enqueue. Exit code 1: a queue has never been used.
    """

    def act(queue: Queue) -> dict[str, Any]:
        return {"paused": True, "pause_ends": queue.admin.pause(span) or None}

    return _set(session, names, act, "" if span is None else f"for:{span:g}s")


@command("resume", "low", operation="resume", server="joins")
@names_argument
def resume(session: Session, names: tuple[str, ...]) -> bool:
    """Resume paused queues.

    Exit code 1: a queue has never been used.
    """

    def act(queue: Queue) -> dict[str, Any]:
        queue.admin.resume()
        return {"paused": False}

    return _set(session, names, act)


def _set(
    session: Session, names: tuple[str, ...], act: Callable[[Queue], dict[str, Any]], filter: str = ""
) -> bool:  # fmt: skip
    """Change all queues, then print the results, so that a closed pipe can't interrupt the changes."""
    used = used_names(session, names)
    with session.operation(used, filter, when=bool(used)):
        changed = (
            list(session.from_each(used, lambda queue: [(queue.name, act(queue))])) if used else []
        )
    for name, facts in without_partitions(changed):
        word = pause_words(facts.get("pause_ends")) if facts["paused"] else "resumed"
        session.say({"queue": name, **facts}, f"{name}: {word}")
    return len(used) == len(names)


def used_names(session: Session, names: tuple[str, ...]) -> list[str]:
    """Return the given names, without unknown queues. Print a line for each unknown queue.

    If the list of queues can't be read, return all names.
    """
    session.queues(names)  # refuses what cannot be a name
    try:
        known = set(queue_names(session.client))
    except JobqError:
        # The list of names is damaged or out of reach, so no name can be refused.
        return list(names)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 3)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            record = {"queue": name, "known": False, "nearest": near}
            session.say(record, f"queue {name} has never been used here{meant}")
    return [name for name in names if name in known]


@group("queue", "peek low", "purge low")
def queue() -> None:
    """Inspect, empty or unregister a queue."""


class _Wanted(NamedTuple):
    """The options of `queue peek` for each queue.

    Attributes:
        end: Offset of the first message to omit; None lists all messages.
    """

    place: str
    offset: int
    end: int | None
    content: bool


@command(
    "peek",
    "low",
    "low --place delayed --all --json",
    "low --content",
    group=queue,
)
@queues_arguments
@option(
    "--place ready|delayed|running",
    "ready: can run now; delayed: waiting for its start time; running: running or just ended.",
    default="ready",
)
@offset_option
@limit_option(100, 1000)
@option("--all", "everything", "Show all, starting at --offset.")
@option("--content", "Also show the contents, which may contain secrets.")
def peek(
    session: Session, queues: str | None, place: str, offset: int, limit: int, everything: bool,
    content: bool,
) -> None:  # fmt: skip
    """List messages, by default ready messages, without changing them."""
    columns = ["queue", "mid", "state", "job", "attempts"]
    empty = f"no {place} messages; 'jobq queues' counts all"
    columns += {"delayed": ["starts at:when"], "running": ["lease ends:when"]}.get(place, [])
    columns += ["content"] * content
    wanted = _Wanted(place, offset, None if everything else offset + limit, content)
    records = session.from_each(queues, lambda queue: _listed(session, queue, wanted))
    session.say_all(records, Listing(columns, drops=("attempts", "state"), empty=empty))


def _listed(session: Session, queue: Queue, wanted: _Wanted) -> Iterator[dict[str, Any]]:
    following: int | None = wanted.offset
    while following is not None and (wanted.end is None or following < wanted.end):
        number = SHORT_PAGE if wanted.end is None else min(SHORT_PAGE, wanted.end - following)
        page = queue.admin.content(PLACES[wanted.place], following, number)
        yield from (_record(session, queue.name, wanted, entry) for entry in page.entries)
        following = page.next_offset
    if following is not None and queue.admin.content(PLACES[wanted.place], following, 1).entries:
        session.note(f"{queue.name} has more; add --offset {following} or --all")


def _record(session: Session, queue: str, wanted: _Wanted, entry: Entry) -> dict[str, Any]:
    facts = {
        key: value for key, value in entry._asdict().items() if key not in ("content", "status")
    }
    facts["state"] = state_word(Status(entry.status, entry.attempts))
    content = content_facts(entry.content, wanted.content)
    record = {"queue": queue, "place": wanted.place, **facts, **content}
    if not session.as_json:
        at = entry.not_before if wanted.place == "delayed" else entry.lock_expires_at
        record["when"] = output.moment(at)
    return record


@command("purge", "low", "low --yes --json", group=queue, operation="queue-purge", server="joins")
@names_argument
@yes_option
def purge(session: Session, names: tuple[str, ...], yes: bool) -> bool:
    """Delete every message of a queue except dead messages.

    Running jobs continue, but their results are rejected. Exit code 1: a queue has never been used.
    """
    used = used_names(session, names)
    queues = session.queues(used) if used else []
    live = {queue.name: queue.admin.counts().messages for queue in queues}
    shown = ", ".join(f"{count:,} of {name}" for name, count in live.items())
    if queues:
        session.confirmed(f"Delete all messages except the dead ({shown})?", yes)
    dropped = []
    with (
        session.operation(used, when=bool(queues)) as performed,
        output.progress(len(queues), "clearing", quiet=session.as_json) as bar,
    ):
        for queue in queues:
            dropped.append((queue.name, queue.admin.clear()))
            performed.set(number=sum(number for _, number in dropped))
            bar.update(1)
    for name, number in dropped:
        session.say(
            {"queue": name, "cleared": number}, f"{name}: {counted(number, 'message')} cleared"
        )
    return len(used) == len(names)


@command(
    "delete",
    "low",
    "low --json",
    group=queue,
    changes=True,
    operation="queue-delete",
    server="joins",
)
@names_argument
def delete(session: Session, names: tuple[str, ...]) -> bool:
    """Remove an unused queue from the list, and delete its events.

    The command also deletes the queue's partitions. A queue can't be deleted while it or a partition has a message,
    even a dead message, or while a worker serves the queue. An enqueue puts the queue back on the list within a minute.
    Exit code 1: a queue can't be deleted, or has never been used.
    """
    used, nleft = used_names(session, names), 0
    workers = served(session.client)
    for name in used:
        nleft += 1
        with session.tolerating(name):
            why = _forgotten(session, name, workers)
            word = f"not deleted: {why}" if why else "deleted"
            session.say({"queue": name, "forgotten": not why, "why": why}, f"{name}: {word}")
            nleft -= not why
    return len(used) == len(names) and not nleft


def _forgotten(session: Session, name: str, workers: Mapping[str, int]) -> str:
    """Remove a queue and its partitions from the list of queues. Return '', or why the queue can't be removed."""
    client = session.client
    known = read_map(client, base_of(name))
    if name != known.queue and name in known.names():
        return f"it is a partition of queue {known.queue}"
    places = [name]
    if name == known.queue:
        listed = (place for place in queue_names(client) if base_of(place) == name)
        places = list(dict.fromkeys((name, *known.names(), *listed)))
    for place in places:
        if why := _in_use(session, place, workers):
            return f"{'it' if place == name else place} {why}"
    with session.operation(name):
        if (
            name == known.queue
            and known.is_partitioned
            and (busy := remove_partitions(client, known))
        ):
            return f"{busy} just got a message"
        for place in places:
            client.command("UNLINK", key(prefix(client.namespace, place), "events"))
            forget_queue(client, place)
    return ""


def _in_use(session: Session, name: str, workers: Mapping[str, int]) -> str:
    """Return why a queue can't be deleted, such as 'holds 2 messages', or ''."""
    queue = session.queue(name)
    queue.is_alone = True
    sample = queue.admin.sample()
    counts = sample.counts
    if counts.messages or counts.dead or counts.quarantined:
        held = counted(counts.messages, "message")
        return f"holds {held}, {counts.dead:,} dead, {counts.quarantined:,} in quarantine"
    if sample.flow_entries:
        return f"has {sample.flow_entries:,} undelivered results for flows; run jobq flow check"
    return "is served by a worker, which would register it again" if name in workers else ""
