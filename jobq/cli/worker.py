"""`jobq worker`: run jobs, including Sidekiq and Resque jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial, reduce
from logging import INFO
from typing import Any, NamedTuple

import click

from jobq.cli import exits
from jobq.cli.arguments import names_of
from jobq.cli.modules import load, require
from jobq.cli.options import (
    DURATION,
    NAMESPACE_OPTIONS,
    Function,
    import_option,
    option,
    queues_option_of,
)
from jobq.cli.reload import Sources
from jobq.cli.session import Session, command
from jobq.client.connection import connect, set_default_client
from jobq.config import WorkerSettings, parse_queues
from jobq.durations import listed
from jobq.errors import ConfigError
from jobq.jobs.crashes import MonitorListener
from jobq.jobs.middleware import everywhere
from jobq.jobs.registry import Registry, default_registry
from jobq.limits.in_worker import SlotKeeper
from jobq.metrics.serving import fetch, parse_endpoint
from jobq.observe import otel, sentry
from jobq.observe.log import Logging
from jobq.protocols.ruby.intake import source
from jobq.protocols.ruby.queue_records import usable_queues
from jobq.protocols.ruby.retries import RubyJobCounts, RubyRetries
from jobq.protocols.ruby.settings import (
    IntakeSettings,
    expanded,
    parse_names,
    parse_queue_names,
)
from jobq.schedules.declared import without_job
from jobq.schedules.scheduler import Scheduler
from jobq.worker.feeder import Source

_OPTIONS = (
    option(
        "--sidekiq QUEUES",
        "Move jobs from these Sidekiq queues to the jobq queues of the same names: QUEUE, or QUEUE,WEIGHT, or '*'.",
        multiple=True,
    ),
    option(
        "--resque QUEUES",
        "Move jobs from these Resque queues: QUEUE, a pattern such as '*', or '!QUEUE' to exclude a queue.",
        multiple=True,
    ),
    *NAMESPACE_OPTIONS,
    option(
        "--ruby-job CLASS=JOB",
        "Run this Ruby class as JOB.  [default: the job of the same name]",
        multiple=True,
    ),
    option("--ruby-url URL", "URL of the server with the Ruby queues.  [default: --url]"),
    option(
        "--ruby-backlog",
        "Pause fetching while a queue has this many ready messages, or a second of work.",
        type=click.IntRange(1, 1_000_000),
        default=1000,
    ),
    option("--ruby-dead", "Also add dead jobs to Sidekiq's dead set or Resque's failed list."),
)


class Burst(click.ParamType["bool | str"]):
    """Parses --burst: `retries` or `ready`. In settings, true and false are also allowed."""

    name = "burst"

    def convert(self, value: Any, param: Any, ctx: Any) -> bool | str:
        """Return the value for WorkerSettings.burst."""
        text = str(value).lower()
        if text in ("retries", "ready"):
            return text == "retries" or text
        return bool(click.BOOL.convert(value, param, ctx))


class FromRuby(NamedTuple):
    """A source of Ruby jobs, and the middleware for them."""

    source: Source
    rules: RubyRetries
    names: dict[str, str]


def intake_options(function: Function) -> Function:
    """Add the options for running Ruby jobs."""
    return reduce(lambda inner, decorate: decorate(inner), reversed(_OPTIONS), function)


def intake_of(session: Session, given: dict[str, Any]) -> FromRuby | None:
    """Remove the Ruby options from `given`, and add the queues that receive Ruby jobs to the worker's queues."""
    sidekiq, resque, jobs = (given.pop(name) for name in ("sidekiq", "resque", "ruby_job"))
    namespaces = [given.pop(f"{system}_namespace") for system in ("sidekiq", "resque")]
    url, backlog, dead = (given.pop(f"ruby_{name}") for name in ("url", "backlog", "dead"))
    if not sidekiq and not resque:
        if jobs or url or dead or namespaces != [None, None]:
            raise ConfigError(
                "--ruby-… and --…-namespace need queues to fetch from; add --sidekiq or --resque"
            )
        return None

    named = {
        **parse_queue_names("sidekiq", sidekiq, namespaces[0]),
        **parse_queue_names("resque", resque, namespaces[1]),
    }
    client = session.client
    ruby = connect(settings=replace(client.settings, url=url or client.url, outage_buffer=0))
    ruby_queues = expanded(named, partial(usable_queues, ruby))
    if not ruby_queues and not given["queues"]:
        patterns = listed([repr(queue.queue) for queue in named])
        raise ConfigError(
            f"no Ruby queue matches {patterns} yet; push a job first, or name queues to serve with --queues"
        )
    lease_s = given["lease"] if given["lease"] is not None else 15.0
    settings = IntakeSettings(
        ruby_queues=tuple(ruby_queues),
        patterns={name: weight for name, weight in named.items() if name.is_pattern},
        names=parse_names(jobs), backlog=backlog, ruby_dead=dead, lease_s=max(1.0, lease_s),
    )  # fmt: skip
    known = names_of(given["queues"])
    weights: dict[str, int] = {}
    for queue, weight in ruby_queues.items():
        if queue.queue not in known:
            weights[queue.queue] = max(weight, weights.get(queue.queue, 1))
    fed = (f"{name}:{weight}" for name, weight in weights.items())
    given["queues"] = ",".join([*filter(None, [given["queues"]]), *fed])
    counts = RubyJobCounts()
    fed_by = source(client, url, settings, counts)
    return FromRuby(fed_by, RubyRetries(client, counts, ruby), settings.names)


def check_jobs(intake: FromRuby | None, registry: Registry) -> None:
    """Raise ConfigError if a Ruby class is mapped to an unknown job. Call this after all modules are loaded."""
    for ruby, job in intake.names.items() if intake else ():
        if job not in registry:
            raise ConfigError(
                f"--ruby-job {ruby}={job}: no job {job!r} here; is its module in --import?"
            )


DEFAULTS = {field.name: field.default for field in fields(WorkerSettings)}


def setting(
    name: str, text: str, type: Any = None, default: str | None = None
) -> Callable[[Function], Function]:
    """Declare an option whose default is in WorkerSettings."""
    shown = default if default is not None else DEFAULTS[name.replace("-", "_")]
    return option(f"--{name}", text, type=type, show_default=str(shown))


@command(
    "worker",
    "--import app.jobs",
    "--import app.jobs --queues high:6,low --processes 4",
    "--import app.jobs --queues high,low --strict --lease 30s",
    "--import app.jobs --processes 2 --threads 100",
    "--import app.jobs --burst --log-format json",
    "--import app.jobs --sidekiq default --resque low",
    "--import app.jobs --health 127.0.0.1:9464",
    "--check --health 127.0.0.1:9464",
    server="awaits",
)
@import_option
@queues_option_of(
    "Queues to serve in turn, low,high, or with weights, high:6,low:1; repeatable.",
    show_default="queues of the imported jobs",
)
@option("--strict", "Drain queues in the given order.")
@setting("processes", "Number of child processes to run jobs in.", int, "one per processor")
@setting("concurrency", "Concurrent async jobs per process.", int)
@setting("threads", "Concurrent sync jobs per process, each in a thread.", int)
@setting(
    "lease", "Lease duration: how long a message stays locked without a renewal.", DURATION, "15s"
)
@option(
    "--burst WHEN",
    "Exit when no message is ready; with retries, the default, only if no retry is due within a minute.",
    type=Burst(),
    is_flag=False,
    flag_value="retries",
    show_default="keep running",
)
@setting("crash-limit", "Maximum number of crashes before a message is dead.", int)
@setting("prefetch", "Maximum number of messages to prefetch per process.", int)
@setting("prefetch-time", "Amount of work to prefetch per process.", DURATION, "50ms")
@setting("max-jobs", "Replace a process after this many jobs.", int, "never")
@setting("max-age", "Replace a process after this time.", DURATION, "never")
@setting("max-memory", "Replace a process above this many MB.", int, "never")
@setting("shutdown-timeout", "How long running jobs may continue after TERM.", DURATION, "30s")
@setting(
    "unknown-job-retry-for",
    "How long to retry messages of unknown jobs.",
    DURATION,
    "15m",
)
@setting(
    "unknown-job-max-backoff", "Maximum delay between retries of unknown jobs.", DURATION, "1m"
)
@option(
    "--event-loop auto|asyncio|uvloop",
    "Event loop for async jobs; auto: uvloop if it is installed.",
    default="auto",
)
@setting("allow-threads", "Start even if a module left a thread running.", default="refuse")
@option("--no-cron", "Don't enqueue jobs of schedules; enqueued jobs still run.")
@option(
    "--health ADDRESS",
    "Serve /healthz, /readyz and /metrics at this host:port or unix:PATH.  [default: off]",
)
@option(
    "--check live|ready",
    "Check whether the worker at --health is live (the default) or ready, then exit.",
    is_flag=False,
    flag_value="live",
)
@option(
    "--metrics-labels job|queue",
    "Count per job, or only per queue for fewer series with hundreds of workers.",
    default="job",
)
@option("--reload", "Restart when a source file changes (development only).")
@intake_options
@option("--no-tracebacks", "Don't log or store tracebacks of failed attempts.")
@option("--no-charts", "Don't record a day of queue figures for the dashboard's charts.")
@option("--name TEXT", "Name in events and logs.  [default: host and process id]")
@option("--log-level debug|info|warning|error", "Minimum level to log.", default="info")
@option("--log-format text|json", "Format of log lines.", default="text")
def worker(
    session: Session, modules: tuple[str, ...], log_level: str, log_format: str, **given: Any
) -> int:
    """Run jobs until TERM or INT.

    Each job runs at least once. The first TERM or INT lets running jobs finish, the second interrupts them,
    the third kills them. After TSTP, the worker doesn't fetch messages until CONT. TTIN prints the stacks of every
    process. HUP replaces the processes one by one.
    """
    from jobq.worker.child import Hooks
    from jobq.worker.run import run_worker

    health, check, metrics_labels = (
        given.pop(name) for name in ("health", "check", "metrics_labels")
    )
    if check:
        return check_worker(session, health, check)
    if not session.settings.url:
        require(modules)  # otherwise a server would start in a wrong folder
    sources = Sources() if given.pop("reload") else None
    ticks = None if given.pop("no_cron") else Scheduler
    intake = intake_of(session, given)
    settings = settings_of(given)
    logs = Logging(log_level, log_format)
    # Jobs that enqueue reach the server that this worker was pointed at.
    set_default_client(session.client)
    log = logs.jobs if logs.own.isEnabledFor(INFO) else None
    if intake:
        everywhere.add(intake.rules)

    listeners = listeners_of(health, metrics_labels == "job")

    def import_all() -> tuple[str, ...]:
        try:
            load(modules)
        except BaseException as error:
            if sources:
                sources.add_failed(error)
            raise
        if sources:
            sources.add_imported()
        otel.refuse_exporter_threads()
        listeners.extend(crash_listeners())
        logs.settle()
        check_jobs(intake, default_registry)
        for text in without_job():
            logs.own.warning("%s", text)
        return modules

    hooks = Hooks(
        start_reports,
        finish_reports,
        SlotKeeper(),
        ticks,
        sources.changed if sources else None,
        listeners,
    )
    source = intake and intake.source
    code = run_worker(settings, session.client, default_registry, import_all, hooks, source, log)
    if sources:
        sources.restart(code)
    return code


def listeners_of(health: str | None, by_job: bool) -> list[MonitorListener]:
    """Return the listeners of the worker's monitor process.

    Args:
        by_job: True to add the label `job` to metrics.
    """
    if not health:
        return []
    from jobq.metrics.health import WorkerPages

    return [WorkerPages(parse_endpoint(health), by_job)]


def check_worker(session: Session, health: str | None, page: str) -> int:
    """Print the health of the worker at this address. Return 0 if the worker is live or ready, as `page` requires."""
    if not health:
        raise ConfigError(
            "--check needs the worker's address; use --health, or set JOBQ_WORKER_HEALTH here and for the worker"
        )
    answer = fetch(parse_endpoint(health), {"live": "/healthz", "ready": "/readyz"}[page])
    text = answer.body.decode("utf-8", "replace").strip()
    session.say({"ok": answer.status == 200, "answer": text}, text)
    return exits.OK if answer.status == 200 else exits.NO


def crash_listeners() -> list[MonitorListener]:
    """Return the listeners that report crashes to OpenTelemetry and Sentry, if the program uses these."""
    spans: list[MonitorListener] = [otel.CrashSpans()] if otel.is_wanted() else []
    return spans + ([sentry.CrashEvents()] if sentry.is_wanted() else [])


def start_reports() -> None:
    """Set up reporting to Sentry and OpenTelemetry in a child."""
    sentry.start()
    otel.start()


def finish_reports() -> None:
    """Send pending reports before a child exits."""
    sentry.finish()
    otel.finish()


def settings_of(given: dict[str, Any]) -> WorkerSettings:
    """Convert options to settings. Options that are not given keep their defaults."""
    prefetch_time = given.pop("prefetch_time")
    lease, age, patience = given.pop("lease"), given.pop("max_age"), given.pop("shutdown_timeout")
    queues, memory = given.pop("queues"), given.pop("max_memory")
    given["tracebacks"] = not given.pop("no_tracebacks")
    given["charts"] = not given.pop("no_charts")
    wanted = {
        "unknown_for_s": given.pop("unknown_job_retry_for"),
        "unknown_wait_s": given.pop("unknown_job_max_backoff"),
        **given,
        "max_memory_mb": memory,
        "queues": parse_queues(queues) if queues else None,
        "lease_s": lease,
        "prefetch_s": prefetch_time,
        "max_age_s": age,
        "shutdown_timeout_s": patience,
    }
    return WorkerSettings(**{name: value for name, value in wanted.items() if value is not None})
