"""Rows of the outbox. The program writes a row for each call. A relay reads the row and enqueues the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec

from jobq.client.clock import wall
from jobq.client.connection import default_client
from jobq.client.names import checked_queue
from jobq.client.runtime import runtime
from jobq.config import ServerSettings, parse_durability, settings_from_env
from jobq.durations import DAY_MS
from jobq.errors import CodecError, ConfigError, JobqError
from jobq.jobs.job import Arguments, Job, Outgoing
from jobq.jobs.middleware import around_enqueue
from jobq.jobs.queues import QueueLike, queue_of
from jobq.jobs.results import Receipt
from jobq.queue.mids import new_mid, users_mid
from jobq.queue.partitions import checked_number
from jobq.queue.queue import enqueue_values, given_mid
from jobq.queue.types import PER_CALL, checked_content, checked_key

#: Header with a random id. With it, the inbox distinguishes a message that was relayed twice from a newer call.
HEADER = "jobq-outbox"
DAY_S = DAY_MS / 1000


class BadRowError(JobqError):
    """A row of the outbox can never become a message."""


class OutboxRow(NamedTuple):
    """One row to insert into the outbox.

    Attributes:
        created_at: Time in epoch ms, by the program's clock.
    """

    mid: str
    queue: str
    content: bytes
    options: str
    created_at: int


class QueueOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of `Queue.enqueue_many` for one row.

    Attributes:
        new_mid: Whether the mid was generated for this row.
        partitions: The declared number of partitions of the queue.
    """

    new_mid: bool = False
    delay: float | None = None
    at: float | None = None
    on_conflict: Literal["replace", "requeue"] | None = None
    until: Literal["done", "start"] | float | None = None
    throttle: float | None = None
    debounce_max: float | None = None
    lease: float | None = None
    drop_results: bool = False
    key: str | None = None
    ordered: bool = False
    durability: str | None = None
    partitions: int | None = None


#: Options that go to the queue unchanged.
_AS_GIVEN = (
    "at", "on_conflict", "until", "throttle", "lease", "drop_results", "ordered", "durability",
)  # fmt: skip
_options_of = msgspec.json.Decoder(QueueOptions).decode
_written = msgspec.json.Encoder().encode


class StoredRow:
    """One row of the outbox, decoded. Raises BadRowError if the row can never be enqueued."""

    def __init__(
        self, number: int, mid: str, queue: str, content: bytes, options: str, created_at: int
    ) -> None:
        self.number, self.mid, self.queue, self.created_at = number, mid, queue, created_at
        try:
            self.content = bytes(memoryview(content))
            self.options = _options_of(options)
            checked_queue(queue)
            if self.options.key is not None:
                checked_key(self.options.key)
            parse_durability(self.options.durability or "memory")
            if self.options.partitions is not None:
                checked_number(self.options.partitions)
            values = enqueue_values(**self._checkable())
            users_mid(mid) if self.options.new_mid else given_mid(mid, values)
            checked_content(mid, self.content)
        except (
            ConfigError,
            CodecError,
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
        ) as error:
            raise BadRowError(f"row {number} of the outbox can't be enqueued: {error}") from error

    def _checkable(self) -> Any:
        options = self.sending(self.created_at, DAY_S)
        options.pop("durability", None)
        if options.get("ordered") and self.options.key is None:
            raise ConfigError("the option 'ordered' needs a key")
        return {**options, "key": self.options.key}

    def sending(self, now: int, dedupe_s: float) -> dict[str, Any]:
        """Return the options for `Queue.enqueue_many`, without the key.

        A delay starts when the program writes the row, so the row's age is subtracted.

        Args:
            dedupe_s: Seconds for which the server rejects the mid of a done message. Only generated mids use this.
        """
        given = self.options
        passed_s = max(0.0, (now - self.created_at) / 1000)
        options = {name: getattr(given, name) for name in _AS_GIVEN}
        if given.new_mid:
            options["until"] = dedupe_s
        elif not (given.until or given.throttle) and given.on_conflict != "requeue":
            # Otherwise the server would reject a recently used mid, and this row would be deleted without a run.
            options["until"] = "done"
        if given.delay is not None:
            options["delay"] = max(0.0, given.delay - passed_s)
        if given.debounce_max is not None:
            options["debounce_max"] = max(0.001, given.debounce_max - passed_s)
        return {
            name: value
            for name, value in options.items()
            if value is not None and value is not False
        }

    @property
    def line(self) -> tuple[str, str] | None:
        """Return the row's queue and key if messages with this key must run in order; otherwise None."""
        return (self.queue, self.options.key) if self.options.ordered and self.options.key else None


class _Encoding:
    """Replaces a queue and its client while calls are encoded, because encoding doesn't need a connection."""

    def __init__(self, name: str, settings: ServerSettings) -> None:
        self.name, self.settings = name, settings

    @property
    def client(self) -> _Encoding:
        return self


class _QueueOfRelay:
    """The queue in a receipt for a row of the outbox.

    It connects to the server at the first use of the receipt, because writing a row doesn't need a server.
    """

    def __init__(self, name: str, partitions: int | None) -> None:
        self.name, self._partitions = name, partitions

    def __getattr__(self, name: str) -> Any:
        return getattr(queue_of(self.name, default_client(), self._partitions), name)


def rows_of(
    job: Job[..., Any], calls: Sequence[Arguments]
) -> tuple[list[OutboxRow], list[Receipt[Any]]]:
    """Return a row and a receipt for each call. The job's middleware is applied first."""
    if job.settings.client is not None:
        raise ConfigError(
            f"client={job.settings.client!r} of {job.name} can't be stored, because the relay's --url sets the "
            f"server; leave out client"
        )
    rows: list[OutboxRow] = []

    def deliver(outgoing: Outgoing) -> list[Receipt[Any]]:
        made = list(_made(job, outgoing))
        rows.extend(made)
        queue = cast("QueueLike", _QueueOfRelay(outgoing.queue, outgoing.partitions))
        outgoing.size = sum(len(row.content) for row in made)
        return [Receipt(row.mid, "written", "", job.name, queue, job.settings) for row in made]

    send = around_enqueue(job.middleware.all_layers(), deliver)
    receipts: list[Receipt[Any]] = []
    for first in range(0, len(calls), PER_CALL):
        receipts += send(Outgoing(job, list(calls[first : first + PER_CALL])))
    return rows, receipts


def _made(job: Job[..., Any], outgoing: Outgoing) -> list[OutboxRow]:
    settings = runtime.default.settings if runtime.default is not None else settings_from_env()
    outgoing.headers[HEADER] = new_mid()
    chosen = bool(outgoing.mid) or job.unique is not None
    encoding = cast("QueueLike", _Encoding(outgoing.queue, settings))
    now = wall.ms()
    rows = []
    for mid, content, key in outgoing.prepared(encoding):
        given = job.options_with(key)
        options = QueueOptions(new_mid=not chosen, partitions=outgoing.partitions, **given)
        text = _written(options).decode()
        rows.append(OutboxRow(mid or new_mid(), outgoing.queue, content, text, now))
    return rows
