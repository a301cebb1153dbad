"""`jobq worker`: run jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from logging import INFO
from typing import Any

import click

from jobq.cli.intake import check_jobs, intake_of, intake_options
from jobq.cli.load import load
from jobq.cli.options import DURATION, Function, command, import_option, option
from jobq.cli.session import Session
from jobq.config import WorkerSettings, parse_queues

LEVELS = ("debug", "info", "warning", "error")
DEFAULTS = {field.name: field.default for field in fields(WorkerSettings)}
EXAMPLES = """
    jobq worker --import app.jobs
    jobq worker --import app.jobs --queues high:6,low --processes 4
    jobq worker --import app.jobs --queues high,low --strict --lease 30s
    jobq worker --import app.jobs --burst --log-format json
    jobq worker --import app.jobs --sidekiq default --resque resque:low
"""


def setting(
    name: str, text: str, type: Any = None, default: str | None = None, **more: Any
) -> Callable[[Function], Function]:
    """An option that is left to WorkerSettings when it isn't given."""
    shown = default if default is not None else DEFAULTS[name.replace("-", "_")]
    return option(f"--{name}", type=type, help=text, show_default=str(shown), **more)


@command("worker", examples=EXAMPLES)
@import_option
@option("-q", "--queues", metavar="NAMES", shared=("JOBQ_QUEUES",), show_default="those that the imported jobs declare",
        help="Queues in turn, low,high, or by weight, high:6,low:1.")  # fmt: skip
@option("--strict", is_flag=True, help="Drain queues in the order given.")
@setting("processes", "Children.", int, "one per processor")
@setting("concurrency", "Async jobs at once in a child.", int)
@setting("lease", "How long a lock lasts unless renewed.", DURATION, "15s")
@setting("burst", "Leave when there is nothing to do.", is_flag=True, default="stay")
@setting("crash-limit", "Crashes that make a message dead.", int)
@setting("prefetch", "Most messages a child takes at once.", int)
@setting("prefetch-ms", "How much work, in ms, a child takes at once.", int)
@setting("max-jobs", "Replace a child after so many jobs.", int, "never")
@setting("max-age", "Replace a child after this time.", DURATION, "never")
@setting("max-memory", "Replace a child over so many MB.", int, "never")
@setting("shutdown-timeout", "How long TERM waits for running jobs.", DURATION, "30s")
@setting("unknown-for", "Retry messages whose job isn't known here for so long.", DURATION, "15m")
@setting("unknown-wait", "Wait at most this long between two such retries.", DURATION, "1m")
@intake_options
@option("--name", help="Shown in events and logs.  [default: host and process id]")
@option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="Least level."
)
@option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log lines.",
)
def worker(
    session: Session, modules: tuple[str, ...], log_level: str, log_format: str, **given: Any
) -> int:
    """Run jobs, each at least once, until TERM or INT.

    TERM and INT drain, a second one hurries, a third kills; TSTP takes no more, CONT goes on; TTIN dumps
    stacks; HUP replaces the children one by one.
    """
    from jobq.client.connection import set_default_client
    from jobq.jobs.middleware import everywhere
    from jobq.jobs.registry import default_registry
    from jobq.observe import sentry
    from jobq.observe.log import JobLog, Logging
    from jobq.worker.process import Hooks
    from jobq.worker.run import run_worker

    intake = intake_of(session, given)
    settings = settings_of(given)
    logs = Logging(log_level, log_format)
    # Jobs that enqueue reach the server that this worker was pointed at.
    set_default_client(session.client)
    if logs.own.isEnabledFor(INFO):
        everywhere.add(JobLog())
    if intake:
        everywhere.add(intake.rules)

    def import_all() -> None:
        load(modules)
        logs.settle()
        check_jobs(intake, default_registry)

    hooks, source = Hooks(sentry.start, sentry.finish), intake and intake.source
    return run_worker(settings, session.client, default_registry, import_all, hooks, source)


def settings_of(given: dict[str, Any]) -> WorkerSettings:
    """Options as settings; those not given keep their defaults."""
    lease, age, patience = given.pop("lease"), given.pop("max_age"), given.pop("shutdown_timeout")
    queues, memory = given.pop("queues"), given.pop("max_memory")
    unknown_for, unknown_wait = given.pop("unknown_for"), given.pop("unknown_wait")
    wanted = {
        **given,
        "unknown_for_s": unknown_for,
        "unknown_wait_s": unknown_wait,
        "max_memory_mb": memory,
        "queues": parse_queues(queues) if queues else None,
        "lease_ms": round(lease * 1000) if lease is not None else None,
        "max_age_s": age,
        "shutdown_timeout_s": patience,
    }
    return WorkerSettings(**{name: value for name, value in wanted.items() if value is not None})
