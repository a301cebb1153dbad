"""`jobq schedule`: the schedules of queues."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import islice
from typing import Any

import click
from msgspec import structs

from jobq.cli.arguments import from_words
from jobq.cli.enqueue import find
from jobq.cli.modules import load
from jobq.cli.options import (
    Function,
    group,
    import_option,
    limit_option,
    option,
    queues_option,
)
from jobq.cli.output import Listing, OneRecord
from jobq.cli.session import Session, command
from jobq.durations import counted
from jobq.errors import ConfigError
from jobq.events import in_utc
from jobq.jobs.registry import default_registry
from jobq.jobs.ticks import moment
from jobq.queue.queue import Queue
from jobq.queue.types import Schedules
from jobq.schedules import listing
from jobq.schedules.declared import schedules_of, without_job
from jobq.schedules.definition import MAX_TIMES, Schedule, checked_schedule, decoded, encoded
from jobq.schedules.lint import findings
from jobq.schedules.listing import WorkerCode, known_by_queue, of_queue, schedule_records

LISTED = Listing(
    (
        "queue",
        "name:schedule",
        "job",
        "rule",
        "tz",
        "next:next_at",
        "last:last_at",
        "state",
        "from:origin",
    ),
    drops=("tz", "last", "job"),
    empty="no schedules; declare a schedule with @schedule, or use jobq schedule add",
)
HISTORY = Listing(
    ("tick", "queue", "name:schedule", "outcome", "late ms:late_ms", "missed", "mid"),
    drops=("missed", "mid"),
    empty="no tick yet",
)
_RULE_OPTIONS = (
    option("--every DURATION", "Run at multiples of this interval, instead of --cron."),
    option("--tz ZONE", "Time zone of the expression, such as Europe/Berlin.  [default: UTC]"),
)


def _rule_options(function: Function) -> Function:
    return reduce(lambda inner, decorate: decorate(inner), reversed(_RULE_OPTIONS), function)


@group(
    "schedule",
    "list",
    'next "0 7 * * 1-5" --tz Europe/Berlin -n 5',
    "run-now app.jobs.digest",
    "history app.jobs.digest",
)
def schedule() -> None:
    """List, add, pause and check schedules.

    Workers enqueue jobs of schedules that their modules declare with @schedule, and of schedules added here.
    """


@command("list", "", "--queues reports --json", group=schedule)
@queues_option
def list_schedules(session: Session, queues: str | None) -> None:
    """List schedules, with their next and last ticks.

    The state says why a schedule has no ticks. paused: it waits to be resumed. undeclared: no running worker of the
    queue has it in its code. no worker: no worker serves the queue. unknown job: no worker of the queue knows the
    schedule's job. unreadable or no definition: the schedule's data are damaged or missing. queue paused: ticks enqueue
    jobs, but the jobs wait. The state is empty if the jobs run, or if the list of workers can't be read.
    """
    known: dict[str, list[WorkerCode]] | None = None
    with session.tolerating("workers", "list of"):
        known = known_by_queue(session.client)
    session.say_all(session.from_each(queues, partial(_rows, known, not session.as_json)), LISTED)


def _rows(
    known: Mapping[str, Sequence[WorkerCode]] | None, shown: bool, queue: Queue
) -> Iterator[OneRecord]:
    schedules = queue.admin.schedules()
    paused = bool(schedules.definitions) and queue.admin.sample().counts.all_paused
    for row in schedule_records(queue.name, schedules, of_queue(known, queue.name), paused):
        times = {
            name: at_ms and in_utc(at_ms)
            for name, at_ms in (("next_at", row.next_at), ("last_at", row.last_at))
        }
        yield structs.asdict(row) | {name: at or "" for name, at in times.items()} if shown else row


@command("next", '"0 7 * * 1-5" --tz Europe/Berlin', "--every 10m -n 3 --json", group=schedule)
@click.argument("expression", required=False)
@_rule_options
@limit_option(5, 1_000)
def next_ticks(session: Session, expression: str | None, limit: int, **given: Any) -> None:
    """Print the next run times for a cron expression or an interval, without a server."""
    spec = checked_schedule("example", "example", expression, given)
    for tick in islice(spec.ticks.after(_now_ms()), limit):
        local = moment(tick, spec.zone).isoformat(timespec="seconds")
        session.say({"at": in_utc(tick), "local": local}, local)


@command("lint", "--import app.jobs", "--queues reports --json", group=schedule)
@import_option
@queues_option
def lint(session: Session, modules: tuple[str, ...], queues: str | None) -> bool:
    """Warn about schedules that may not do what you intend.

    With --import, the command checks the schedules that these modules declare, without a server. Otherwise, it checks
    the schedules of queues. Exit code
    1: there are warnings.
    """
    load(modules)
    warned, schedules = False, list(_declared() if modules else _kept(session, queues))
    for text in without_job() if modules else ():
        warned = True
        session.say({"schedule": "", "rule": "", "warning": text}, text)
    for spec in schedules:
        timeout_s = None
        if spec.job in default_registry:
            job = default_registry.get(spec.job)
            timeout_s = job.settings.hard_timeout or job.settings.timeout
        for text in findings(spec, _now_ms(), timeout_s):
            warned = True
            session.say(
                {"schedule": spec.name, "rule": spec.rule, "warning": text}, f"{spec.name}: {text}"
            )
    if not warned and not session.problems:
        session.note(f"checked {counted(len(schedules), 'schedule')}: no warnings")
    return not warned


def _declared() -> Iterator[Schedule]:
    for job in default_registry:
        yield from schedules_of(job)


def _kept(session: Session, queues: str | None) -> Iterator[Schedule]:
    def read(queue: Queue) -> Iterator[Schedule]:
        for name, text in queue.admin.schedules().definitions.items():
            try:
                yield decoded(text[1:])
            except ConfigError as error:
                session.note(f"{queue.name}: {name}: {error}")

    yield from session.from_each(queues, read)


@command(
    "add",
    'nightly app.jobs.digest --cron "0 3 * * *" --tz Europe/Berlin --queue reports',
    "poll app.jobs.poll https://example.com depth=2 --every 10m --overlap queue",
    group=schedule,
    operation="schedule-add",
)
@click.argument("name")
@click.argument("job")
@click.argument("words", metavar="[ARG|NAME=ARG]...", nargs=-1)
@option(
    "--cron EXPRESSION",
    "Cron expression: minute, hour, day of the month, month, day of the week.",
)
@_rule_options
@option("--missed one|skip|all", "How to handle ticks missed while no worker ran.", default="one")
@option(
    "--overlap skip|queue|allow|cancel",
    "How to handle a tick while the previous run is unfinished.",
    default="skip",
)
@option("--start WHEN", "Earliest tick, such as 2026-12-01T08:00Z.")
@option("--end WHEN", "Latest tick.")
@option("--times N", "Only the first N ticks after --start.", type=click.IntRange(1, MAX_TIMES))
@option("--spread DURATION", "Delay ticks by a part of this time, fixed per schedule.")
@option("-q, --queue NAME", "Queue.  [default: the job's, else default]", shared=("JOBQ_QUEUE",))
@import_option
def add(
    session: Session, name: str, job: str, words: tuple[str, ...], queue: str | None,
    modules: tuple[str, ...], **given: Any,
) -> bool:  # fmt: skip
    """Store a schedule on the server, or change a stored schedule.

    Within ten seconds, workers that serve the queue and know the job begin to enqueue the job at each tick. To change a
    schedule declared in code, change the code. ARGs are the job's arguments, as for jobq enqueue.
    """
    target = find(job, modules)
    call = from_words(words)
    try:
        target.check_arguments(call.args, call.kwargs)
    except TypeError as error:
        raise ConfigError(f"{target.name} can't be called with these arguments: {error}") from error
    spec = checked_schedule(name, target.name, given.pop("cron"), given, call.args, call.kwargs)
    home = session.queue(queue or target.queue)
    with session.operation(home.name, f"schedule:{name}"):
        word, other = home.admin.schedule("add", name, encoded(spec))
        _refuse(home, name, word, other)
    home.register()
    done = "added" if word == "added" else "unchanged"
    session.say({"queue": home.name, "schedule": name, "done": done}, f"{home.name}: {name} {done}")
    return True


def _refuse(home: Queue, name: str, word: str, other: str) -> None:
    if word == "taken":
        raise ConfigError(
            f"schedule {name} is declared in the code of {decoded(other).job}; pause the schedule, or change that code"
        )
    if word == "full":
        raise ConfigError(f"queue {home.name} has 1,000 schedules, the maximum; delete some")


def _steering(verb: str, done: str) -> Any:

    def steer(session: Session, name: str, queues: str | None) -> bool:
        queue, _ = _home(session, name, queues)
        with session.operation(queue.name, f"schedule:{name}"):
            word, _ = queue.admin.schedule(verb, name)
        said = f"{done} already" if word == "same" else done
        session.say(
            {"queue": queue.name, "schedule": name, "done": said}, f"{queue.name}: {name} {said}"
        )
        return True

    return steer


def _home(session: Session, name: str, queues: str | None) -> tuple[Queue, Schedules]:
    homes = []
    for queue in session.queues(queues):
        schedules = queue.admin.schedules()
        if name in schedules.definitions or name in schedules.ticks:
            homes.append((queue, schedules))
    if len(homes) == 1:
        return homes[0]
    if homes:
        names = ", ".join(queue.name for queue, _ in homes)
        raise ConfigError(
            f"queues {names} each have a schedule {name!r}; choose a queue with --queues"
        )
    raise ConfigError(f"no schedule {name!r:.120}; jobq schedule list shows all schedules")


@command(
    "pause",
    "nightly",
    "app.jobs.digest --queues reports",
    group=schedule,
    operation="schedule-pause",
)
@click.argument("name")
@queues_option
def pause(session: Session, name: str, queues: str | None) -> bool:
    """Stop the ticks of a schedule until it is resumed."""
    return bool(_steering("pause", "paused")(session, name, queues))


@command("resume", "nightly", group=schedule, operation="schedule-resume")
@click.argument("name")
@queues_option
def resume(session: Session, name: str, queues: str | None) -> bool:
    """Resume a schedule. Ticks missed during the pause are skipped."""
    return bool(_steering("resume", "resumed")(session, name, queues))


@command("delete", "nightly", "app.jobs.old --force", group=schedule, operation="schedule-delete")
@click.argument("name")
@option("--force", "Also delete schedules declared in code; workers with that code restore them.")
@queues_option
def delete(session: Session, name: str, force: bool, queues: str | None) -> bool:
    """Delete an added schedule."""
    _, schedules = _home(session, name, queues)
    if schedules.definitions.get(name, "").startswith("c") and not force:
        raise ConfigError(
            f"schedule {name} is declared in code; remove the declaration, then delete the stored state with --force"
        )
    return bool(_steering("remove", "deleted")(session, name, queues))


@command(
    "run-now",
    "nightly",
    "app.jobs.digest --queues reports",
    group=schedule,
    operation="schedule-run-now",
)
@click.argument("name")
@import_option
@queues_option
def run_now(session: Session, name: str, modules: tuple[str, ...], queues: str | None) -> bool:
    """Enqueue a schedule's job now, in addition to its scheduled runs."""
    queue, schedules = _home(session, name, queues)
    text = schedules.definitions.get(name, "")
    if not text:
        raise ConfigError(
            f"schedule {name} has no definition on the server; enqueue its job instead"
        )
    spec = decoded(text[1:])
    job = find(spec.job, modules)
    with session.operation(queue.name, f"schedule:{name}") as performed:
        done = listing.run_now(queue, name, schedules, job)
        performed.set(note=f"mid {done.detail}")
    session.say({"queue": queue.name, "schedule": name, "mid": done.detail}, done.detail)
    return True


@command("history", "", "nightly -n 100 --json", group=schedule)
@click.argument("name", required=False)
@limit_option(20, 1_000)
@queues_option
def history(session: Session, name: str | None, limit: int, queues: str | None) -> None:
    """List the latest ticks with their outcomes.

    late ms: time between a tick's due time and the enqueue of its job. missed: number of skipped earlier ticks.
    """

    def read(queue: Queue) -> Iterator[dict[str, Any]]:
        log = queue.admin.schedules(1_000).log
        named = (entry for entry in log if name in (None, entry.name))
        for entry in islice(named, limit):
            facts = entry._asdict()
            facts |= {"schedule": facts.pop("name"), "tick": in_utc(entry.tick_ms)}
            yield {"queue": queue.name, **facts}

    rows = sorted(session.from_each(queues, read), key=lambda row: -row["tick_ms"])[:limit]
    for row in rows:
        del row["tick_ms"]
    session.say_all(rows, HISTORY)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
