"""What the consumers, plain and async, have in common: their options and what becomes of a message; pure."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, NamedTuple, TypedDict

from jobq.config import duration_s
from jobq.errors import ConfigError, Dead, JobqError, Outcome, Retry, Snooze
from jobq.protocols.rsmq import checks
from jobq.protocols.rsmq.messages import Attributes, RsmqMessage

logger = logging.getLogger("jobq.rsmq")
#: Longest wait of one poll; stop ends it.
POLL_S = 30.0


class Consumed(NamedTuple):
    """What a consumer did: handled and deleted, failed, given up, received by somebody else meanwhile."""

    done: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0


class ConsumeOptions(TypedDict, total=False):
    """See Consuming."""

    vt: int | None
    concurrency: int
    max_receives: int | None
    dead_letter: str | None
    retry_after: float | str | timedelta | None
    burst: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Consuming:
    """How to consume.

    vt: seconds a message is hidden, renewed while its handler runs; the queue's without it. concurrency: how
    many handlers run at a time. max_receives: a message that was received so often and is still there goes to
    the dead-letter queue `dead_letter`, by default `<queue>-dead`, which is made when it is missing. retry_after:
    seconds until a failed message is visible again; without it its vt runs out. burst: end when nothing
    is visible.
    """

    qname: str
    vt: int | None = None
    concurrency: int = 1
    max_receives: int | None = None
    dead_letter: str | None = None
    retry_after: float | str | timedelta | None = None
    burst: bool = False

    def __post_init__(self) -> None:
        checks.existing_name(self.qname)
        for name in ("vt", "concurrency", "max_receives"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value} is below 1; take 1 or more")
        if self.retry_after is not None:
            whole_s(duration_s(self.retry_after))
        if self.dead_letter == self.qname:
            raise ConfigError(f"dead_letter {self.qname!r} is the queue itself; name another")
        if self.dead_letter is not None or self.max_receives is not None:
            checks.queue_name(self.dead_queue)

    @property
    def dead_queue(self) -> str:
        """Name of the dead-letter queue."""
        return self.dead_letter or f"{self.qname}-dead"

    def hidden_s(self, attributes: Attributes) -> int:
        """The visibility timeout, which a heartbeat must be able to renew in time."""
        vt = self.vt or attributes.vt
        if vt < 1:
            raise ConfigError(
                f"queue {self.qname!r} hides messages for {vt} s, too short to renew; give vt=…"
            )
        return vt

    def is_worn_out(self, message: RsmqMessage) -> bool:
        """It was received too often: nobody who received it lived to say why."""
        return self.max_receives is not None and message.rc > self.max_receives

    def ending(self, message: RsmqMessage, error: BaseException | None) -> Settlement:
        """What becomes of it after its handler returned or raised."""
        if error is None:
            return Settlement("delete")
        if isinstance(error, Dead):
            if checks.is_regular_name(self.dead_queue):
                return Settlement("dead", reason=error.reason)
            logger.error(
                "queue %s: %r can't name a queue; give dead_letter=…", self.qname, self.dead_queue
            )
        if self.max_receives is not None and message.rc >= self.max_receives:
            return Settlement("dead", reason=f"received {message.rc} times, at last {error!r}")
        return Settlement("retry", self._after_s(error), repr(error))

    def log_failure(self, message: RsmqMessage, error: BaseException | None) -> None:
        """With a traceback, unless the handler ended so on purpose."""
        said = f": {error}" if isinstance(error, Outcome) else ""
        logger.warning(
            "queue %s: message %s failed%s", self.qname, message.id, said,
            exc_info=None if said else error,
        )  # fmt: skip

    def _after_s(self, error: BaseException) -> int | None:
        after: float | str | timedelta | None = self.retry_after
        if isinstance(error, Retry | Snooze) and error.after is not None:
            after = error.after
        if after is None:
            return None
        try:
            return whole_s(min(duration_s(after), checks.LONGEST_S))
        except (ValueError, TypeError, OverflowError, JobqError) as refused:
            # One handler's mistake is no reason to end the loop.
            logger.warning("queue %s: after=%r is ignored: %s", self.qname, after, refused)
            return None


class Settlement(NamedTuple):
    """`after_s`: seconds until it is visible again, None = when its vt runs out."""

    verb: Literal["delete", "dead", "retry"]
    after_s: int | None = None
    reason: str = ""


def whole_s(seconds: float) -> int:
    """RSMQ knows whole seconds; no wait becomes shorter."""
    return checks.seconds("vt", math.ceil(seconds))
