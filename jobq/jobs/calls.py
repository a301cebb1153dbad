"""The calls that a batch job gets together: `def send(calls: Calls[str, int]) -> None`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, ParamSpec, overload

from jobq.errors import ConfigError
from jobq.jobs.codec import FLOW_HEADER
from jobq.jobs.context import Call, Context
from jobq.jobs.job import Args
from jobq.queue.types import Message

P = ParamSpec("P")


def batch_of(call: Call) -> tuple[str, str | None]:
    """Return the job and the key of a call. Calls with the same pair can share a batch.

    If the key can't be computed, the call runs alone.
    """
    job = call.job
    if job.settings.key is None:
        return job.name, None
    try:
        args, kwargs = call.args, call.kwargs
        if FLOW_HEADER in call.headers:
            args, kwargs = job.decoded(args, kwargs)
        return job.name, job.key_of(args, kwargs)
    except Exception:
        return job.name, f"\0{call.message.mid}"  # not a valid key


class BatchedCall(Context):
    """One call of a batch, with the attributes and methods of `jobq.Context` for the call's message.

    Attributes:
        args: The positional arguments.
        kwargs: The keyword arguments.
    """

    __slots__ = ("args", "is_lost", "kwargs")

    def __init__(self, call: Call, *more: Any) -> None:
        super().__init__(call, *more)
        self.args: Sequence[Any] = call.args
        self.kwargs: dict[str, Any] = call.kwargs
        #: Whether the worker knows that the message was cancelled or taken over.
        self.is_lost: Callable[[], bool] = bool

    def lease_valid(self) -> bool:
        """Return whether this process still considers the attempt's lease valid. The server isn't asked."""
        return not self.is_lost() and super().lease_valid()


class BatchContext(Context):
    """The context of a batch's run, for middleware and logs. Its properties describe the first call.

    Attributes:
        calls: All calls of the batch.
    """

    __slots__ = ("_owners", "calls")

    of_batch = True

    def __init__(
        self, call: Call, calls: Calls[...], worker: str, owners: Sequence[Call] = ()
    ) -> None:
        super().__init__(call, worker=worker)
        self.calls, self._owners = calls, owners

    def is_of(self, call: Call) -> bool:
        """Return whether `call` was fetched for this batch, even if a limit then postponed it."""
        return any(call is owner for owner in self._owners)

    @property
    def mid(self) -> str:
        """The first message's id, and the number of other messages: `k3J9 (+99)`."""
        more = len(self.calls) - 1
        return f"{self._call.message.mid} (+{more})" if more else self._call.message.mid

    @property
    def token(self) -> str:
        """Return '', because the batch isn't the attempt of one message."""
        return ""


class Calls(Sequence[BatchedCall], Generic[P]):
    """The calls that a batch job's function runs together. Each call has its own outcome.

    When the function returns, all open calls are done. When the function raises an exception, all open calls fail.
    Threads of the function may share this object.

    Attributes:
        results: Results of completed calls, by index.
        errors: Errors of failed calls, by index.
    """

    def __init__(
        self,
        calls: Sequence[BatchedCall],
        on_end: Callable[[int, bool], object] | None = None,
        lock: AbstractContextManager[object] | None = None,
        is_over: Callable[[], bool] = bool,
    ) -> None:
        self._calls, self._on_end = tuple(calls), on_end
        # `is_over` is set before the lock is taken: by then each ended call has been delivered.
        self._lock, self._is_over = lock or threading.RLock(), is_over
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}

    @classmethod
    def of(cls, *calls: Args[P, Any]) -> Calls[P]:
        """Return calls to pass to the function in a test: `send(Calls.of(send.args("a", 1)))`."""
        return cls([_direct(number, call) for number, call in enumerate(calls, 1)])

    def done(self, index: int, result: Any = None) -> None:
        """End a call as done. The result is stored if the job has a `result_ttl`.

        Raises ConfigError if the call has already ended, or the function has returned.
        """
        self._end(index, self.results, result)

    def fail(self, index: int, error: BaseException) -> None:
        """Fail one call with `error`. The other calls aren't affected.

        The job's rules decide whether the call is retried.

        `error` may be `Retry`, `Snooze` or `Dead`. Raises ConfigError if the call has already ended, or the function
        has returned.
        """
        if not isinstance(error, BaseException):
            raise TypeError(
                f"calls.fail({index!r}, {error!r:.80}): the error must be an exception; pass RuntimeError(…)"
            )
        self._end(index, self.errors, error)

    @property
    def open(self) -> list[int]:
        """Indexes of the open calls, which have neither a result nor an error."""
        return [at for at in range(len(self)) if at not in self.results and at not in self.errors]

    def _end(self, index: int, ends: dict[int, Any], value: Any) -> None:
        at = range(len(self))[index]
        with self._lock:
            if self._is_over():
                raise ConfigError(
                    f"call {at} can't end now, because its batch has already ended; wait for the function's threads "
                    "before the function returns"
                )
            if at in self.results or at in self.errors:
                how = "done" if at in self.results else "failed"
                raise ConfigError(f"call {at} of the batch is already {how}; end each call once")
            ends[at] = value
            is_last = len(self.results) + len(self.errors) == len(self)
            if self._on_end is not None:
                self._on_end(at, is_last)

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, index: int) -> BatchedCall: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchedCall]: ...
    def __getitem__(self, index: int | slice) -> BatchedCall | Sequence[BatchedCall]:
        return self._calls[index]

    def __repr__(self) -> str:
        job = f" of {self[0].job}" if self else ""
        return f"<{len(self)} calls{job}, {len(self.open)} open>"


def _direct(number: int, call: Args[..., Any]) -> BatchedCall:
    """Return a call for a test, without a message in a queue."""
    settings = call.target.settings
    message = Message(f"call-{number}", b"", 1, 0, number, f"call-{number}", "", 0)
    headers = dict(settings.headers)
    return BatchedCall(
        Call(call.target, message, settings.queue, list(call.args), call.kwargs, headers, 0)
    )
