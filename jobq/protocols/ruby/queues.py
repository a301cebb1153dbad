"""Enqueues jobs for Sidekiq and Resque workers.

::

    SidekiqQueue("default").push("HardWorker", [1, "x"], delay=60)
    ResqueQueue("low").push("Archive", [7])

If a Sidekiq or Resque worker is killed, its running job is lost.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Literal, TypedDict, Unpack

from jobq.client.bound_scripts import PER_CALL
from jobq.client.connection import Client, default_client
from jobq.client.threads import in_thread
from jobq.durations import Duration
from jobq.errors import ConfigError
from jobq.jobs.codec import MAX_NAME, encode_plain
from jobq.jobs.options import checked_options
from jobq.protocols.ruby.key_names import RubyQueueName, System, checked_queue
from jobq.protocols.ruby.lists import push

SidekiqVersion = Literal[6, 7, 8]


class SidekiqOptions(TypedDict, total=False):
    """Options of a push.

    Attributes:
        at: Earliest start time: a datetime with a zone, or epoch seconds.
        delay: Delay before the first attempt.
        retry: Maximum number of retries. True means 25, and False means none.
        retry_for: Retry only within this many seconds after the first failure.
        retry_queue: The queue for retries.
        tags: Tags that the dashboard shows.
        dead: False keeps the job out of the dead set.
        backtrace: Number of lines of the backtrace to keep.
        fields: Other fields of the job.
    """

    at: datetime | float | None
    delay: Duration | None
    retry: bool | int
    retry_for: Duration
    retry_queue: str
    tags: Sequence[str]
    dead: bool
    backtrace: bool | int
    fields: Mapping[str, Any]


class RubyQueue:
    """Base class of Sidekiq's and Resque's queues."""

    system: System

    def __init__(self, name: str, client: Client | None, namespace: str) -> None:
        self.ruby_queue: RubyQueueName = checked_queue(self.system, name, namespace)
        self.client = default_client() if client is None else client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.ruby_queue.queue!r})"

    def __len__(self) -> int:
        return int(self.client.command("LLEN", self.ruby_queue.list_key))

    def peek(self, offset: int = 0, limit: int = 100) -> list[bytes]:
        """Return waiting jobs, the next job first."""
        last = offset + limit - 1
        if self.ruby_queue.oldest == "LEFT":
            return list(self.client.command("LRANGE", self.ruby_queue.list_key, offset, last))
        return list(
            self.client.command("LRANGE", self.ruby_queue.list_key, -last - 1, -offset - 1)
        )[::-1]


class SidekiqQueue(RubyQueue):
    """A queue of Sidekiq.

    Attributes:
        version: Sidekiq's version. Version 8 records times in ms. Earlier versions record seconds, which version 8 can
            read.
    """

    system: System = "sidekiq"

    def __init__(
        self,
        name: str = "default",
        client: Client | None = None,
        *,
        namespace: str = "",
        version: SidekiqVersion = 7,
    ) -> None:
        super().__init__(name, client, namespace)
        if version not in (6, 7, 8):
            raise ConfigError(f"Sidekiq version={version!r} is unknown here; use 6, 7 or 8")
        self._in_ms = version >= 8

    def push(
        self, job_class: str, args: Sequence[Any] = (), *, jid: str | None = None,
        **options: Unpack[SidekiqOptions],
    ) -> str:  # fmt: skip
        """Push a job for which a Sidekiq worker calls `job_class.new.perform(*args)`; return its jid.

        Raises CodecError for an argument that JSON can't represent, and ConfigError for a bad option.
        """
        return self._send(job_class, [args], options, [jid or secrets.token_hex(12)])[0]

    def push_many(
        self, job_class: str, arguments: Iterable[Sequence[Any]], **options: Unpack[SidekiqOptions]
    ) -> list[str]:
        """Push one job per sequence of arguments, 1,000 per round trip; return their jids."""
        jids: list[str] = []
        for batch in _batches(arguments):
            jids += self._send(job_class, batch, options, [secrets.token_hex(12) for _ in batch])
        return jids

    async def apush(
        self, job_class: str, args: Sequence[Any] = (), *, jid: str | None = None,
        **options: Unpack[SidekiqOptions],
    ) -> str:  # fmt: skip
        """Run `push` in a thread, without blocking the event loop."""
        return await in_thread(self.push, job_class, args, jid=jid, **options)

    def _send(
        self,
        job_class: str,
        arguments: list[Sequence[Any]],
        options: SidekiqOptions,
        jids: list[str],
    ) -> list[str]:
        at, fields = _sidekiq_fields(options)
        noted = {"class": checked_class(job_class), "queue": self.ruby_queue.queue, **fields}
        now = self._now()
        noted["created_at"] = now
        if at is None or at <= time.time():
            noted["enqueued_at"] = now
            at = None
        jobs = [
            _job({**noted, "jid": jid, "args": checked_args(args)}, job_class)
            for jid, args in zip(jids, arguments, strict=True)
        ]
        if at is None:
            push(self.client, self.ruby_queue, jobs)
        elif jobs:
            scored = [part for job in jobs for part in (repr(at), job)]
            self.client.command("ZADD", self.ruby_queue.key("schedule"), *scored)
        return jids

    def _now(self) -> float:
        return time.time_ns() // 1_000_000 if self._in_ms else time.time()


class ResqueQueue(RubyQueue):
    """A queue of Resque."""

    system: System = "resque"

    def __init__(
        self, name: str, client: Client | None = None, *, namespace: str = "resque"
    ) -> None:
        super().__init__(name, client, namespace)

    def push(self, job_class: str, args: Sequence[Any] = ()) -> None:
        """Push a job for which a Resque worker calls `job_class.perform(*args)`."""
        self.push_many(job_class, [args])

    def push_many(self, job_class: str, arguments: Iterable[Sequence[Any]]) -> int:
        """Push one job per sequence of arguments, 1,000 per round trip; return their number."""
        njobs = 0
        for batch in _batches(arguments):
            jobs = [
                _job({"class": checked_class(job_class), "args": checked_args(args)}, job_class)
                for args in batch
            ]
            push(self.client, self.ruby_queue, jobs)
            njobs += len(jobs)
        return njobs

    async def apush(self, job_class: str, args: Sequence[Any] = ()) -> None:
        """Run `push` in a thread, without blocking the event loop."""
        await in_thread(self.push, job_class, args)


def checked_class(name: str) -> str:
    """Return a class name, such as `MyApp.Worker` or `App\\Jobs\\Mail`; raise ConfigError if the name is invalid."""
    usable = isinstance(name, str) and 0 < len(name) <= MAX_NAME
    if not usable or not name.isprintable() or any(c.isspace() for c in name):
        raise ConfigError(
            f"{name!r:.200} is not a class name; use 1 to {MAX_NAME} printable characters without white space, such "
            f"as Module::HardWorker"
        )
    return name


def checked_args(args: Sequence[Any]) -> list[Any]:
    """Convert a sequence of positional arguments to a list; raise ConfigError for other values, such as text."""
    if not isinstance(args, list | tuple):
        raise ConfigError(
            f"args={args!r:.80} is not a list of arguments; for one argument pass [x]"
        )
    return list(args)


def _job(fields: dict[str, Any], job_class: str) -> bytes:
    return encode_plain(fields, f"the job {job_class}")


def _sidekiq_fields(options: SidekiqOptions) -> tuple[float | None, dict[str, Any]]:
    """Convert the options to an earliest start time and to fields of the job."""
    unknown = set(options) - set(SidekiqOptions.__annotations__)
    if unknown:
        known = ", ".join(sorted(SidekiqOptions.__annotations__))
        raise ConfigError(f"there is no option {unknown.pop()!r}; options are {known}")
    given: dict[str, Any] = {**options}
    when = checked_options(
        {k: v for k, v in given.items() if k in ("at", "delay")}, declaring=False
    )
    at = when.get("at")
    if when.get("delay") is not None:
        at = time.time() + when["delay"]
    fields: dict[str, Any] = {"retry": _retry(options.get("retry", True))}
    if "retry_for" in options:
        fields["retry_for"] = round(
            checked_options({"delay": options["retry_for"]}, declaring=False)["delay"]
        )
    fields |= {name: given[name] for name in ("retry_queue", "dead", "backtrace") if name in given}
    if "tags" in options:
        fields["tags"] = list(options["tags"])
    return at, {**options.get("fields", {}), **fields}


def _retry(wanted: object) -> bool | int:
    if isinstance(wanted, bool) or (isinstance(wanted, int) and wanted >= 0):
        return wanted
    raise ConfigError(
        f"retry={wanted!r} is invalid; pass True, False, or a number of retries, 0 or more"
    )


def _batches(arguments: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    rest = iter(arguments)
    while batch := list(islice(rest, PER_CALL)):
        yield batch
