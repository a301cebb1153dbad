"""A job is a function that can be called directly, or enqueued with options.

A call is delivered at least once: it runs again if it fails, its worker dies, its lease is lost, or Redis loses writes.
`@job` is in `registry.py`. Neither `@job` nor a Job needs a server until a call is enqueued.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import cache, update_wrapper
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from msgspec import UNSET, structs

from jobq.client.clock import wall
from jobq.client.runtime import runtime
from jobq.errors import ConfigError
from jobq.habits import refuse_attribute
from jobq.jobs.argument_types import DECODE, ENCODE, ArgumentTypes
from jobq.jobs.codec import CallEncoder, Overrides, encode, remembered
from jobq.jobs.middleware import Middlewares, around_enqueue
from jobq.jobs.options import (
    TRAVELLING,
    ArgumentKey,
    JobSettings,
    Options,
    checked_options,
    key_of_call,
    option_meant,
)
from jobq.jobs.queues import QueueLike, queue_of
from jobq.jobs.results import Receipt, Receipts, ResultRefusedError, encode_result
from jobq.jobs.retry import Decision
from jobq.jobs.signing import seal_for
from jobq.jobs.unique import conflict_options, refuse, refuse_any, unique_of
from jobq.queue.mids import checked_mid, new_mid
from jobq.queue.types import PER_CALL, Enqueued

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
Arguments = tuple[Sequence[Any], dict[str, Any]]
#: One call as a message: its mid (None to generate it), its bytes and its key.
Prepared = tuple[str | None, bytes, str | None]
#: One message of enqueue_many: content, or mid and content, or mid, content and key.
Row = bytes | tuple[str | None, bytes] | tuple[str | None, bytes, str | None]
_TO_QUEUE = ("delay", "at", "lease", "ordered", "durability")


class Args(Generic[P, R]):
    """The arguments of one call, for Job.enqueue_many and for steps of flows. Job.args returns them."""

    __slots__ = ("args", "kwargs", "target")

    def __init__(self, target: Job[P, R], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.target, self.args, self.kwargs = target, args, kwargs

    @property
    def job(self) -> str:
        """The job's name."""
        return self.target.name

    def __repr__(self) -> str:
        return f"<Args of {self.job}>"


class Outgoing:
    """Up to 250 calls of one job, before they are enqueued. Middleware may change every field except the job.

    `headers` are added to each call. `mid` is set for a single call only. `size` is the encoded size in bytes.
    """

    __slots__ = ("calls", "headers", "job", "mid", "queue", "size")

    def __init__(self, job: Job[..., Any], calls: list[Arguments]) -> None:
        settings = job.settings
        self.job = job
        self.queue: str = settings.queue
        self.mid: str | None = settings.mid
        self.headers: dict[str, str] = dict(settings.headers)
        self.calls = calls
        self.size = 0

    @property
    def partitions(self) -> int | None:
        """The number of partitions that the job declares for this queue."""
        return self.job.settings.partitions if self.queue == self.job.queue else None

    def prepared(self, queue: QueueLike) -> list[Prepared]:
        """Return the calls in the form in which the queue stores them."""
        return [self.job.prepared(queue, args, kwargs, self) for args, kwargs in self.calls]

    def deliver(self) -> list[Receipt[Any]]:
        """Encode the calls and enqueue them in one round trip."""
        job = self.job
        client = job.settings.client or runtime.default
        known = client.queues.get(self.queue) if client is not None else None
        queue: QueueLike = known or queue_of(self.queue, client, self.partitions)
        messages = self.prepared(queue)
        self.size = sum([len(message[1]) for message in messages])
        if len(messages) == 1:
            [(mid, content, key)] = messages
            done = queue.enqueue(content, mid=mid, **job.options_with(key))
            if type(done) is not Enqueued:
                queue = queue_of(done.partition, queue.client)
            receipt: Receipt[Any] = Receipt(*done, job.name, queue, job.settings, job.types)
            if done.action == "exists":
                job.refused(receipt, queue, *self.calls[0])
            return [receipt]
        accepted = queue.enqueue_many(job.rows(messages), **job.queue_options)
        return list(job.receipts(accepted, queue))


class Job(Generic[P, R]):
    """A function with its options. R is the type of its result; for an async function, of the awaited result."""

    def __init__(
        self,
        function: Callable[P, Any],
        name: str,
        settings: JobSettings,
        middleware: Middlewares,
    ) -> None:
        update_wrapper(self, function)
        self.function: Callable[..., Any] = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.name = name
        self.middleware = middleware
        self.overrides: Overrides | None = None
        self.settings = settings
        call = self._one_call(function)
        self._signature = inspect.signature(call)
        #: Encoder and decoder of the job's arguments and result; None with typed=False.
        self.types: ArgumentTypes | None = None
        if settings.typed:
            self.types = ArgumentTypes(name, call, self._signature)
        self._encoder: CallEncoder | None = None
        self._least, self._most = _positional(self._signature)
        if isinstance(settings.key, str):
            key = ArgumentKey(name, self._signature, settings.key)
            settings = structs.replace(settings, key=key)
        self._use(settings)

    def __copy__(self) -> Self:
        # copy.copy would look up methods on the instance, and each lookup would call __getattr__.
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly, without enqueueing."""
        return self.function(*args, **kwargs)

    def _one_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function with the signature of one call. Batch jobs override this method."""
        return function

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """Enqueue this call; it runs at least once. Tuples arrive as lists.

        Raises:
            TypeError: The arguments don't fit the function.
            CodecError: JSON can't represent an argument.
            ServerFullError, UnavailableError: The server is full or unreachable.
        """
        if kwargs or not self._least <= len(args) <= self._most:
            self.check_arguments(args, kwargs)
        if self.middleware.all_layers() and (layers := self._enqueue_layers()):
            return self._through(layers, Outgoing(self, [(args, kwargs)]))[0]
        settings = self.settings
        client = settings.client or runtime.default
        known = client.queues.get(settings.queue) if client is not None else None
        queue: QueueLike = known or queue_of(settings.queue, client, settings.partitions)
        mid, content, key = self.prepared(queue, args, kwargs)
        options = self.queue_options if settings.key is None else self.options_with(key)
        done = queue.enqueue(content, mid=mid, **options)
        if type(done) is not Enqueued:
            queue = queue_of(done.partition, queue.client)
        receipt: Receipt[R] = Receipt(*done, self.name, queue, settings, self.types)
        if done.action == "exists":
            self.refused(receipt, queue, args, kwargs)
        return receipt

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """Enqueue this call without blocking the event loop; see `enqueue`."""
        if self.middleware.all_layers() and self._enqueue_layers():
            return await _in_thread(self.enqueue, *args, **kwargs)
        if kwargs or not self._least <= len(args) <= self._most:
            self.check_arguments(args, kwargs)
        settings = self.settings
        client = settings.client or runtime.default
        queue: Any = client.queues.get(settings.queue) if client is not None else None
        if queue is None:
            # The first call may start a server, or look one up.
            queue = await _in_thread(queue_of, settings.queue, client, settings.partitions)
        mid, content, key = self.prepared(queue, args, kwargs)
        options = self.queue_options if settings.key is None else self.options_with(key)
        done: Enqueued = await _asyncio_calls().aenqueue(queue, content, mid=mid, **options)
        if type(done) is not Enqueued:
            queue = queue_of(done.partition, queue.client)
        receipt: Receipt[R] = Receipt(*done, self.name, queue, settings, self.types)
        if done.action == "exists" and self.settings.on_conflict == "raise":
            await _in_thread(self.refused, receipt, queue, args, kwargs)
        return receipt

    def args(self, *args: P.args, **kwargs: P.kwargs) -> Args[P, R]:
        """Return the arguments of one call, for enqueue_many and for steps of flows.

        Raises TypeError for arguments that don't fit the function.
        """
        self.check_arguments(args, kwargs)
        return Args(self, args, kwargs)

    @overload
    def enqueue_many(self, arguments: Iterable[Args[P, R]]) -> Sequence[Receipt[R]]: ...
    @overload
    def enqueue_many(self, arguments: Iterable[Sequence[Any]]) -> Sequence[Receipt[R]]: ...
    def enqueue_many(
        self, arguments: Iterable[Sequence[Any]] | Iterable[Args[P, R]]
    ) -> Sequence[Receipt[R]]:
        """Enqueue many calls: `resize.enqueue_many(resize.args(path, width=200) for path in paths)`.

        Plain tuples of positional arguments also work, but type checkers don't check them. `arguments` is read while
        calls are sent, in requests of up to 250 calls. The server accepts all calls of a request or none. After an
        error, the calls of earlier requests stay enqueued, and the calls of the failed request may be enqueued.
        """
        calls = self._many(arguments)
        layers = self._enqueue_layers()
        if layers:
            receipts: list[Receipt[R]] = []
            while batch := list(islice(calls, PER_CALL)):
                receipts += self._through(layers, Outgoing(self, batch))
            return receipts
        queue = self._queue()
        accepted = queue.enqueue_many(self._rows_of_calls(queue, calls), **self.queue_options)
        return self.receipts(accepted, queue)

    @overload
    async def aenqueue_many(self, arguments: Iterable[Args[P, R]]) -> Sequence[Receipt[R]]: ...
    @overload
    async def aenqueue_many(self, arguments: Iterable[Sequence[Any]]) -> Sequence[Receipt[R]]: ...
    async def aenqueue_many(
        self, arguments: Iterable[Sequence[Any]] | Iterable[Args[P, R]]
    ) -> Sequence[Receipt[R]]:
        """Enqueue many calls without blocking the event loop; see `enqueue_many`."""
        if self._enqueue_layers():
            calls_of: Any = arguments
            return await _in_thread(self.enqueue_many, calls_of)
        calls = self._many(arguments)
        queue: Any = await _in_thread(self._queue)
        rows = self._rows_of_calls(queue, calls)
        accepted = await _asyncio_calls().aenqueue_many(queue, rows, **self.queue_options)
        return self.receipts(accepted, queue)

    def receipts(self, accepted: Sequence[Enqueued], queue: QueueLike) -> Receipts[R]:
        """Return the receipts of many calls. Raises DuplicateError if some were rejected and on_conflict is "raise"."""
        receipts: Receipts[R] = Receipts(accepted, self.name, queue, self.settings, self.types)
        if self.settings.on_conflict == "raise":
            refuse_any(self.name, receipts)
        return receipts

    def refused(
        self, receipt: Receipt[R], queue: QueueLike, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Raise DuplicateError for a rejected call if on_conflict is "raise"."""
        if self.settings.on_conflict == "raise":
            unique = self.unique
            call = unique.shown(args, kwargs) if unique else f"{self.name} with mid {receipt.mid}"
            refuse(call, receipt, queue)

    def unique_mid(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the mid that represents this call of a unique job, for `receipt` and `jobq status`."""
        self.check_arguments(args, kwargs)
        if self.unique is None:
            raise ConfigError(f"{self.name} is not unique; declare it with @job(unique=True)")
        return self.unique.mid(args, kwargs)

    def _enqueue_layers(self) -> tuple[Any, ...]:
        """Return the middleware with an `enqueue` method."""
        return tuple([layer for layer in self.middleware.all_layers() if hasattr(layer, "enqueue")])

    def _many(self, arguments: Iterable[Sequence[Any] | Args[..., Any]]) -> Iterator[Arguments]:
        if isinstance(arguments, Args):
            raise ConfigError(
                f"enqueue_many takes an iterable of calls, not one call: [{self.name.rpartition('.')[2]}.args(…)]"
            )
        if self.settings.mid is not None:
            raise ConfigError(
                f"mid={self.settings.mid!r} can't be the mid of many messages; enqueue them one by one"
            )
        return self._calls(arguments)

    def rows(self, messages: Iterable[Prepared]) -> Iterator[Row]:
        """Yield the messages as rows for `Queue.enqueue_many`."""
        if self.settings.key is not None:
            yield from messages
            return
        for mid, content, _ in messages:
            yield content if mid is None else (mid, content)

    def _rows_of_calls(self, queue: QueueLike, calls: Iterable[Arguments]) -> Iterator[Row]:
        """Yield these calls as rows for `Queue.enqueue_many`."""
        settings, server, types = self.settings, queue.client.settings, self.types
        asked = settings.key, self.unique, settings.expires_in, server.codec
        if any(option is not None for option in asked):
            yield from self.rows(self.prepared(queue, *call) for call in calls)
            return
        # Like `prepared`, but without its lookups for each call, which saves a sixth of the producer's CPU time.
        encoder = self._encoder
        if encoder is None or encoder.limit != server.max_content:
            encoder = self._encoder = self._new_encoder(self.overrides, server.max_content)
        for args, kwargs in calls:
            if types is not None and types.used:
                args, kwargs = types.converted(args, kwargs, ENCODE)
            yield encoder(args, kwargs, time.time_ns() // 1_000_000 + wall.ahead_ms)

    def _new_encoder(self, overrides: Overrides | None, max_content: int) -> CallEncoder:
        names = list(self.parameters)
        remember_ms = self.settings.remember_ms
        return CallEncoder(
            self.name, self.settings.headers, overrides, max_content, names, remember_ms
        )

    def prepared(
        self,
        queue: QueueLike,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        outgoing: Outgoing | None = None,
    ) -> Prepared:
        """Return one call as a message: its mid (None to generate it), its content and its key.

        Args:
            outgoing: The job's mid and headers, as changed by middleware.
        """
        server, settings = queue.client.settings, self.settings
        now = time.time_ns() // 1_000_000 + wall.ahead_ms
        key = None if settings.key is None else self.key_of(args, kwargs)
        mid: str | None = settings.mid if outgoing is None else outgoing.mid
        if not mid:
            mid = self.unique.mid(args, kwargs) if self.unique is not None else None
        if self.types is not None and self.types.used:
            args, kwargs = self.types.converted(args, kwargs, ENCODE)
        if outgoing is not None:
            headers, overrides = outgoing.headers, self.per_message_options(now)
            content = encode(self.name, args, kwargs, now, headers, overrides, server.max_content)
            content = remembered(content, settings.remember_ms, server.max_content)
        else:
            encoder = None if settings.expires_in is not None else self._encoder
            if encoder is None or encoder.limit != server.max_content:
                encoder = self._new_encoder(self.per_message_options(now), server.max_content)
                self._encoder = encoder
            content = encoder(args, kwargs, now)
        if server.codec is not None and (seal := seal_for(server.codec)) is not None:
            mid = mid or new_mid()
            content = seal.close_call(queue.name, mid, content, self.due_ms(now))
        return mid, content, key

    def encoded(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments as JSON data; raise CodecError for an argument that decoding would change."""
        types = self.types
        return (args, kwargs) if types is None else types.converted(args, kwargs, ENCODE)

    def encoded_argument(self, at: int | str, value: Any) -> Any:
        """Return one argument in a form that JSON can represent; `at` is its position or name."""
        return value if self.types is None else self.types.encoded_argument(at, value)

    def decoded(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments as the function expects them; raise CodecError if any doesn't fit its annotation."""
        types = self.types
        return (args, kwargs) if types is None else types.converted(args, kwargs, DECODE)

    def encoded_result(self, value: Any, mid: str) -> bytes:
        """Return the stored form of the job's result; raise ResultRefusedError if it can't be stored."""
        if self.types is not None and self.types.used:
            value = self.types.encoded_result(value)
        return encode_result(value, self.name, mid)

    def per_message_options(self, now: int) -> Overrides | None:
        """Return the options to store in a call enqueued at `now`."""
        if self.settings.expires_in is None:
            return self.overrides
        expires_at = round(self.due_ms(now) + self.settings.expires_in * 1000)
        return structs.replace(self.overrides or Overrides(), expires_at=expires_at)

    def key_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return the key of a call with these arguments; None if the call has no key."""
        key = self.settings.key
        return key_of_call(self.name, key, args, kwargs) if callable(key) else key

    def options_with(self, key: str | None) -> dict[str, Any]:
        """Return the arguments of `Queue.enqueue` for a call with this key."""
        if key is not None:
            return {**self.queue_options, "key": key}
        return {name: value for name, value in self.queue_options.items() if name != "ordered"}

    def due_ms(self, now: int) -> float:
        """Return the due time, in epoch ms, of a call enqueued now."""
        settings = self.settings
        if settings.at is not None:
            return settings.at * 1000
        return now + (settings.delay or settings.debounce or 0) * 1000

    def enqueue_checked(self, calls: list[Arguments]) -> list[Receipt[R]]:
        """Run the middleware, and enqueue up to 250 calls with checked arguments in one round trip."""
        return self._through(self.middleware.all_layers(), Outgoing(self, calls))

    def _through(self, layers: tuple[Any, ...], outgoing: Outgoing) -> list[Receipt[R]]:
        sent: list[Receipt[R]] = around_enqueue(layers, Outgoing.deliver)(outgoing)
        return sent

    def _calls(self, arguments: Iterable[Sequence[Any] | Args[..., Any]]) -> Iterator[Arguments]:
        for item in arguments:
            if isinstance(item, Args):
                if item.job != self.name:
                    raise ConfigError(
                        f"{item!r} can't be enqueued as {self.name}; use {self.name}.args(…)"
                    )
                yield item.args, item.kwargs
            elif isinstance(item, tuple | list):
                if not self._least <= len(item) <= self._most:
                    self.check_arguments(item, {})
                yield item, {}
            else:
                raise ConfigError(
                    f"enqueue_many of {self.name} takes tuples of arguments, not {item!r:.80}; "
                    "for one argument pass (x,)"
                )

    def options(self, **changes: Unpack[Options]) -> Self:
        """Return a copy that enqueues with different options; the job itself doesn't change."""
        checked = checked_options(changes, declaring=False)
        if "headers" in checked:
            checked["headers"] = {**self.settings.headers, **checked["headers"]}
        if checked.get("queue", self.queue) != self.queue:
            checked["partitions"] = None
        for option, other in (("delay", "at"), ("at", "delay")):
            if checked.get(option) is not None:
                checked.setdefault(other, None)
        changed = copy.copy(self)
        per_message_options = {name: checked[name] for name in TRAVELLING if name in checked}
        if per_message_options:
            earlier = {name: getattr(self.overrides, name, UNSET) for name in TRAVELLING}
            changed.overrides = Overrides(**{**earlier, **per_message_options})
        changed._use(structs.replace(self.settings, **checked))
        return changed

    def receipt(self, mid: str) -> Receipt[R]:
        """Return a receipt for a message enqueued earlier or elsewhere."""
        if not isinstance(mid, str):
            checked_mid(mid)
        queue = self._queue()
        return Receipt(mid, "exists", "", self.name, queue, self.settings, self.types)

    def with_overrides(self, overrides: Overrides) -> Self:
        """Return a copy with the options stored in one message. Raises ConfigError if they contradict one another.

        The job's timeouts may have changed since the message was made. If they now contradict the message's timeouts,
        the message's timeouts apply.
        """
        changes = {name: getattr(overrides, name) for name in TRAVELLING}
        changes = {name: value for name, value in changes.items() if value is not UNSET}
        settings = structs.replace(self.settings, **changes)
        if settings.contradicts_timeout:
            for option, other in (("timeout", "hard_timeout"), ("hard_timeout", "timeout")):
                if option in changes and other not in changes:
                    settings = structs.replace(settings, **{other: None})
        changed = copy.copy(self)
        changed._use(settings)
        return changed

    def calling(self, function: Callable[..., Any]) -> Self:
        """Return a copy that has no limits and calls another function of the same kind."""
        changed = copy.copy(self)
        changed.function = function
        changed._use(structs.replace(self.settings, limits=()))
        return changed

    def decide(self, failures: int, error: BaseException, age_s: float = 0.0) -> Decision:
        """Return how an attempt that raised `error` ends.

        Args:
            failures: Number of failures, including this attempt.
            age_s: Seconds since the enqueue.
        """
        if isinstance(error, ResultRefusedError):
            return Decision("dead", why="the job ran, but its result could not be stored")
        return self.settings.rules.decide(failures, error, age_s)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError, with the text that Python uses, if the function doesn't accept these arguments."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            text = f"{self.function.__qualname__}(): {error}"
            unknown = [name for name in kwargs if name not in self.parameters]
            if meant := ", ".join(filter(None, map(option_meant, unknown))):
                text += f"; options go into {self.name.rpartition('.')[2]}.options(…).enqueue(…): {meant}"
            raise TypeError(text) from None

    def _use(self, settings: JobSettings) -> None:
        self.settings = settings
        self._encoder = None
        self.unique = unique_of(self.name, self._signature, settings, self.types)
        #: Arguments of `Queue.enqueue` for each call.
        self.queue_options = {
            name: value for name in _TO_QUEUE if (value := getattr(settings, name)) is not None
        } | conflict_options(self.name, settings, self.unique)
        if settings.ordered and settings.key is None:
            raise ConfigError(
                f"ordered=True of {self.name} applies only to messages with a key; also pass key=…"
            )
        if settings.contradicts_timeout:
            raise ConfigError(
                f"hard_timeout={settings.hard_timeout:g} of {self.name} isn't longer than "
                f"timeout={settings.timeout:g}; make hard_timeout longer"
            )

    def _queue(self) -> QueueLike:
        settings = self.settings
        return queue_of(settings.queue, settings.client, settings.partitions)

    @property
    def queue(self) -> str:
        """The queue that receives the job's calls."""
        return self.settings.queue

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the function; for a batch job, of one call."""
        return self._signature

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of the job's function, by name."""
        return self._signature.parameters

    @property
    def redacted(self) -> tuple[str, ...] | None:
        """Names and positions of the arguments that must be hidden from people; None if the job doesn't declare any.

        '*' means all arguments.
        """
        names = self.settings.redact
        if names is None:
            return None
        positional = [p.name for p in self._signature.parameters.values() if p.kind in _BY_POSITION]
        return (*names, *(str(at) for at, name in enumerate(positional) if name in names))

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    if not TYPE_CHECKING:  # a type checker would accept every misspelt name
        __getattr__ = refuse_attribute


class SyncJob(Job[P, R]):
    """A job whose function is a plain `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without enqueueing."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class AsyncJob(Job[P, R]):
    """A job whose function is an `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function directly, without enqueueing; the caller awaits the coroutine."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


@cache
def _asyncio_calls() -> Any:
    import jobq.queue.aio

    return jobq.queue.aio


async def _in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    from jobq.client.threads import in_thread

    return await in_thread(function, *args, **kwargs)


def _positional(signature: inspect.Signature) -> tuple[int, int]:
    """Return the minimum and maximum number of arguments in a call that has only positional arguments.

    If such a call is impossible, the minimum is larger than the maximum.
    """
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty]
    most = len(positional)
    # A positional argument can't fill a required keyword-only parameter.
    if any(p.kind is p.KEYWORD_ONLY for p in required):
        return most + 1, most
    return sum(p in positional for p in required), most
