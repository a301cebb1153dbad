"""The running attempt (`jobq.current()`): its facts, its reports to the server, and its logger."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol

import msgspec

from jobq.client.clock import wall
from jobq.client.names import base_of, partition_in
from jobq.errors import CodecError, ConfigError, LeaseLostError, NoCurrentJobError
from jobq.events import trace_id
from jobq.jobs.codec import MEMBER_SIGN, decode_any, encode_plain
from jobq.jobs.job import Job
from jobq.jobs.membership import MemberFlow
from jobq.jobs.progress import progress_text
from jobq.jobs.retry import Decision
from jobq.jobs.ticks import tick_of
from jobq.queue.types import Message

#: (queue, mid, token, text) -> whether the token is still valid.
ReportProgress = Callable[[str, str, str, str], bool]

#: (queue, mid, token, value) -> the kept value: '' if there is none, None if the token is no longer valid. An empty
#: value only reads.
Checkpoint = Callable[[str, str, str, str], str | None]

#: Returns the flow of a member, given its context.
FlowOf = Callable[["Context"], MemberFlow]

#: Maximum size of a checkpoint as JSON, in bytes.
MAX_CHECKPOINT = 16_384
PROGRESS_EVERY_S = 0.5
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


#: Logs failed attempts. The Sentry middleware silences it, because the middleware reports failures itself.
failure_log = logging.getLogger("jobq.job")


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's fields to `extra`. Fields passed in the logging call take precedence."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge both `extra` dicts, because the standard adapter drops the fields of the logging call."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Call(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A decoded message, ready to run.

    Attributes:
        sealed: Whether to sign or encrypt the call's result and errors.
    """

    job: Job[..., Any]
    message: Message
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, str]
    enqueued_at: int
    sealed: bool = False

    def __repr__(self) -> str:
        # Like in Message, arguments and headers aren't shown: only the job should see them.
        return f"<Call of {self.job.name!r}, {self.message!r}>"

    @property
    def age_s(self) -> float:
        """Seconds since the enqueue, by the producer's and this host's clocks; 0 if the enqueue time is unknown."""
        return wall.s() - self.enqueued_at / 1000 if self.enqueued_at else 0.0

    @property
    def failures(self) -> int:
        """The number of failed attempts, counting this attempt as failed. Crashes are counted separately."""
        return max(1, self.message.attempt - self.message.ncrashes)


#: Size of the memory in which a JobLines buffers lines, after the number of their bytes. At most the size of an atomic
#: write to a pipe.
LINES_SIZE = min(4096, select.PIPE_BUF)


class JobLines(Protocol):
    """Logs finished runs. Lines are buffered briefly, so that many are written together."""

    def keep_in(self, memory: memoryview) -> None:
        """In a child, buffer lines in `memory` (LINES_SIZE bytes), so that they aren't lost if the child dies."""

    def started(self, call: Call) -> None:
        """Log a start immediately."""

    def done(self, call: Call, seconds: float) -> None:
        """Log that a run is done."""

    def flush(self) -> None:
        """Write buffered lines."""

    def write_rest(self, memory: memoryview) -> None:
        """In the supervisor, write the log lines that a dead child left in this memory."""


class Context:
    """The running attempt of a message, with methods that report to the server."""

    __slots__ = (
        "_call",
        "_checkpoint",
        "_decision",
        "_flow",
        "_flow_of",
        "_held",
        "_keep",
        "_lease_deadline",
        "_logger",
        "_report",
        "_reported_at",
        "_trace",
        "worker",
    )

    #: Whether this is the context of a whole batch of calls.
    of_batch = False

    def __init__(
        self,
        call: Call,
        report: ReportProgress | None = None,
        lease_deadline: Callable[[], float] | None = None,
        worker: str = "",
        keep: Checkpoint | None = None,
        flow_of: FlowOf | None = None,
    ) -> None:
        self._call = call
        self._flow_of = flow_of
        self._flow: MemberFlow | None = None
        self._keep = keep
        self._checkpoint: str | None = None
        self.worker = worker
        self._report = report
        self._lease_deadline = lease_deadline
        self._held = True
        self._reported_at = 0.0
        self._decision: tuple[BaseException, Decision] | None = None
        self._logger: JobLogger | None = None
        self._trace: tuple[str, str] | None = None

    @property
    def job(self) -> str:
        """The job's name."""
        return self._call.job.name

    @property
    def queue(self) -> str:
        """The queue that the message came from."""
        return base_of(self._call.queue)

    @property
    def partition(self) -> str:
        """The partition of the queue that the message came from, such as `low/3`; '' if the queue has none."""
        return partition_in(self._call.queue)

    @property
    def mid(self) -> str:
        """The message's id."""
        return self._call.message.mid

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1. Crashed attempts count."""
        return self._call.message.attempt

    @property
    def failures(self) -> int:
        """The number of failed attempts, counting this attempt as failed. `retries` limits it; crashes don't count."""
        return self._call.failures

    @property
    def max_attempts(self) -> int:
        """The number of failures after which the message is dead-lettered: `retries + 1`."""
        return self._call.job.settings.nretries + 1

    @property
    def fence(self) -> int:
        """A number that grows with each message that the queue hands out, for conditional writes in other systems."""
        return self._call.message.fence

    @property
    def token(self) -> str:
        """A secret that proves to the server that this attempt holds the message."""
        return self._call.message.token

    @property
    def generation(self) -> str:
        """An id that all attempts of a message share.

        A revived message, or a later message with the same mid, has a new id. Use mid and generation together as an
        idempotency key.
        """
        return self._call.message.generation

    @property
    def enqueued_at(self) -> int:
        """When the message was enqueued, in epoch ms by the producer's clock; 0 if that is unknown."""
        return self._call.enqueued_at

    @property
    def tick(self) -> datetime | None:
        """The due time of the tick that enqueued this call, in the schedule's zone; None if no schedule enqueued it."""
        tick = tick_of(self._call.headers)
        return tick.at if tick else None

    @property
    def flow(self) -> MemberFlow:
        """The flow that this message is a member of. Raises ConfigError for other messages."""
        if self._flow is None:
            if self._flow_of is None or not self.mid.startswith(MEMBER_SIGN):
                raise ConfigError(
                    f"message {self.mid} is not part of a flow; start a flow with jobq.Flow"
                )
            self._flow = self._flow_of(self)
        return self._flow

    @property
    def hard_limit(self) -> float | None:
        """The time limit of a run in seconds; None if there is no limit."""
        return self._call.job.settings.hard_timeout or self._call.job.settings.timeout

    @property
    def missed(self) -> int:
        """The number of the schedule's earlier ticks that never ran, because no worker enqueued them in time."""
        tick = tick_of(self._call.headers)
        return tick.missed if tick else 0

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the message."""
        return self._call.headers

    @property
    def size(self) -> int:
        """The size of the message's content in bytes."""
        return len(self._call.message.content)

    @property
    def trace_id(self) -> str:
        """The trace id of this attempt, or else of the enqueuer's trace, as 32 hex digits; '' if both are missing."""
        if self._trace is not None:
            return self._trace[0]
        return trace_id(self._call.headers) if self._call.headers else ""

    @property
    def span_id(self) -> str:
        """The 16 hex digits of this attempt's span; '' if the attempt isn't traced."""
        return self._trace[1] if self._trace else ""

    def set_trace(self, trace_id: str, span_id: str) -> None:
        """Set the trace and the span of this attempt, which log lines show. Middleware calls this."""
        self._trace = (trace_id, span_id)

    @property
    def lease_left(self) -> float:
        """Seconds until the lease ends unless it is renewed; infinite if there is no lease, as in tests."""
        if self._lease_deadline is None:
            return float("inf")
        return self._lease_deadline() - time.clock_gettime(_CLOCK)

    def lease_valid(self) -> bool:
        """Return whether this process still considers the attempt's lease valid. The server isn't asked."""
        return self._held and self.lease_left > 0

    def progress(
        self,
        done: float,
        total: float = 1,
        *,
        note: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> bool:
        """Report progress: `done` out of `total`. `Receipt.progress` and `jobq status` show it.

        At most two reports a second are sent. Others are dropped, unless they report that all is done. The note is cut
        to 1,000 bytes. Raises CodecError if `data` takes more than 2,000 bytes as JSON. Returns False if another
        attempt has taken over the message.
        """
        if not isinstance(total, int | float):
            raise ConfigError(f"total={total!r} is not a number; pass text as note=")
        fraction = done / total if total > 0 else 1.0
        now = time.monotonic()
        if self._report is None or (fraction < 1 and now - self._reported_at < PROGRESS_EVERY_S):
            return self._held
        self._reported_at = now
        text = progress_text(fraction, note, data)
        message = self._call.message
        self._held = self._report(self._call.queue, message.mid, message.token, text) and self._held
        return self._held

    def checkpoint(self, value: Any) -> bool:
        """Keep `value` for the next attempt of this message.

        Return False if another attempt has taken over the message. The value replaces the previous value, survives a
        crash of this process, and is removed when the message ends. Raises CodecError if the value isn't JSON, or takes
        more than 16 KiB. Each call is a round trip to the server.
        """
        text = encode_plain(value, "the checkpoint").decode()
        if len(text.encode()) > MAX_CHECKPOINT:
            raise CodecError(
                f"the checkpoint takes {len(text.encode()):,} bytes; at most {MAX_CHECKPOINT:,} are allowed. "
                "Store the data elsewhere and keep its location"
            )
        self._checkpoint = self._kept(text)
        self._held = self._checkpoint is not None and self._held
        return self._held

    @property
    def checkpoint_value(self) -> Any:
        """The value of the last `checkpoint` of this or an earlier attempt; None if there is none.

        The first access is a round trip to the server. Raises LeaseLostError if another attempt has taken over the
        message.
        """
        if self._checkpoint is None:
            self._checkpoint = self._kept("")
        if self._checkpoint is None:
            raise LeaseLostError(
                f"another attempt has taken over {self.mid}; end this attempt, because its outcome would be rejected"
            )
        return decode_any(self._checkpoint.encode()) if self._checkpoint else None

    def _kept(self, text: str) -> str | None:
        if self._keep is None:
            return text
        message = self._call.message
        return self._keep(self._call.queue, message.mid, message.token, text)

    @property
    def logger(self) -> JobLogger:
        """A logger with the job's name. Its records have the fields job, mid, attempt and queue."""
        if self._logger is None:
            self._logger = job_logger(self)
        return self._logger

    def decide(self, error: BaseException) -> Decision:
        """Decide how this attempt ends if it raises `error`. Repeated calls return the same decision."""
        if self._decision is None or self._decision[0] is not error:
            self._decision = (
                error,
                self._call.job.decide(self._call.failures, error, self._call.age_s),
            )
        return self._decision[1]

    def overrule(self, error: BaseException, decision: Decision) -> None:
        """Set how this attempt ends if it raises `error`. Middleware may call this."""
        self._decision = (error, decision)

    def is_of(self, call: Call) -> bool:
        """Return whether this context belongs to `call`."""
        return self._call is call

    @property
    def function_name(self) -> str:
        """The job's function, as `module.name`."""
        function = self._call.job.function
        return f"{function.__module__}.{function.__qualname__}"

    def continues_trace(self, longest_wait_s: float) -> bool:
        """Return whether this attempt continues the enqueuer's trace, rather than starting a new trace.

        It starts a new trace with trace="link", or if the message is older than `longest_wait_s`.
        """
        call = self._call
        return call.age_s <= longest_wait_s and call.job.settings.trace != "link"

    @property
    def own_policy(self) -> bool:
        """Whether the job declares a retry policy."""
        return self._call.job.settings.retry is not None

    def forget_decision(self) -> None:
        """Forget the decision about how this attempt ends, and the error that led to it."""
        self._decision = None

    def __repr__(self) -> str:
        return f"Context(job={self.job!r}, mid={self.mid!r}, attempt={self.attempt}, queue={self.queue!r})"


def job_logger(context: Context, logger: logging.Logger | None = None) -> JobLogger:
    """Return `logger`, or a logger with the job's name. It adds the attempt's fields to each record."""
    extra = {
        "job": context.job,
        "mid": context.mid,
        "attempt": context.attempt,
        "queue": context.queue,
    }
    if context.partition:
        extra["partition"] = context.partition
    return JobLogger(logger or logging.getLogger(context.job), extra)


running: ContextVar[Context] = ContextVar("jobq_context")


def current() -> Context:
    """Return the context of the running job; raise NoCurrentJobError outside a job."""
    try:
        context = running.get()
    except LookupError:
        raise NoCurrentJobError from None
    if context.of_batch:
        raise NoCurrentJobError(
            f"{context.job} runs many calls together, so there is no current call; use calls[i] in the job's function, "
            "such as calls[i].mid or calls[i].logger"
        )
    return context
