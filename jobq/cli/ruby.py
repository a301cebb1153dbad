"""`jobq ruby`: list queues and jobs of Resque and Sidekiq, and enqueue jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
from msgspec import structs

from jobq.cli import output
from jobq.cli.arguments import from_words, moment_of
from jobq.cli.options import (
    NAMESPACE_OPTIONS,
    group,
    limit_option,
    offset_option,
    option,
    yes_option,
)
from jobq.cli.output import Listing
from jobq.cli.session import Session, command, opens
from jobq.errors import ConfigError, ScriptError
from jobq.protocols.ruby.claims import Claims
from jobq.protocols.ruby.dashboard_entries import resque_workers, sidekiq_processes
from jobq.protocols.ruby.key_names import RubyQueueName, queue_named, system_of
from jobq.protocols.ruby.queue_records import RubyQueueRecord, queue_record, queues_of
from jobq.protocols.ruby.queues import ResqueQueue, RubyQueue, SidekiqQueue


def _named(
    session: Session,
    sidekiq: str | None,
    resque: str | None,
    sidekiq_namespace: str | None,
    resque_namespace: str | None,
) -> RubyQueueName:
    if (sidekiq is None) == (resque is None):
        fault = "the queue is missing" if sidekiq is None else "two queues were given"
        raise ConfigError(f"{fault}; use either --sidekiq QUEUE or --resque QUEUE")
    if sidekiq is not None:
        return queue_named("sidekiq", sidekiq, sidekiq_namespace)
    return queue_named("resque", resque or "", resque_namespace)


def _systems(
    session: Session, sidekiq_namespace: str | None, resque_namespace: str | None
) -> tuple[RubyQueueName, RubyQueueName]:
    return system_of("sidekiq", sidekiq_namespace), system_of("resque", resque_namespace)


on_queue = opens(
    "place", _named,
    option("--sidekiq QUEUE", "Sidekiq's queue."),
    option("--resque QUEUE", "Resque's queue."),
    *NAMESPACE_OPTIONS,
)  # fmt: skip
on_systems = opens("systems", _systems, *NAMESPACE_OPTIONS)


@group("ruby", "queues", "push --sidekiq default HardWorker 1 x", "peek --resque low")
def ruby() -> None:
    """Show and fill the queues of Resque and Sidekiq.

    To run the jobs, use 'jobq worker --sidekiq QUEUE' or 'jobq worker --resque QUEUE'.
    """


@command(
    "push",
    "--sidekiq default HardWorker 1 x --delay 5m",
    "--resque low Archive 7",
    "--sidekiq default HardWorker --retry 3 --version 8",
    group=ruby,
    server="starts",
)
@click.argument("job_class", metavar="CLASS")
@click.argument("words", metavar="[ARG]...", nargs=-1)
@on_queue
@option("--delay DURATION", "Sidekiq: run after this delay at the earliest.")
@option("--at TIME", "Sidekiq: earliest start time, such as 2026-11-21T08:00, or epoch seconds.")
@option("--retry", "Sidekiq: number of retries.  [default: 25]", type=click.IntRange(0))
@option("--jid TEXT", "Sidekiq: the job's id.  [default: random]")
@option(
    "--version",
    "Sidekiq's version, which determines the unit of its times.",
    type=click.IntRange(6, 8),
    default=7,
)
def push(
    session: Session, place: RubyQueueName, job_class: str, words: tuple[str, ...], version: Any, **given: Any
) -> None:  # fmt: skip
    """Enqueue a job of CLASS for a Sidekiq or Resque worker.

    An ARG that is valid JSON is read as JSON, and any other ARG as text.
    """
    call = from_words(words)
    if call.kwargs:
        raise ConfigError(
            f"Ruby jobs don't support keyword arguments: {', '.join(call.kwargs)}; pass a JSON object as ARG"
        )
    given = {name: value for name, value in given.items() if value is not None}
    if place.system == "sidekiq":
        if "at" in given:
            given["at"] = moment_of(given["at"])
        queue = SidekiqQueue(
            place.queue, session.client, namespace=place.namespace, version=version
        )
        jid = queue.push(job_class, call.args, **given)
        session.say({"jid": jid, "queue": place.queue}, f"{jid} pushed to {place}")
        return
    if given:
        raise ConfigError(f"Resque has no --{next(iter(given))}; leave it out, or use --sidekiq")
    ResqueQueue(place.queue, session.client, namespace=place.namespace).push(job_class, call.args)
    session.say({"queue": place.queue}, f"pushed to {place}")


@command("queues", "", "--sidekiq-namespace app --json", group=ruby)
@on_systems
def queues(session: Session, systems: Sequence[RubyQueueName]) -> None:
    """Count the jobs of Ruby's queues.

    waiting: in the Ruby queue. taken: fetched by a worker of jobq but not yet enqueued. held: waiting, running or
    awaiting a retry in the jobq queue of the same name. Ruby processes can't see taken and held jobs.
    """
    records = _queues(session, systems)
    empty = "no queue of Sidekiq or Resque here; check --url and the namespaces"
    session.say_all(records, Listing(("system", "queue", "waiting", "taken", "held"), empty=empty))


@command("peek", "--sidekiq default", "--resque low --limit 5", group=ruby)
@on_queue
@offset_option
@limit_option(100, 1000)
def peek(session: Session, place: RubyQueueName, offset: int, limit: int) -> None:
    """Print the jobs of a Ruby queue in Ruby's format, next job first."""
    kind = SidekiqQueue if place.system == "sidekiq" else ResqueQueue
    queue: RubyQueue = kind(place.queue, session.client, namespace=place.namespace)
    jobs = queue.peek(offset, limit)
    for raw in jobs:
        text = raw.decode("utf-8", "backslashreplace")
        session.say({"job": text}, text)
    if not jobs:
        session.note(f"{place} has no waiting jobs")


@command(
    "claims",
    "--sidekiq default",
    "--sidekiq default --give-back --yes",
    group=ruby,
    operation="ruby-give-back",
)
@on_queue
@option("--give-back", "Return claimed jobs to the front of the Ruby queue.")
@yes_option
def claims(session: Session, place: RubyQueueName, give_back: bool, yes: bool) -> None:
    """List jobs that jobq workers have taken off a Ruby queue but not yet enqueued.

    A claim usually ends after a moment. It lasts longer if the key of a job has reached its limit of waiting messages,
    or if the worker died and no other worker has taken over yet. With --give-back, a job runs twice if its worker died
    just after enqueueing the job. So use --give-back only if no jobq worker will serve the queue again.
    """
    taken = Claims(session.client, place)
    waiting = taken.waiting()
    if give_back and waiting:
        session.confirmed(f"Return {sum(claim.njobs for claim in waiting)} jobs?", yes)
        with session.operation("", f"{place.system}:{place.queue}") as performed:
            performed.set(number=sum(claim.njobs for claim in waiting))
            for claim in waiting:
                taken.give_back(claim.claim_id)
    records = [{**claim._asdict(), "returned": give_back} for claim in waiting]
    for record in records:
        record["lease_until"] = output.moment(record.pop("lease_at"))
    columns = ("claim:claim_id", "jobs:njobs", "lease until:lease_until", "returned")
    empty = "no claims: all taken jobs were delivered"
    session.say_all(records, Listing(columns, empty=empty))


@command("workers", "", "--json", group=ruby)
@on_systems
def workers(session: Session, systems: Sequence[RubyQueueName]) -> bool:
    """List the workers of Ruby's queues, as Ruby's dashboards do.

    Exit code 1: there is no worker.
    """
    sidekiq, resque = (system.namespace for system in systems)
    processes = *sidekiq_processes(session.client, sidekiq), *resque_workers(session.client, resque)
    records = [
        {**structs.asdict(process), "queues": ",".join(process.queues)} for process in processes
    ]
    empty = "no worker of Sidekiq or Resque here; check --url and the namespaces"
    session.say_all(records, Listing(("system", "worker", "queues", "busy"), empty=empty))
    return bool(records)


def _queues(session: Session, systems: Sequence[RubyQueueName]) -> Iterator[RubyQueueRecord]:
    for system in systems:
        try:
            listed = queues_of(session.client, system)
        except ScriptError as error:
            session.problem(system.key("queues"), error)
            continue
        for ruby_queue in listed:
            try:
                yield queue_record(session.client, ruby_queue)
            except ScriptError as error:
                session.problem(str(ruby_queue), error)
