"""`jobq check`: check the server or the structure of queues, or find lost messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial

import click

from jobq.cli import output
from jobq.cli.attention import checked, incidents_at
from jobq.cli.held_back import full_keys, full_limits, waiting_maps
from jobq.cli.options import group, option, queues_arguments, yes_option
from jobq.cli.session import Session, command
from jobq.client.connection import Client
from jobq.client.names import base_of, is_name, is_partition
from jobq.client.pipelining import run_each
from jobq.config import parse_time
from jobq.durations import DAY_MS, counted, lasting
from jobq.errors import ConfigError, JobqError, ScriptError, UnavailableError
from jobq.jobs.envelope import head_job
from jobq.limits.directory import limit_damage, mend_limit
from jobq.observe.why import worker_command
from jobq.queue import presence
from jobq.queue.audit import Audit, Audited, server_ms
from jobq.queue.directory import forget_queue, queue_names, strange_queue_names
from jobq.queue.doctor import Finding, findings
from jobq.queue.folding import by_base
from jobq.queue.fsck import PARTS, WRONG_TYPE, repair, steps
from jobq.queue.members import MAX_ENTRIES
from jobq.queue.partition_checks import partition_findings
from jobq.queue.partition_fsck import OF_MAP, map_violations, mend_map
from jobq.queue.partitions import read_map
from jobq.queue.queue import Queue
from jobq.queue.server_load import LoadWatch, load_findings
from jobq.queue.types import Sample, Violation
from jobq.schedules.listing import (
    ScheduleRow,
    is_undeclared,
    known_by_queue,
    rows_of,
    schedules_of_queues,
)
from jobq.topics.calls import forget_topic, strange_topic_names

#: A time of the command line, by the clock of a queue's server.
Moment = Callable[[Queue], int | None]

#: Maximum number of repairs in a row, because a repair can uncover more violations.
REPAIRS = 3
#: Workers deliver entries to flows when a member ends, and every third of a lease. An older entry is a problem.
LATE_S = 60.0
COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@group("check", "doctor", "fsck low", "audit --since 1h")
def check() -> None:
    """Check the server or the structure of queues, or find lost messages."""


@command(
    "doctor",
    "",
    "--url rediss://app:secret@queue.example:6379 --strict",
    "--json | jq 'select(.level != \"ok\")'",
    group=check,
)
@option("--strict", "Warnings count as failures.")
def doctor(session: Session, strict: bool) -> bool:
    """Check the server's settings, and show which data each kind of failure would lose.

    Current incidents, such as lost workers, come first. The command checks every node of a Cluster, and every replica
    that may be promoted. On a busy server, it measures for a second which queue uses the most CPU. Exit code 1: a check
    failed.
    """
    results = findings(session.client)
    if not any(finding.check == "server" and finding.level == "fail" for finding in results):
        wrong = list(checked(incidents_at(session.client)))
        # Most important findings first, without repeats.
        failing = {finding.check for finding in wrong if finding.level == "fail"}
        results = [
            *wrong,
            *(
                finding
                for finding in results
                if finding.check not in failing or finding.level == "ok"
            ),
        ]
        sampled = list(_samples(session))
        results += _of_load(session, [queue.name for queue, _ in sampled])
        results += _of_queues(session, sampled)
        results += _of_flows(session, sampled)
        results += _of_schedules(session, [queue.name for queue, _ in sampled])
        results += _of_declared_numbers(session)
        results += _of_partition_maps(session, sampled)
        results += _full(session, [queue for queue, sample in sampled if sample.counts.keys])
    for finding in results:
        show(session, finding)
    return sound(results, strict)


def _samples(session: Session) -> Iterator[tuple[Queue, Sample]]:
    queues = session.readable(None)
    calls = [queue.admin.sample_call() for queue in queues]
    for queue, sample in zip(queues, run_each(session.client, calls), strict=True):
        with session.tolerating(queue.name):
            if isinstance(sample, JobqError):
                raise sample
            yield queue, sample


def _of_load(session: Session, names: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding about each server's load, and a finding for each queue that uses more than half of a CPU core."""
    with closing(LoadWatch(session.client, names)) as watch:
        yield from load_findings(watch)


def _of_queues(session: Session, sampled: Sequence[tuple[Queue, Sample]]) -> Iterator[Finding]:
    with session.tolerating("workers", "list of"):
        now_ms = session.client.clock_ms()
        for queue, sample in sampled:
            if now_ms - sample.refused_at < DAY_MS:
                ago = lasting((now_ms - sample.refused_at) / 1000)
                value = f"queue {queue.name}: outage buffers lost {sample.refused:,} messages, the last {ago} ago"
                yield Finding("refused", "warn", value, "see the log of the enqueuing program")


def _of_declared_numbers(session: Session) -> Iterator[Finding]:
    """Yield a warning for each queue whose number of partitions differs from the number in its workers' code."""
    with session.tolerating("workers", "list of"):
        now_ms = session.client.clock_ms()
        live = [worker for worker in presence.workers(session.client) if worker.is_live(now_ms)]
        declared = sorted({pair for worker in live for pair in worker.partitions.items()})
        for queue, count in declared:
            if not is_name("queue", queue.encode()):
                continue  # anyone who may write a worker's entry can write anything into it
            with session.tolerating(queue):
                size = read_map(session.client, queue).newest.size
                if size != count:
                    has = counted(size, "partition")
                    value = f"queue {queue} has {has}, although workers' code declares partitions={count}"
                    remedy = f"jobq partitions {queue} {count}, or change the code"
                    yield Finding("partitions", "warn", value, remedy)


def _of_partition_maps(
    session: Session, sampled: Sequence[tuple[Queue, Sample]]
) -> Iterator[Finding]:
    samples = {queue.name: sample for queue, sample in sampled}
    for base, names in by_base(samples).items():
        if len(names) > 1 or is_partition(names[0]):
            with session.tolerating(base):
                known = read_map(session.client, base)
                yield from partition_findings(known, {name: samples[name] for name in names})


def _of_schedules(session: Session, names: Sequence[str]) -> Iterator[Finding]:
    """Yield a warning for each schedule that no running worker declares in its code any longer."""
    with session.tolerating("workers", "list of"):
        known = known_by_queue(session.client)
        rows: list[ScheduleRow] = []
        for queue, schedules in schedules_of_queues(session.client, names).items():
            with session.tolerating(queue):
                if isinstance(schedules, JobqError):
                    raise schedules
                rows += rows_of(queue, schedules)
        for row in rows:
            if is_undeclared(row, known.get(row.queue, ())):
                where = f"{row.name} --queues {row.queue} --force"
                value = f"queue {row.queue}: no running worker declares schedule {row.name}, so it doesn't run"
                remedy = f"jobq schedule delete {where}, or deploy the code that declares it"
                yield Finding("schedules", "warn", value, remedy)


def _of_flows(session: Session, sampled: Sequence[tuple[Queue, Sample]]) -> Iterator[Finding]:
    """Yield findings about results that wait in the queues until flows read them."""
    for queue, sample in sampled:
        if sample.flow_entries:
            with session.tolerating(queue.name):
                yield from _flow_findings(queue, sample)


def _flow_findings(queue: Queue, sample: Sample) -> Iterator[Finding]:
    waited_s = (queue.client.clock_ms(queue.wake_key) - sample.flow_since_ms) / 1000
    entries = sample.flow_entries
    number = f"{counted(entries, 'result')} wait{'s' * (entries == 1)}"
    text = f"queue {queue.name}: {number} for delivery to flows, the oldest for {lasting(waited_s)}"
    remedy = f"{worker_command([queue.name], head_job(sample.head))}, or jobq flow check"
    if entries > MAX_ENTRIES:
        text += "; the queue is blocked until fewer wait"
        yield Finding("flows", "fail", text, remedy)
    elif waited_s > LATE_S:
        yield Finding("flows", "warn", text, remedy)


def _full(session: Session, keyed: Sequence[Queue]) -> Iterator[Finding]:
    client = session.client
    parts: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("keys", lambda: full_keys(client, keyed)), ("limits", lambda: full_limits(client)),
        ("flows", lambda: waiting_maps(client)),
    )  # fmt: skip
    for name, find in parts:
        with session.tolerating(name, "list of"):
            yield from find()


def sound(findings: Iterable[Finding], strict: bool) -> bool:
    """Return whether all checks passed. If `strict`, a warning counts as a failure."""
    return not any(finding.level in ("fail", "warn")[: 1 + strict] for finding in findings)


def show(session: Session, finding: Finding) -> None:
    """Print a finding as a JSON line, or as its level and text followed by the remedy."""
    if session.as_json:
        session.say(finding._asdict())
        return
    level = click.style(
        f"{finding.level:4}", fg=COLORS[finding.level], bold=finding.level == "fail"
    )
    of = f"{finding.node}: " if finding.node else ""
    click.echo(f"{level}  {finding.check:11}  {output.escaped(of + finding.value)}")
    if finding.remedy:
        click.echo(f"{'':19}→ {output.escaped(finding.remedy)}")


@command(
    "fsck",
    "",
    "low high --json",
    "low --repair",
    group=check,
    changes=True,
    operation="fsck-repair",
    server="joins",
)
@queues_arguments
@option("--repair", "repairs", "Repair the violations.")
@yes_option
def fsck(session: Session, queues: str | None, repairs: bool, yes: bool) -> bool:
    """Check the structure of queues and limits while they are in use.

    --repair moves misplaced messages and checks again. It removes invalid ids and dead-letter entries without a
    message, and renames keys of the wrong type. It resets damaged limits, and rebuilds a damaged map of partitions from
    the partitions. Exit code 1: violations remain.
    """
    left = 0 if queues else _names(session, repairs, yes) + _limits(session, repairs, yes)
    check_one = partial(_check_queue, session, _listed(session), repairs, yes)
    counts = session.from_each(queues, lambda queue: [check_one(queue)], strange=False)
    left += sum(counts)
    return not left


def _names(session: Session, repairs: bool, yes: bool) -> int:
    return sum(
        _strange(session, kind, listed, forget if repairs else None, yes)
        for kind, listed, forget in (
            ("queue", strange_queue_names, forget_queue),
            ("topic", strange_topic_names, forget_topic),
        )
    )


def _strange(
    session: Session, kind: str, listed: Callable[[Client], list[bytes]],
    forget: Callable[[Client, bytes], object] | None, yes: bool,
) -> int:  # fmt: skip
    try:
        names = listed(session.client)
    except (UnavailableError, ScriptError) as error:
        if kind == "topic" and (session.client.is_cluster or isinstance(error, ScriptError)):
            session.problem("the list of topics", error)
        return 0  # the error is reported where the queues are listed
    rule = f"not a {kind}'s name"
    shown = [name.decode("utf-8", "backslashreplace") for name in names]
    for text in shown:
        session.say({"queue": None, "rule": rule, "mid": text}, f"{rule}: {text}")
    if not names or forget is None:
        return len(names)
    session.confirmed(f"Remove {len(names)} from the list of {kind}s?", yes)
    with session.operation("", f"list:{kind}s") as performed:
        performed.set(number=len(names))
        for name, text in zip(names, shown, strict=True):
            forget(session.client, name)
            record = {"queue": None, "rule": rule, "mid": text, "repair": "removed"}
            session.say(record, f"{rule}: {text}: removed")
    return 0


def _limits(session: Session, repairs: bool, yes: bool) -> int:
    try:
        damages = list(limit_damage(session.client))
    except ScriptError as error:
        session.problem("limits", error)
        return 0
    except UnavailableError as error:
        session.problem("limits", error)
        return 0
    if damages and repairs:
        session.confirmed(f"Repair {len(damages)} of limits?", yes)
    for damage in damages:
        record = damage._asdict() | {"raw": None}
        text = f"limit {damage.limit}: {damage.rule}{': ' if damage.key else ''}{damage.key}"
        if repairs:
            with session.operation("", f"limit:{damage.limit}"):
                record["repair"] = mend_limit(session.client, damage)
            text += f": {record['repair']}"
        session.say(record, text)
    return 0 if repairs else len(damages)


def _listed(session: Session) -> list[str]:
    """Return the names in the list of queues, or [] if the list can't be read. Another check reports that error."""
    with suppress(JobqError):
        return queue_names(session.client)
    return []


def _check_queue(
    session: Session, listed: Sequence[str], repairs: bool, yes: bool, queue: Queue
) -> int:
    violations = _violations(session, listed, queue)
    for violation in violations:
        record = {"queue": queue.name, "rule": violation.rule, "mid": violation.mid}
        session.say(record, f"{queue.name}: {violation.rule}: {violation.mid}")
    if not violations:
        session.say({"queue": queue.name, "rule": None, "mid": None}, f"{queue.name}: clean")
    elif repairs:
        session.confirmed(f"Repair {len(violations)} of queue {queue.name}?", yes)
        with session.operation(queue.name) as performed:
            left = _repaired(session, listed, queue, violations)
            performed.set(number=len(violations), note=f"{left} violations remain")
        return left
    return len(violations)


def _repaired(
    session: Session, listed: Sequence[str], queue: Queue, violations: list[Violation]
) -> int:
    for _ in range(REPAIRS):
        for violation, done in _repairs(queue, violations):
            record = {
                "queue": queue.name, "rule": violation.rule, "mid": violation.mid, "repair": done
            }  # fmt: skip
            session.say(record, f"{queue.name}: {violation.rule}: {violation.mid}: {done}")
        violations = _violations(session, listed, queue)
        if not violations:
            break
    return len(violations)


def _repairs(queue: Queue, violations: list[Violation]) -> Iterator[tuple[Violation, str]]:
    inside = [violation for violation in violations if violation.rule not in OF_MAP]
    if inside:
        yield from repair(queue, inside)
    for violation in violations:
        if violation.rule in OF_MAP and (done := mend_map(queue.client, queue.name, violation)):
            yield violation, done


def _violations(session: Session, listed: Sequence[str], queue: Queue) -> list[Violation]:
    collected: list[Violation] = []
    try:
        length = len(PARTS) + sum(queue.admin.counts()[:-1]) // 500
    except ScriptError:
        length = len(PARTS)  # a key of another type, which the check reports
    with output.progress(length, f"fsck {queue.name}", quiet=session.as_json) as bar:
        for violations in steps(queue):
            collected += violations
            bar.update(1)
    if not is_partition(queue.name) and not any(
        item.rule.startswith(WRONG_TYPE) for item in collected
    ):
        # Otherwise the keys that say how the queue is partitioned can't be read yet.
        collected += map_violations(session.client, queue.name, listed)
    return collected


READ_EVERY_S = 0.5
SHOWN_MIDS = 20


@command(
    "audit",
    "low --since 1h",
    "--since 2026-11-21T07:00:00Z --until 2026-11-21T08:00:00Z --json",
    "high low --for 10m",
    group=check,
)
@queues_arguments
@option("--since WHEN", "Earliest enqueue time: 1h (ago) or a time with a zone.  [default: all]")
@option("--until WHEN", "Latest enqueue time.  [default: now]")
@option(
    "--for DURATION",
    "following",
    "Audit for this long, starting now, and read events before they are trimmed.",
)
def audit(
    session: Session,
    queues: str | None,
    since: str | None,
    until: str | None,
    following: float | None,
) -> int:
    """Search the queues' events for messages lost in a time range.

    Run 'jobq events level all' before the range starts. Workers may keep running. Exit code 1: a message is lost. Exit
    code 2: the events of a queue are incomplete; the other queues are still audited.
    """
    if following is not None and (since or until):
        raise ConfigError(f"--for {following:g} s begins now, so leave out --since and --until")
    first, last = _moment_of(since), _moment_of(until)
    audits: list[tuple[Queue, Audit]] = []
    for queue in session.readable(queues):
        with _tolerating_audit(session, queue):
            audits.append((queue, _begun(queue, first, last, following)))
    _follow(session, audits, following or 0)
    lost = False
    for queue, queue_audit in audits:
        with _tolerating_audit(session, queue):
            with output.waiting(f"reading the events of {queue.name}", quiet=session.as_json):
                result = queue_audit.result()
            show_audit(session, result)
            lost = lost or bool(result.lost)
    return not lost


@contextmanager
def _tolerating_audit(session: Session, queue: Queue) -> Iterator[None]:
    try:
        with session.tolerating(queue.name):
            yield
    except ConfigError as error:
        # An error about all partitions names their queue, so that it is printed only once.
        text, base = str(error), base_of(queue.name)
        name = base if text.startswith(f"queue {base!r}: ") else queue.name
        session.problem(f"queue {name}", ConfigError(text.removeprefix(f"queue {name!r}: ")))


def _begun(queue: Queue, since: Moment, until: Moment, following: float | None) -> Audit:
    if following is not None:
        return Audit(queue, following=True)
    return Audit(queue, since(queue), until(queue))


def _moment_of(text: str | None) -> Moment:
    """Return a function that converts `text` to epoch milliseconds, by the clock of a given queue's server."""
    if text is None:
        return lambda queue: None
    parse_time(text, now=datetime.now(UTC))  # refuses it before any queue is read

    def moment(queue: Queue) -> int:
        now = datetime.fromtimestamp(server_ms(queue) / 1000, UTC)
        return round(parse_time(text, now=now).timestamp() * 1000)

    return moment


def _follow(session: Session, audits: list[tuple[Queue, Audit]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for queue, queue_audit in audits:
            with _tolerating_audit(session, queue):
                queue_audit.read_events()
        time.sleep(min(left, READ_EVERY_S))


def show_audit(session: Session, result: Audited, more: Mapping[str, int] | None = None) -> None:
    """Print the audit's result for one queue.

    Args:
        more: Additional counts by name.
    """
    text = (
        f"{result.queue}: {result.accepted:,} accepted, {result.finished:,} finished, "
        f"{result.duplicates:,} duplicates, {result.lost:,} lost"
    )
    counts = {
        **(more or {}), "waiting or running": result.live, "superseded by newer arguments": result.superseded,
        "finished earlier messages": result.earlier, "unreadable records": result.unreadable,
    }  # fmt: skip
    rest = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    session.say(asdict(result), f"{text} ({rest})" if rest else text)
    if result.clock_jumps:
        session.note(
            f"{result.queue}: the server's clock was set back in the range (clock_jump events: "
            f"{result.clock_jumps:,}), so some times occur twice; --since and --until are not exact"
        )
    if not session.as_json:
        for mid in result.lost_mids[:SHOWN_MIDS]:
            session.say({}, f"  lost: {mid}")
        if len(result.lost_mids) > SHOWN_MIDS:
            click.echo(f"  and {len(result.lost_mids) - SHOWN_MIDS:,} more; --json lists all")
