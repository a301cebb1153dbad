"""Options of `jobq worker` that take in what Ruby pushed, and what they come to."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jobq.cli.options import Function, option
from jobq.cli.session import Session
from jobq.config import parse_queues
from jobq.errors import ConfigError

if TYPE_CHECKING:
    from jobq.jobs.registry import Registry
    from jobq.protocols.ruby.rules import RubyRules
    from jobq.worker.feeder import Source

_OPTIONS = (
    option("--sidekiq", multiple=True, metavar="QUEUES",
           help="Take in Sidekiq's jobs of these queues, [namespace:]queue; each goes to the queue of its name."),
    option("--resque", multiple=True, metavar="QUEUES",
           help="The same for Resque; its namespace is resque unless given."),
    option("--ruby-job", multiple=True, metavar="CLASS=JOB",
           help="Run this Ruby class by that job; else by the one of the same name."),
    option("--ruby-url", metavar="URL", help="Server of the Ruby lists.  [default: the worker's own]"),
    option("--ruby-backlog", type=click.IntRange(1, 1_000_000), default=1000, show_default=True,
           help="Hold at most so many ready messages of a queue; about a second's work where that is less."),
    option("--ruby-dead", is_flag=True,
           help="Show what died in Sidekiq's dead set, Resque's failed list, too."),
)  # fmt: skip


class FromRuby(NamedTuple):
    """What feeds a worker, and the middleware that goes with it."""

    source: Source
    rules: RubyRules
    names: dict[str, str]


def intake_options(function: Function) -> Function:
    """All of them."""
    return reduce(lambda inner, decorate: decorate(inner), reversed(_OPTIONS), function)


def intake_of(session: Session, given: dict[str, Any]) -> FromRuby | None:
    """Take the options out of `given`, and see that the worker's queues hold those that are fed."""
    sidekiq, resque, jobs = (given.pop(name) for name in ("sidekiq", "resque", "ruby_job"))
    url, backlog, dead = (given.pop(f"ruby_{name}") for name in ("url", "backlog", "dead"))
    if not sidekiq and not resque:
        if jobs or url or dead:
            raise ConfigError(
                "--ruby-… is about what is taken in; name queues with --sidekiq or --resque"
            )
        return None
    from jobq.protocols.ruby.intake import source
    from jobq.protocols.ruby.rules import RubyRules, Tally
    from jobq.protocols.ruby.settings import IntakeSettings, parse_names, parse_places

    places = parse_places("sidekiq", sidekiq) + parse_places("resque", resque)
    lease_s = given["lease"] if given["lease"] is not None else 15.0
    settings = IntakeSettings(
        places=places, names=parse_names(jobs), backlog=backlog, ruby_dead=dead,
        lease_ms=max(1_000, round(lease_s * 1000)),
    )  # fmt: skip
    listed = [name for name, _ in parse_queues(given["queues"])] if given["queues"] else []
    fed = dict.fromkeys(place.queue for place in places if place.queue not in listed)
    given["queues"] = ",".join([*filter(None, [given["queues"]]), *(f"{name}:1" for name in fed)])
    tally = Tally()
    fed_by = source(session.client, url, settings, tally)
    return FromRuby(fed_by, RubyRules(session.client, tally), settings.names)


def check_jobs(intake: FromRuby | None, registry: Registry) -> None:
    """ConfigError for a class mapped to a job that isn't there once all modules are loaded."""
    for ruby, job in intake.names.items() if intake else ():
        if job not in registry:
            raise ConfigError(
                f"--ruby-job {ruby}={job}: no job {job!r} here; is its module in --import?"
            )
