"""Messages and attributes, as any client of RSMQ may have written them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from jobq.protocols.rsmq.checks import ANY_SIZE, MAX_SIZE, is_regular_id, text_of, whole

VT_S, DELAY_S = 30, 0
_MILLISECONDS_FROM = 1e11
#: A message that is never visible has an infinite score, which is not an int.
LATEST_MS = 1 << 53


class RsmqMessage(msgspec.Struct, frozen=True):
    """A received message. `rc` counts how often it was received, and `fr` is its first receive time, epoch ms."""

    id: str
    body: bytes
    rc: int
    fr: int

    @property
    def message(self) -> str:
        """The body as text. Bytes that aren't UTF-8 become U+FFFD, as in Node."""
        return self.body.decode("utf-8", "replace")

    @property
    def sent(self) -> float | None:
        """The send time in epoch ms, with microseconds as the fraction; None if the id doesn't contain the time."""
        if not is_regular_id(self.id) or ":" in self.id[:10]:
            return None
        return int(self.id[:10], 36) / 1000

    @property
    def receipt(self) -> int:
        """The receipt for delete_message and change_message_visibility.

        The receipt is valid until another client receives the message.
        """
        return self.rc

    def as_dict(self) -> dict[str, Any]:
        """Return the message as a dict with the same names as in Node's client."""
        return {
            "id": self.id,
            "message": self.message,
            "rc": self.rc,
            "fr": self.fr,
            "sent": self.sent,
        }


class Peeked(RsmqMessage, frozen=True):
    """A message that peek returned. `visible_at`, in epoch ms, is in the past if the message can be received now."""

    visible_at: int


class Attributes(msgspec.Struct, frozen=True):
    """A queue's settings (in seconds and bytes), totals, timestamps (in epoch seconds) and message counts.

    `created` and `modified` are None if the stored value is missing or unreadable.
    """

    vt: int
    delay: int
    maxsize: int
    totalrecv: int
    totalsent: int
    created: int | None
    modified: int | None
    msgs: int
    hiddenmsgs: int

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as a dict with the same names as in Node's client."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class RsmqCounts(NamedTuple):
    """The numbers of messages that can be received now, and of hidden messages."""

    visible: int
    hidden: int


class Received(NamedTuple):
    """The result of one receive call.

    If `messages` is empty, `next_s` is the time in seconds until a hidden message becomes visible.
    """

    messages: list[RsmqMessage]
    next_s: float | None = None


class PeekedPage(NamedTuple):
    """A page of peek. `passed` is the number of ids in the page; ids without a body aren't in `messages`."""

    passed: int
    messages: list[Peeked]


class Repaired(NamedTuple):
    """Counts of removed leftovers: ids without a body, and fields without a message."""

    phantoms: int
    fields: int


def read_messages(reply: list[Any]) -> list[RsmqMessage]:
    """Parse the messages that follow the status in a reply."""
    if len(reply) == 5:  # usually one message, so this has a faster branch
        _, id_, body, rc, fr = reply
        return [RsmqMessage(text_of(id_), body, rc, _number(fr))]
    four = zip(reply[1::4], reply[2::4], reply[3::4], reply[4::4], strict=True)
    return [RsmqMessage(text_of(id_), body, rc, _number(fr)) for id_, body, rc, fr in four]


def read_peeked(reply: list[Any]) -> PeekedPage:
    """Return the messages of a peek reply."""
    five = zip(reply[2::5], reply[3::5], reply[4::5], reply[5::5], reply[6::5], strict=True)
    messages = [
        Peeked(text_of(id_), body, rc, _number(fr), _score(score))
        for id_, body, rc, fr, score in five
    ]
    return PeekedPage(reply[1], messages)


def read_attributes(reply: list[Any], *, as_node: bool = False) -> Attributes:
    """Parse the attributes in a reply.

    Args:
        as_node: Like the Node client, count messages as hidden if they became visible within this second.
    """
    vt, delay, maxsize, received, sent, created, modified = map(_text, reply[1:8])
    return Attributes(
        _whole(vt, VT_S), _whole(delay, DELAY_S), _whole(maxsize, MAX_SIZE), _whole(received, 0),
        _whole(sent, 0), epoch_s(created), epoch_s(modified), reply[8], reply[10 if as_node else 9],
    )  # fmt: skip


def too_long(size: int, maxsize: int) -> bool:
    """Return whether a queue rejects a message of this size."""
    return maxsize != ANY_SIZE and size > maxsize


def epoch_s(text: str) -> int | None:
    """Convert a client's timestamp to epoch seconds; return None if it is invalid.

    A timestamp is a number of seconds or milliseconds, or an RFC 3339 date.
    """
    try:
        number = float(text)
    except ValueError:
        try:
            return int(datetime.fromisoformat(text).timestamp())
        except (ValueError, OverflowError):
            return None
    if number != number or abs(number) == float("inf"):
        return None
    return int(number / 1000 if number >= _MILLISECONDS_FROM else number)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _whole(text: str, default: int) -> int:
    number = whole(text)
    return default if number is None else number


def _score(value: bytes) -> int:
    return int(min(LATEST_MS, max(-LATEST_MS, float(value))))


def _number(value: int | bytes) -> int:
    if isinstance(value, int):
        return value
    return int(value) if len(value) < 20 and value.isdigit() else _whole(_text(value), 0)
