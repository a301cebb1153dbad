"""Ticks of schedules whose queue has partitions.

The queue itself keeps its schedules, whatever the number of partitions. A script enqueues a tick by storing its
message there; a client then sends the message to its partition and reports the result. If the client dies between the
steps, another client repeats the call with the same number, so the partition accepts the message only once.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from time import monotonic
from typing import NamedTuple

from jobq.client.numbered_calls import Caller
from jobq.client.scripts import Argument
from jobq.errors import (
    JobqError,
    KeyFullError,
    LeaseLostError,
    ScriptError,
    ServerFullError,
    UnavailableError,
)
from jobq.queue.queue import Queue
from jobq.queue.types import Ticked, text_of

logger = logging.getLogger("jobq.schedules")
#: Maximum number of messages in a reply.
PER_CALL = 20
#: Maximum number of calls for one tick. Another client may send a message between two calls.
TRIES = 5
#: How long after the read a message may be sent. A partition remembers the numbers of calls for ten minutes.
SEND_WITHIN_S = 60.0
_SEPARATOR = b"\x1f"


class KeptMessage(NamedTuple):
    """A tick's message that hasn't been sent yet.

    Attributes:
        number: A number that grows with each message of the schedule.
        action: 'waits' if the message waits for the previous run, 'replaced' if it replaces that run, or 'enqueued'.
    """

    schedule: str
    number: int
    action: str
    mid: str
    lock_ms: Argument
    dedupe_ms: Argument
    keyed: str
    key: str
    content: bytes


def _message_of(values: dict[str, Argument]) -> bytes:
    """Return the message of a tick in the form that the script stores."""
    head = [str(values[name]).encode() for name in ("lock_ms", "dedupe_ms", "keyed", "key")]
    content = values["content"]
    return _SEPARATOR.join(
        [*head, content if isinstance(content, bytes) else str(content).encode()]
    )


class PartitionTicks:
    """Enqueues the ticks of one partitioned queue, by sending their messages to the partitions."""

    def __init__(self, queue: Queue, clock: Callable[[], float] = monotonic) -> None:
        self._queue, self._clock = queue, clock

    def take(self, values: dict[str, Argument]) -> Ticked:
        """Handle one tick. If the tick enqueues a run, send the run's message to its partition.

        Args:
            values: The arguments of the script `tick`.
        """
        names = (
            "now",
            "name",
            "tick_ms",
            "after_ms",
            "due_ms",
            "overlap",
            "missed",
            "mid",
        )
        asked = {name: values[name] for name in names}
        asked |= {"before": "", "is_live": "", "message": _message_of(values)}
        for _ in range(TRIES):
            word, detail = map(text_of, self._queue.scripts["tick_partitioned"].run(asked))
            if word == "look":
                asked |= {"before": detail, "is_live": "1" if self._is_live(detail) else ""}
            elif word == "unsent":
                self.send()
            elif word == "open":
                break
            else:
                if word in ("enqueued", "waits", "replaced"):
                    self.send()
                return Ticked(word, detail)
        # The previous tick's message can't be sent yet, or the queue has lost its seal. The next check tries again.
        return Ticked("early", "")

    def _is_live(self, mid: str) -> bool:
        """Return whether a run of the message has started or is waiting, in any partition."""
        word = self._queue.status(mid).word
        return word == "done-with-requeue" or not word.startswith(("nil", "done", "dead"))

    def send(self) -> int:
        """Send all unsent messages of ticks to their partitions; return how many were sent.

        If a partition doesn't answer, stop sending. The next call sends the messages in another order.
        """
        kept, nsent = self._kept(()), 0
        while kept:
            read_at, done = self._clock(), list[Argument]()
            random.shuffle(kept)
            for message in kept:
                outcome = self._sent(message) if self._clock() < read_at + SEND_WITHIN_S else "away"
                if outcome == "away":
                    break
                done += [] if outcome == "kept" else [message.schedule, message.number, outcome]
            nsent += len(done) // 3
            kept = self._kept(done) if done else []
        return nsent

    def _kept(self, sent: Sequence[Argument]) -> list[KeptMessage]:
        """Delete the records of sent messages; return the unsent messages.

        An unreadable message is deleted, because a schedule has no more ticks until its message is sent or deleted.
        """
        script = self._queue.scripts["ticks_sent"]
        rows = iter(script.run({"limit": PER_CALL}, sent))
        kept, unreadable = list[KeptMessage](), list[Argument]()
        for name, number, action, mid, message in zip(rows, rows, rows, rows, rows, strict=True):
            parts = message.split(_SEPARATOR, 4)
            if len(parts) == 5:
                lock_ms, dedupe_ms, keyed, key = map(text_of, parts[:4])
                kept.append(
                    KeptMessage(
                        text_of(name), int(number), text_of(action), text_of(mid), lock_ms, dedupe_ms, keyed, key,
                        parts[4],
                    )
                )  # fmt: skip
            else:
                logger.error(
                    "schedule %s: the message of a tick can't be read; another program wrote it",
                    text_of(name),
                )
                unreadable += [name, number, ""]
        if unreadable:
            script.run({"limit": 0}, unreadable)
        return kept

    def _sent(self, kept: KeptMessage) -> str:
        """Send a message and return the outcome:

        - '': sent, or impossible to send.
        - 'full': the key has its maximum number of waiting messages.
        - 'away': the partition doesn't answer. Send the message again later.
        - 'kept': a script failed. Send the message again later.
        """
        named = kept.schedule
        try:
            self._enqueue(kept)
        except KeyFullError:
            logger.warning(
                "schedule %s: a tick was not enqueued: the line of its key is full", named
            )
            return "full"
        except (UnavailableError, ServerFullError, ScriptError) as error:
            logger.warning("schedule %s: the message of a tick waits: %s", named, error)
            return "kept" if isinstance(error, ScriptError) else "away"
        except JobqError as error:
            logger.error("schedule %s: the message of a tick can't be sent: %s", named, error)
        return ""

    def _enqueue(self, kept: KeptMessage) -> None:
        values: dict[str, Argument] = {
            "now": "", "delay_ms": "", "at": "", "can_update": 1, "can_requeue": 1, "again": "",
            "lock_ms": kept.lock_ms, "dedupe_ms": kept.dedupe_ms, "at_most_ms": "", "drop_results": "",
            "keyed": kept.keyed,
        }  # fmt: skip
        row = (kept.mid, kept.content, kept.key) if kept.keyed else (kept.mid, kept.content)
        try:
            if kept.action == "replaced":
                self._cancel(kept)
            self._queue.routed().send("memory", values, row, (kept.mid,), _caller(kept, "enqueue"))
        except LeaseLostError:
            # A later message of the schedule was sent, so this message was sent before.
            logger.debug("schedule %s: message %s was sent before", kept.schedule, kept.mid)

    def _cancel(self, kept: KeptMessage) -> None:
        """Cancel the previous run in the partition that has it.

        If another client repeats this call, the repeated call can't cancel the new run.
        """
        for place in self._queue.alone():
            if place.cancel(kept.mid, caller=_caller(kept, "cancel")) != ["nil"]:
                return


def _caller(kept: KeptMessage, verb: str) -> Caller:
    """Return a caller whose id and next number are the same in every client that sends this message."""
    digest = blake2b(f"{verb} {kept.schedule}".encode(), digest_size=16).hexdigest()
    caller = Caller(caller_id=f"tick-{digest}")
    caller.number = kept.number - 1
    return caller
