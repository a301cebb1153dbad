"""Loads the jobs, checks that forking is safe, and supervises the children."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from jobq.client.connection import Client
from jobq.client.functions import check_library
from jobq.client.runtime import runtime
from jobq.config import MAX_NAME, WorkerSettings
from jobq.errors import ConfigError, JobqError, UnavailableError
from jobq.jobs.context import JobLines
from jobq.jobs.forks import Home
from jobq.jobs.registry import Registry
from jobq.queue import presence
from jobq.queue.outage import switch_off_buffers
from jobq.queue.partitions import MAX_IN_MAP
from jobq.queue.queue import Queue
from jobq.worker import exit_codes, logger
from jobq.worker.child import Hooks, PoolPlan, described
from jobq.worker.feeder import Source
from jobq.worker.heartbeat import declared, warn_of_eviction, warn_of_unknown, warn_of_unserved
from jobq.worker.inherited import OpenConnections
from jobq.worker.partition_watch import queues_to_serve
from jobq.worker.queue_health import QueueHealth
from jobq.worker.start_errors import tell
from jobq.worker.supervisor import Supervisor

#: Queues that a message source, or a change of partitions, may add to the worker later. Drained partitions still count,
#: because children name queues by their numbers, which must not change while a child runs.
MAX_LATER_QUEUES = MAX_IN_MAP
#: How long a worker tries to reach the server before it reports a failure.
FIRST_TRY_S = 1.0
HANDLED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP,
    signal.SIGCONT, signal.SIGTTIN, signal.SIGCHLD,
)  # fmt: skip


def run_worker(
    settings: WorkerSettings,
    client: Client,
    registry: Registry,
    load: Callable[[], Sequence[str]] = tuple,
    hooks: Hooks | None = None,
    source: Source | None = None,
    log: JobLines | None = None,
) -> int:
    """Run a worker until it is stopped; return its exit code.

    Call this function from the main thread of a separate process. It waits until the server answers. In burst mode, or
    with an embedded server, it raises UnavailableError instead.

    Args:
        load: Imports the modules with jobs and returns their names. If it raises an exception, the worker doesn't
            start.
        hooks: Functions and objects of other packages; see Hooks.
        source: Enqueues messages from another system, in a separate process.
        log: Writes a log line for each run.
    """
    if not settings.name:
        settings = replace(settings, name=f"{socket.gethostname()}:{os.getpid()}")
    # A job is done once its follow-ups are enqueued: they must not exist in a child's memory only.
    switch_off_buffers()
    connections = OpenConnections()
    if not _loaded(load, registry, settings.allow_threads):
        return exit_codes.BOOT
    if not settings.queues:
        settings = replace(settings, queues=tuple((name, 1) for name in declared(registry)))
    _await_server(client, settings)
    warn_of_unserved(client, registry, settings)
    if source is None:
        warn_of_unknown(client, registry, settings)
    warn_of_eviction(client)
    if client.settings.functions:
        check_library(client)
    queues = queues_to_serve(
        client, settings.queues, registry.partitions(), looks_again=not settings.burst
    )
    settings = replace(settings, queues=queues)
    _note_on_dead(client, registry, settings)
    settings = _with_own_name(settings, client)
    for opened in list(runtime.clients):  # they connect again where they are used
        opened.close()
    connections.warn_of_new()
    alive_read, alive_write = os.pipe()
    health = QueueHealth(len(settings.queues), MAX_LATER_QUEUES)
    plan = PoolPlan(
        settings, client, registry, hooks or Hooks(), alive_read, alive_write, health, log
    )
    with _signals() as woken:
        try:
            return Supervisor(plan, woken, source).supervise()
        finally:
            os.close(alive_read)
            os.close(alive_write)


def _await_server(client: Client, settings: WorkerSettings) -> None:
    """Try to reach the server until it answers. Log an error after the first failed try.

    A worker in burst mode raises UnavailableError instead. So does a worker with an embedded server, because starting
    that server already includes a wait.
    """
    if settings.burst or not client.settings.url:
        client.command("PING")
        return
    usual_s = client.patience_s
    client.patience_s = min(FIRST_TRY_S, usual_s)
    said = False
    while True:
        try:
            client.command("PING")
            break
        except UnavailableError as error:
            if not said:
                logger.error("%s; this worker starts when the server answers", error)
            said = True
        finally:
            client.patience_s = usual_s
    if said:
        logger.warning("the server answers")


def _with_own_name(settings: WorkerSettings, client: Client) -> WorkerSettings:
    """Return the settings, with another worker name if a live worker already has the name."""
    host, pid = socket.gethostname(), os.getpid()
    facts: dict[str, Any] = {
        "host": host, "pid": pid, "queues": [name for name, _ in settings.queues],
        "lease_ms": round(settings.lease_s * 1000),
    }  # fmt: skip
    try:
        facts["seen_at"] = client.clock_ms()
        other = presence.claim_name(client, settings.name, facts)
    except JobqError as error:
        logger.debug("can't check whether another worker has this name: %s", error)
        return settings
    if other is None or (other.host == host and other.pid != pid and not _runs(other.pid)):
        return settings
    own = f"{settings.name[: MAX_NAME - 5]}{presence.TWIN}{secrets.token_hex(2)}"
    logger.warning(
        "worker %s on %s (process %d) has the same name as this worker, or had it until a moment ago: this worker is "
        "shown as %s; orders for %s go to both. Give each worker a different --name",
        other.name, other.host or "another host", other.pid, own, other.name,
    )  # fmt: skip
    return replace(settings, name=own)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _note_on_dead(client: Client, registry: Registry, settings: WorkerSettings) -> None:
    """Before the first job runs, configure queues to enqueue an `on_dead` call for each dead-lettered message.

    If the server is unreachable, the supervisor does this later.
    """
    if any(job.settings.on_dead is not None for job in registry):
        with suppress(JobqError):
            for name, _ in settings.queues:
                Queue(name, client).admin.call_on_dead()


def _loaded(load: Callable[[], Sequence[str]], registry: Registry, allow_threads: bool) -> bool:
    before, home = set(threading.enumerate()), Home()
    try:
        modules = load()
        home.only()
    except ConfigError:
        raise
    except (Exception, SystemExit):
        tell(f"the modules with jobs can't be loaded:\n{traceback.format_exc()}")
        return False
    threads = [thread for thread in threading.enumerate() if thread not in before]
    if threads:
        names = ", ".join(described(thread) for thread in threads)
        what = (
            f"a thread is still running after the modules were loaded: {names}; "
            "children are forked, and a fork doesn't copy threads. "
        )
        if not allow_threads:
            tell(
                f"{what}Start the thread in the job, or at first use; --allow-threads accepts the risk"
            )
            return False
        logger.warning(
            "%sIf a thread holds a lock during a fork, the lock stays locked in the new child", what
        )
    if not len(registry):
        # The worker would not know any job, and would retry each message until it is dead.
        what = " and ".join(modules)
        what = f"no @job is declared in {what}" if what else "no job is registered"
        tell(f"{what}; name the modules that hold jobs with --import")
        return False
    return True


@contextmanager
def _signals() -> Iterator[int]:
    """Make each signal write a byte into a pipe; yield the pipe's readable end."""
    woken, filled = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(filled, False)
    # First: a signal between the two would otherwise be lost.
    wakeup = signal.set_wakeup_fd(filled, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in HANDLED}
    try:
        yield woken
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(filled)
