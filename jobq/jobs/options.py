"""Options of `@job(...)` and `.options(...)`. They are checked, and durations are converted to seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import Parameter, Signature
from typing import Any, Literal, TypedDict, get_args
from uuid import UUID

from msgspec import Struct

from jobq.client.names import checked_queue
from jobq.config import parse_durability
from jobq.durations import Duration
from jobq.errors import ConfigError
from jobq.habits import remedy
from jobq.jobs.codec import MAX_NAME
from jobq.jobs.queues import ClientLike
from jobq.jobs.retry import (
    DEFAULT_POLICY,
    DEFAULT_RETRIES,
    MAX_RETRIES,
    ErrorFilter,
    Listed,
    Policy,
    Rules,
    checked_filter,
)
from jobq.queue.mids import checked_mid
from jobq.queue.types import (
    MAX_DURATION_S,
    MAX_PARTITIONS,
    check_start,
    checked_at,
    checked_duration,
    checked_key,
    remember_ms,
)

DAY_S = 86_400.0
#: Maximum number of names that a job hides, and their maximum length.
MAX_REDACTED, MAX_REDACTED_LENGTH = 50, 100
#: Maximum number of a job's former names.
MAX_ALIASES = 20
#: Maximum number of calls in a batch. A child has a few more slots, for messages that it fetches ahead.
MAX_BATCH = 200
#: Maximum linger. It is short, because calls waiting in one process can't run in another process.
MAX_LINGER_S = 60.0


#: Action for a call of a unique job while an equal call is live.
OnConflict = Literal["skip", "raise", "replace", "requeue"]


class Options(TypedDict, total=False):
    """Options for `.options(...)` and `@job(...)`. A duration is seconds, a timedelta or text such as "5m".

    Attributes:
        queue: The queue that the message goes to.
        client: The client that enqueues it; None for the default client.
        mid: The message's id. A call whose id is already in the queue is a duplicate; see `on_conflict`.
        delay: Wait this long before the first attempt.
        at: Earliest start time: a datetime, or seconds since 1970.
        unique: Reject a call while an equal call waits or runs. True compares all arguments, and names select arguments
            to compare. With a function of the arguments, its results are compared.
        until: With `unique` or `mid`, reject duplicates until the run's "start", until the run is "done", or for a
            duration after the run.
        on_conflict: How to handle a rejected call with `unique` or `mid`. "skip" it, "raise" DuplicateError, "replace"
            the waiting call, or "requeue" it as new.
        debounce: Run this long after the last equal call.
        debounce_max: With `debounce`: run at the latest this long after the first call.
        throttle: Reject equal calls for this long.
        lease: Minimum lease duration; it applies if the worker's lease is shorter.
        key: Name of the line in which the message waits, or a function of the arguments that returns the name. Lines
            take turns. In `@job`, a string names an argument.
        ordered: Start messages of the key one by one, in the order in which they were enqueued.
        durability: Where to store the message before the enqueue returns: "memory", "disk" or "replicas=n". None means
            the client's durability.
        headers: Text to send with the message.
        expires_in: Don't start later than this after the enqueue, or after the start time of `delay` or `at`.
        retries: Maximum number of retries.
        retry_within: Don't retry later than this after the enqueue. Without `retries`, retry as often as time allows.
        timeout: Stop an attempt after this long, by raising an exception in the job.
        hard_timeout: Kill the process of an attempt after this long.
        result_ttl: Keep the job's result for this long; None doesn't keep it.
        remember: Keep the message's outcome for this long, for `Receipt.state`. With `result_ttl`, the longer time
            counts.
    """

    queue: str
    client: ClientLike | None
    mid: str | None
    delay: Duration | None
    at: datetime | float | None
    unique: bool | str | Sequence[str] | Callable[..., Any] | None
    until: Duration | None
    on_conflict: OnConflict | None
    debounce: Duration | None
    debounce_max: Duration | None
    throttle: Duration | None
    lease: Duration | None
    key: str | Callable[..., object] | None
    ordered: bool
    durability: str | None
    headers: Mapping[str, str]
    expires_in: Duration | None
    retries: int
    retry_within: Duration | None
    timeout: Duration | None
    hard_timeout: Duration | None
    result_ttl: Duration | None
    remember: Duration | None


class JobSettings(Struct, frozen=True, kw_only=True):
    """The checked options of a job, or of a copy of the job. An undeclared option is None."""

    queue: str = "default"
    client: ClientLike | None = None
    mid: str | None = None
    delay: float | None = None
    at: float | None = None
    unique: bool | tuple[str, ...] | Callable[..., Any] | None = None
    until: Literal["done", "start"] | float | None = None
    on_conflict: OnConflict | None = None
    debounce: float | None = None
    debounce_max: float | None = None
    throttle: float | None = None
    lease: float | None = None
    key: str | Callable[..., object] | None = None
    ordered: bool | None = None
    durability: str | None = None
    headers: Mapping[str, str] = {}
    expires_in: float | None = None
    retries: int | None = None
    retry_within: float | None = None
    timeout: float | None = None
    hard_timeout: float | None = None
    result_ttl: float | None = None
    remember: float | None = None
    retry: Policy | None = None
    retry_on: ErrorFilter | None = None
    dead_on: ErrorFilter | None = None
    on_dead: Any = None
    limits: tuple[Any, ...] = ()
    trace: str = "parent"
    redact: tuple[str, ...] | None = None
    keep_logs: float | None = None
    typed: bool = True
    aliases: tuple[str, ...] = ()
    batch: int | None = None
    linger: float | None = None
    partitions: int | None = None

    @property
    def stores_result(self) -> bool:
        """Whether the job's result is stored."""
        return self.result_ttl is not None

    @property
    def remember_s(self) -> float | None:
        """How long the message's outcome and result are kept; None if they aren't kept."""
        return max(self.remember or 0, self.result_ttl or 0) or None

    @property
    def remember_ms(self) -> int:
        """`remember_s` in ms; 0 if the outcome isn't kept."""
        return remember_ms(self.remember_s)

    @property
    def nretries(self) -> int:
        """Maximum number of retries. If none is declared, the policy or `retry_within` determines it."""
        if self.retries is not None:
            return self.retries
        if isinstance(self.retry, Listed):
            return len(self.retry.waits)
        return DEFAULT_RETRIES if self.retry_within is None else MAX_RETRIES

    @property
    def rules(self) -> Rules:
        """The rules that decide how a failed attempt ends."""
        policy = self.retry or DEFAULT_POLICY
        return Rules(self.nretries, policy, self.retry_on, self.dead_on, self.retry_within)

    @property
    def contradicts_timeout(self) -> bool:
        """Whether the hard timeout is shorter than the timeout."""
        timeout, hard_timeout = self.timeout, self.hard_timeout
        return bool(timeout and hard_timeout and hard_timeout <= timeout)


#: Options that are stored in a message when `.options(...)` changes them.
TRAVELLING = ("retries", "retry_within", "timeout", "hard_timeout", "result_ttl", "remember")
#: Options of `@job(...)` that one message can't override.
_ONLY_DECLARED = frozenset(
    (
        "name",
        "retry",
        "retry_on",
        "dead_on",
        "on_dead",
        "registry",
        "limits",
        "trace",
        "redact",
        "keep_logs",
        "typed",
        "aliases",
        "batch",
        "linger",
        "partitions",
    )
)


def checked_options(given: Mapping[str, Any], *, declaring: bool) -> dict[str, Any]:
    """Return the checked options, with durations in seconds; raise ConfigError for an invalid option."""
    checked = {}
    for name, value in given.items():
        if name in _ONLY_DECLARED and not declaring:
            raise ConfigError(
                f"{name}={value!r} is an option of a job, not of a single message; pass it to @job({name}=…)"
            )
        check = _CHECKS.get(name)
        if check is None:
            known = _CHECKS if declaring else Options.__annotations__
            raise ConfigError(_no_option(name, value, known))
        checked[name] = check(name, value)
    check_start(given.get("delay"), given.get("at"))
    return checked


def option_meant(name: str) -> str:
    """Explain how to pass an option that was given as an argument of the job; '' if there is no such option."""
    return f"{name}=…" if name in Options.__annotations__ else remedy("options", name)


def _no_option(name: str, value: Any, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    text = f"there is no option {name}={value!r:.80}"
    if hint := remedy("options", name):
        return f"{text}; {hint}"
    near = get_close_matches(name, known, 1)
    meant = f"did you mean {near[0]}=? " if near else ""
    return f"{text}; {meant}options are {', '.join(sorted(known))}"


def _as_given(name: str, value: Any) -> Any:
    return value


def _queue(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"queue={value!r} is not a name; pass a str")
    return checked_queue(value)


def _mid(name: str, value: Any) -> str | None:
    if value is None:
        return None
    mid = checked_mid(value)
    if mid.startswith("="):
        raise ConfigError(
            f"mid={value!r} can't be used: mids that begin with '=' belong to unique jobs; use another mid, or unique=…"
        )
    if mid.startswith("~"):
        raise ConfigError(
            f"mid={value!r} can't be used: mids that begin with '~' are reserved for steps of flows; use another mid"
        )
    return mid


def _key(name: str, value: Any) -> Any:
    return value if value is None or _is_function(value) else checked_key(value)


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _duration(least: float, most: float = MAX_DURATION_S) -> Callable[[str, Any], float | None]:
    return lambda name, value: checked_duration(name, value, least, most)


def _unique(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool) or callable(value):
        return value
    names = (value,) if isinstance(value, str) else value
    if (
        not isinstance(names, list | tuple)
        or not names
        or any(type(name) is not str for name in names)
    ):
        raise ConfigError(
            f"unique={value!r} doesn't define how to compare calls; pass True, names of arguments, or a function"
        )
    return tuple(names)


def _until(name: str, value: Any) -> Any:
    if value is None or value in ("done", "start"):
        return value
    try:
        return checked_duration(name, value, 0.001)
    except ConfigError as error:
        raise ConfigError(f"{error}, or use until='done' or until='start'") from None


def _on_conflict(name: str, value: Any) -> Any:
    if value is None or value in get_args(OnConflict):
        return value
    raise ConfigError(
        f"on_conflict={value!r} is unknown; use one of {', '.join(get_args(OnConflict))}"
    )


def _at(name: str, value: Any) -> float | None:
    return checked_at(value)


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{name}={value!r} is not a bool; pass True or False")


def _whole(least: int, most: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(
                f"{name}={value!r} is out of range; use a whole number from {least} to {most}"
            )
        return value

    return check


def _headers(name: str, value: Any) -> dict[str, str]:
    if isinstance(value, Mapping) and all(
        type(k) is str and type(v) is str for k, v in value.items()
    ):
        return dict(value)
    raise ConfigError(f"headers={value!r} must map str to str; pass str(value) for each")


def _durability(name: str, value: Any) -> str | None:
    if value is not None:
        parse_durability(str(value))
    return value  # type: ignore[no-any-return]


def _policy(name: str, value: Any) -> Any:
    if not callable(value):
        raise ConfigError(
            f"retry={value!r} is not a policy; use jobq.retry.exponential(), fixed(10), linear(10), listed([1, 30]) "
            "or a function of (failures, error); set the number of retries with retries=…"
        )
    return value


def _limits(name: str, value: Any) -> tuple[Any, ...]:
    limits = value if isinstance(value, list | tuple) else None
    if limits is None or not all(hasattr(limit, "admit") for limit in limits):
        raise ConfigError(
            f"limits={value!r} is not a list of RateLimit(name, rate) and ConcurrencyLimit(name, max_slots)"
        )
    # Slots come first, so that a rate doesn't count starts that a slot then prevents. Sorted names make all jobs
    # acquire in the same order.
    return tuple(sorted(limits, key=lambda limit: (limit.rank, limit.name)))


def _callback(name: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    raise ConfigError(f"on_dead={value!r} can't be called; pass a job or function of one argument")


def _trace(name: str, value: Any) -> str:
    if value in ("parent", "link"):
        return str(value)
    raise ConfigError(f"trace={value!r} is unknown; use 'parent' or 'link'")


def _aliases(name: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or len(names) > MAX_ALIASES:
        raise ConfigError(
            f"aliases={value!r:.200} is not a list of names; name up to {MAX_ALIASES} former names of the job"
        )
    return tuple(dict.fromkeys(checked_job_name(name) for name in names))


def checked_job_name(name: Any) -> str:
    """Return `name`; raise ConfigError if it can't be used."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_NAME
        or not name.isprintable()
        or " " in name
    ):
        raise ConfigError(
            f"job name {name!r:.220} can't be used; use 1-{MAX_NAME} printable characters without spaces"
        )
    return name


def _redact(name: str, value: Any) -> tuple[str, ...]:
    names = ("*",) if value is True else (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or len(names) > MAX_REDACTED:
        raise ConfigError(
            f"redact={value!r:.200} is not a list of names to hide; use up to {MAX_REDACTED} names of arguments or "
            f"of keys "
            "in them, or True for all arguments"
        )
    for hidden in names:
        if (
            not isinstance(hidden, str)
            or not 0 < len(hidden) <= MAX_REDACTED_LENGTH
            or not hidden.isprintable()
        ):
            raise ConfigError(
                f"the name {hidden!r:.120} in redact can't be used; use 1-{MAX_REDACTED_LENGTH} printable characters"
            )
    return tuple(names)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": _queue,
    "client": _as_given,
    "mid": _mid,
    "delay": _duration(0),
    "at": _at,
    "unique": _unique,
    "until": _until,
    "on_conflict": _on_conflict,
    "debounce": _duration(0.001),
    "debounce_max": _duration(0.001),
    "throttle": _duration(0.001),
    "lease": _duration(0.001, DAY_S),
    "key": _key,
    "ordered": _flag,
    "durability": _durability,
    "headers": _headers,
    "expires_in": _duration(0.001),
    "retries": _whole(0, MAX_RETRIES),
    "retry_within": _duration(0.001),
    "timeout": _duration(0.001),
    "hard_timeout": _duration(0.001),
    "result_ttl": _duration(0.001),
    "remember": _duration(0.001),
    "name": _as_given,
    "retry": _policy,
    "retry_on": checked_filter,
    "dead_on": checked_filter,
    "on_dead": _callback,
    "registry": _as_given,
    "limits": _limits,
    "trace": _trace,
    "redact": _redact,
    "aliases": _aliases,
    "keep_logs": _duration(0.001),
    "typed": _flag,
    "batch": _whole(1, MAX_BATCH),
    "linger": _duration(0, MAX_LINGER_S),
    "partitions": _whole(1, MAX_PARTITIONS),
}


#: Returns the key of a call with these arguments; None if it has no key.
KeyOf = Callable[..., object]


class ArgumentKey:
    """Uses one argument of a call, or its default, as the key."""

    __slots__ = ("_default", "_name", "_position")

    def __init__(self, job: str, signature: Signature, name: str) -> None:
        named = {p.name: p for p in signature.parameters.values() if p.kind not in _MANY}
        if name not in named:
            known = ", ".join(named) or "no arguments"
            raise ConfigError(
                f"key={name!r} is not an argument of {job}, which takes {known}; name one of them, or pass a function "
                "of the arguments"
            )
        positional = [p.name for p in named.values() if p.kind is not Parameter.KEYWORD_ONLY]
        self._name = name
        self._position = positional.index(name) if name in positional else _NOWHERE
        default = named[name].default
        self._default = None if default is Parameter.empty else default

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Return the argument's value."""
        if self._position < len(args):
            return args[self._position]
        return kwargs.get(self._name, self._default)


_MANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_NOWHERE = 1 << 30


def key_of_call(
    job: str, key_of: KeyOf, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the key of one call; None if the call has no key. Raises ConfigError for an invalid key."""
    key = key_of(*args, **kwargs)
    if type(key) is int or isinstance(key, UUID):
        return str(key)
    if key is None:
        return None
    if not isinstance(key, str):
        raise ConfigError(
            f"key={key!r:.200} of {job} can't be used; use a str, int or UUID, or None for a call without a key"
        )
    return checked_key(key)
