"""Frozen settings, validated when they are created. `settings_from_env` reads server settings from the environment."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta, tzinfo
from importlib.util import find_spec
from typing import Literal, cast, get_args

from jobq import cgroup, extras
from jobq.durations import Duration, seconds_of
from jobq.errors import ConfigError, masked
from jobq.variables import warn

#: How long a call is retried by default: in programs where a person may wait, and in long-running programs.
PATIENCE_S, STAYING_PATIENCE_S = 2.0, 10.0
VALID_S, MAX_VALID_S = 7 * 86_400.0, 366 * 86_400.0
#: Maximum size of a call in bytes: the default, and the highest allowed value.
MAX_CONTENT, HARD_MAX_CONTENT = 256 * 1024, 1024 * 1024
#: Servers that tests may connect to. jobq's pytest plugin sets this variable for tests and their child processes.
TEST_SERVERS = "JOBQ_TEST_SERVERS"
#: A worker in burst mode waits for retries that are due within this time.
BURST_WAIT_S = 60.0
#: Maximum length of a worker's name.
MAX_NAME = 100
#: Event loops that can run async jobs.
EVENT_LOOPS = ("auto", "asyncio", "uvloop")
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,40}")


def duration_s(value: Duration) -> float:
    """Return a duration in seconds: `duration_s("5m") == 300`. See `jobq.durations.seconds_of` for units.

    Raises ConfigError if the duration is invalid.
    """
    try:
        return seconds_of(value)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def parse_time(
    text: str, *, now: datetime | None = None, zone: tzinfo | Literal["local"] | None = None
) -> datetime:
    """Parse an ISO 8601 time or, with `now`, a time span such as `7d` before now. Return the time in UTC.

    Args:
        zone: Default time zone: "local" for this host's zone, None to reject times without a zone.
    """
    try:
        at = _iso_time(text)
        if at is None and now is not None:
            return now - timedelta(seconds=seconds_of(text))
        if at is not None and at.tzinfo is None and isinstance(zone, tzinfo):
            at = at.replace(tzinfo=zone)
        if at is not None and (at.tzinfo or zone):
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        at = None
    if at is not None:
        raise ConfigError(f"{text!r} has no time zone; append Z for UTC, or +01:00")
    ago = ", or 7d for seven days ago" if now is not None else ""
    raise ConfigError(f"{text!r} is not a time; write 2026-11-21T08:00Z{ago}")


def _iso_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def parse_queues(text: str) -> tuple[tuple[str, int], ...]:
    """Parse the names and weights of queues, such as `"high:6,low:1"`, or `"low,high"` for equal weights."""
    queues: list[tuple[str, int]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, weight = part.rpartition(":")
        if not colon:
            name, weight = part, "1"
        if not weight.isdigit() or not 1 <= int(weight) <= 1000:
            raise ConfigError(
                f"the weight of queue {part!r} must be between 1 and 1000; write name or name:6"
            )
        if name in (known for known, _ in queues):
            raise ConfigError(
                f"queue {name!r} is named twice in {text!r}; name it once, as {name}:2 to serve it more often"
            )
        queues.append((name, int(weight)))
    if not queues:
        raise ConfigError(f"no queue in {text!r}; write low,high or high:6,low:1")
    return tuple(queues)


def parse_durability(text: str) -> tuple[str, int]:
    """Parse `"memory"`, `"disk"` or `"replicas=2"`; return the word and the number of replicas."""
    word, equals, number = text.strip().partition("=")
    if word in ("memory", "disk") and not equals:
        return word, 0
    if word == "replicas" and number.isdecimal() and 1 <= int(number) <= 100:
        return word, int(number)
    raise ConfigError(
        f"durability={text!r} is invalid; use memory, disk or replicas=N, with N from 1 to 100"
    )


def processors() -> int:
    """Return how many processors this process may use, given its CPU affinity and its cgroup's quotas."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    return max(1, min(count, cgroup.processors() or count))


def _at_least(name: str, value: float | None, least: float) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{name}={value!r} is too small; it must be at least {least:g}")


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r} is invalid; use a whole number, 0 or more")
    return int(text)


def parse_codec_keys(text: str) -> tuple[tuple[str, bytes], ...]:
    """Parse ids and secrets: `"2026-11:<base64>,2026-05:<base64>"`. Error messages never quote a secret."""
    keys: list[tuple[str, bytes]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key_id, colon, secret = part.partition(":")
        try:
            known = base64.b64decode(secret.encode().translate(_STANDARD), validate=True)
        except (binascii.Error, ValueError):
            known = b""
        if not colon or not known:
            raise ConfigError(
                f"codec key {len(keys) + 1} can't be read; write id:secret, with the secret in base64: "
                "echo 2026-11:$(openssl rand -base64 32)"
            )
        keys.append((key_id, known))
    return tuple(keys)


_STANDARD = bytes.maketrans(b"-_", b"+/")
CodecMode = Literal["sign", "encrypt"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecSettings:
    """Settings for sealing calls. Sealed calls are either signed, so that only owners of a key can create them, or
    encrypted.

    Attributes:
        keys: Pairs of an id and a secret of at least 32 bytes. The first key seals calls, and every key can open calls.
        accept_plain: True to also run unsealed calls, while producers migrate.
        valid_s: How long after its due time a sealed call may start. Workers remember finished calls for this long, so
            that a replayed call doesn't run.
    """

    keys: tuple[tuple[str, bytes], ...] = field(repr=False)
    mode: CodecMode = "sign"
    accept_plain: bool = False
    valid_s: float = VALID_S

    def __post_init__(self) -> None:
        if self.mode not in get_args(CodecMode):
            raise ConfigError(f"unknown codec {self.mode!r}; use sign or encrypt")
        if not 1 <= self.valid_s <= MAX_VALID_S:
            raise ConfigError(
                f"a sealed call can't be valid for {self.valid_s:g} s; it must be between 1 s and 366 days"
            )
        if not self.keys:
            raise ConfigError(f"codec {self.mode} has no key; set JOBQ_CODEC_KEYS=id:secret")
        for number, (key_id, secret) in enumerate(self.keys, 1):
            if not _KEY_ID.fullmatch(key_id):
                raise ConfigError(f"codec key {number} needs an id of 1-40 letters, digits or ._-")
            if len(secret) < 32:
                raise ConfigError(
                    f"the secret of codec key {key_id} has {len(secret)} bytes; it must have at least 32"
                )
        if len(dict(self.keys)) < len(self.keys):
            raise ConfigError("two codec keys have the same id; use different ids")
        if self.mode == "encrypt" and find_spec("cryptography") is None:
            raise ConfigError(f"codec encrypt needs cryptography: {extras.install('crypto')}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Settings for the server's connections and enqueues.

    Attributes:
        url: None selects the embedded server.
        embedded: True uses the embedded server, False forbids it. None uses it with a warning, or forbids it under
            pytest.
        patience_s: How long a call is retried while connections break or the server doesn't answer. Even with 0, the
            first attempt may take socket_timeout_s.
        data_dir: Folder for the embedded server's data. Default: `.jobq` next to the nearest pyproject.toml.
        codec: How calls are signed or encrypted; None to leave calls plain.
        functions: Call the server functions that `jobq functions load` has loaded, instead of Lua scripts.
        durability: Where a message must be stored before its enqueue returns: memory, disk, or replicas=n. Run n + 1
            replicas, so that a replica may fail.
        durable_within_s: How long to wait until a message is stored durably, at most four fifths of socket_timeout_s.
        outage_buffer: Maximum number of messages to keep in memory while the server is unreachable. With 0, enqueue
            raises UnavailableError.
        max_content: Maximum size of a call in bytes, up to 1 MiB.
    """

    url: str | None = None
    namespace: str = "jobq"
    patience_s: float = PATIENCE_S
    socket_timeout_s: float = 5.0
    embedded: bool | None = None
    embedded_idle_s: float = 600.0
    data_dir: str | None = None
    codec: CodecSettings | None = None
    functions: bool = False
    durability: str = "memory"
    durable_within_s: float = 2.0
    outage_buffer: int = 0
    max_content: int = MAX_CONTENT

    def __post_init__(self) -> None:
        _at_least("patience_s", self.patience_s, 0)
        _at_least("socket_timeout_s", self.socket_timeout_s, 0.01)
        _at_least("embedded_idle_s", self.embedded_idle_s, 1)
        _at_least("durable_within_s", self.durable_within_s, 0.001)
        _at_least("outage_buffer", self.outage_buffer, 0)
        parse_durability(self.durability)
        if not 1 <= self.max_content <= HARD_MAX_CONTENT:
            raise ConfigError(
                f"max_content={self.max_content!r} is out of range; it must be between 1 and {HARD_MAX_CONTENT} bytes"
            )

    def __repr__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        shown["url"] = masked(self.url) if self.url else self.url
        return f"ServerSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    """Settings of a worker.

    Attributes:
        queues: Names and weights of queues; () for all queues of the registered jobs, with equal weights.
        strict: Empty each queue before fetching from the next queue in the given order.
        processes: Number of child processes; 0 for one per processor.
        concurrency: Maximum number of concurrent async jobs per child.
        threads: Maximum number of concurrent sync jobs per child.
        lease_s: How long a lease lasts unless renewed.
        crash_limit: Number of crashes after which a message is dead-lettered, or 0 for no limit.
        prefetch: Maximum number of messages to prefetch per child. A child prefetches work for about prefetch_s
            seconds.
        max_jobs, max_age_s, max_memory_mb: Limits after which a child is replaced.
        shutdown_timeout_s: How long the worker waits for running jobs after TERM.
        burst: Exit once the queues are empty and no retry of a job that ran here is due within BURST_WAIT_S. With
            "ready", don't wait for retries.
        unknown_for_s: How long a message whose job is unknown is retried before it is dead-lettered.
        unknown_wait_s: Maximum delay between retries of unknown jobs.
        event_loop: The event loop for async jobs, one of EVENT_LOOPS. "auto" is uvloop if it is installed.
        allow_threads: Start even if the modules with jobs leave a thread running.
        tracebacks: Log and store the tracebacks of failed attempts.
        charts: Record queue statistics for the dashboard's charts.
        name: The worker's name in events and logs; '' for the host's name and the process id.
    """

    queues: tuple[tuple[str, int], ...] = ()
    strict: bool = False
    processes: int = 0
    concurrency: int = 10
    threads: int = 1
    lease_s: float = 15.0
    burst: bool | Literal["ready"] = False
    crash_limit: int = 3
    prefetch: int = 64
    prefetch_s: float = 0.05
    max_jobs: int | None = None
    max_age_s: float | None = None
    max_memory_mb: int | None = None
    shutdown_timeout_s: float = 30.0
    unknown_for_s: float = 900.0
    unknown_wait_s: float = 60.0
    event_loop: str = "auto"
    allow_threads: bool = False
    tracebacks: bool = True
    charts: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        if self.event_loop not in EVENT_LOOPS:
            known = ", ".join(EVENT_LOOPS)
            raise ConfigError(f"unknown event_loop {self.event_loop!r:.40}; use one of {known}")
        if self.processes == 0:
            object.__setattr__(self, "processes", processors())
        for name in (
            "processes",
            "concurrency",
            "threads",
            "max_jobs",
            "max_age_s",
            "max_memory_mb",
        ):
            _at_least(name, getattr(self, name), 1)
        _at_least("lease_s", self.lease_s, 0.2)
        _at_least("prefetch_s", self.prefetch_s, 0.001)
        _at_least("crash_limit", self.crash_limit, 0)
        _at_least("shutdown_timeout_s", self.shutdown_timeout_s, 0)
        _at_least("unknown_for_s", self.unknown_for_s, 0)
        _at_least("unknown_wait_s", self.unknown_wait_s, 1)
        if len(self.name) > MAX_NAME or not self.name.isprintable():
            raise ConfigError(
                f"worker name {self.name!r:.120} can't be used; use at most 100 printable characters"
            )
        for name in ("prefetch", "concurrency", "threads"):
            if not 1 <= getattr(self, name) <= 200:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is out of range; it must be between 1 and 200"
                )


def settings_from_env(
    environ: Mapping[str, str] | None = None, *, patience_s: float = PATIENCE_S
) -> ServerSettings:
    """Return settings from environment variables. Log a warning for each unknown JOBQ_… variable.

    The variables are JOBQ_URL (or else REDIS_URL), JOBQ_NAMESPACE, JOBQ_PATIENCE, JOBQ_EMBEDDED, JOBQ_EMBEDDED_IDLE,
    JOBQ_DATA, JOBQ_FUNCTIONS and JOBQ_MAX_CONTENT. JOBQ_DURABILITY, JOBQ_DURABLE_WITHIN and JOBQ_OUTAGE_BUFFER set the
    durability. JOBQ_CODEC, JOBQ_CODEC_KEYS, JOBQ_CODEC_ACCEPT_PLAIN and JOBQ_CODEC_VALID set how calls are sealed.

    Args:
        patience_s: Default for JOBQ_PATIENCE.
    """
    env = os.environ if environ is None else environ
    warn(env)
    codec = None
    patience_s = duration_s(env.get("JOBQ_PATIENCE") or patience_s)
    durable_within_s = duration_s(env.get("JOBQ_DURABLE_WITHIN") or 2.0)
    if env.get("JOBQ_CODEC") or env.get("JOBQ_CODEC_KEYS"):
        codec = CodecSettings(
            mode=cast("CodecMode", env.get("JOBQ_CODEC") or "sign"),
            keys=parse_codec_keys(env.get("JOBQ_CODEC_KEYS") or ""),
            accept_plain=env.get("JOBQ_CODEC_ACCEPT_PLAIN") == "1",
            valid_s=duration_s(env.get("JOBQ_CODEC_VALID") or VALID_S),
        )
    return ServerSettings(
        url=env.get("JOBQ_URL") or env.get("REDIS_URL") or None,
        namespace=env.get("JOBQ_NAMESPACE") or "jobq",
        patience_s=patience_s,
        # A call to a silent server must not take longer than a call to an unreachable server.
        socket_timeout_s=min(5.0, max(1.0, patience_s, 1.25 * durable_within_s)),
        embedded=embedded_from_env(env),
        embedded_idle_s=duration_s(env.get("JOBQ_EMBEDDED_IDLE") or 600.0),
        data_dir=env.get("JOBQ_DATA") or None,
        codec=codec,
        functions=env.get("JOBQ_FUNCTIONS") == "1",
        durability=env.get("JOBQ_DURABILITY") or "memory",
        durable_within_s=durable_within_s,
        outage_buffer=_whole("JOBQ_OUTAGE_BUFFER", env.get("JOBQ_OUTAGE_BUFFER") or "0"),
        max_content=_whole("JOBQ_MAX_CONTENT", env.get("JOBQ_MAX_CONTENT") or str(MAX_CONTENT)),
    )


def embedded_from_env(environ: Mapping[str, str] | None = None) -> bool | None:
    """Return JOBQ_EMBEDDED: True if an embedded server is allowed when no URL is set, False if not, None if unset."""
    env = os.environ if environ is None else environ
    text = env.get("JOBQ_EMBEDDED") or ""
    if text not in ("", "0", "1"):
        raise ConfigError(
            f"JOBQ_EMBEDDED={text!r} is invalid; use 1 for the embedded server, or 0 to forbid it"
        )
    return bool(int(text)) if text else None


def server_program_from_env(environ: Mapping[str, str] | None = None) -> str | None:
    """Return JOBQ_SERVER, the path of the server program to start, or its name on the PATH; None if unset."""
    env = os.environ if environ is None else environ
    return env.get("JOBQ_SERVER") or None


def servers_of_tests(environ: Mapping[str, str] | None = None) -> list[str] | None:
    """Return JOBQ_TEST_SERVERS, the only URLs to which tests may connect; `*` allows any URL. Return None outside
    tests.
    """
    env = os.environ if environ is None else environ
    servers = env.get(TEST_SERVERS)
    return None if servers is None else servers.split()


def lake_from_env(environ: Mapping[str, str] | None = None) -> str | None:
    """Return JOBQ_LAKE, the folder or bucket of the lake; None if unset."""
    env = os.environ if environ is None else environ
    return env.get("JOBQ_LAKE") or None
