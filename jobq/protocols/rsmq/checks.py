"""RSMQ's rules for names, ids, numbers and messages, without I/O.

Names and ids that don't follow the rules are accepted if they exist, because other clients create them.
"""

from __future__ import annotations

import os
import re
from typing import Any

from jobq.protocols.rsmq import javascript
from jobq.protocols.rsmq.errors import (
    InvalidFormatError,
    InvalidValueError,
    MessageNotStringError,
    MissingParameterError,
)

MAX_S = 9_999_999
MIN_SIZE, MAX_SIZE, ANY_SIZE = 1024, 65536, -1
#: A queue of this name would have the same key as the list of queues.
RESERVED = "QUEUES"

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,160}")
_FOREIGN_NAME = re.compile("[^:\x00-\x1f\x7f\ud800-\udfff]{1,160}")
_ID = re.compile(r"[a-zA-Z0-9:]{32}")
_MAX_ID_LENGTH = 512
#: Blanks as in JavaScript.
_WHOLE = re.compile(
    "[\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]*([+-]?[0-9]+)"
)

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_LETTERS = bytes(_ALPHABET[number % 62] for number in range(256))
_RANDOM, _AHEAD = 22, 100


def queue_name(value: Any) -> str:
    """Return a new queue's name. Raises an RsmqError if RSMQ rejects it."""
    if not value:
        raise MissingParameterError("qname")
    if not is_regular_name(value) or value == RESERVED:
        raise InvalidFormatError("qname")
    return str(value)


def existing_name(value: Any) -> str:
    """Check the name of an existing queue, and return it. PyRSMQ accepts names that Node's client rejects."""
    if isinstance(value, str) and can_name(value):
        return value
    return queue_name(value)


def can_name(name: str) -> bool:
    """Return whether a queue can have this name. Use this to check names that other programs wrote."""
    return name != RESERVED and _FOREIGN_NAME.fullmatch(name) is not None


def is_regular_name(value: Any) -> bool:
    """Return whether Node's client accepts this queue name."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def message_id(value: Any) -> str:
    """Check and return a message id. Any bytes are valid, because some clients create ids that Node rejects."""
    if not value:
        raise MissingParameterError("id")
    if not isinstance(value, str) or not 0 < len(bytes_of(value)) <= _MAX_ID_LENGTH:
        raise InvalidFormatError("id")
    return value


def text_of(written: bytes) -> str:
    """Decode a name or an id. `bytes_of` restores the same bytes, even if they aren't UTF-8."""
    return written.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Encode the text of a name or an id; return b'' if that is impossible."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b""  # half a surrogate pair


def is_regular_id(value: str) -> bool:
    """Return whether Node's client accepts this message id."""
    return _ID.fullmatch(value) is not None


def whole(value: Any) -> int | None:
    """Return a whole number, parsed like JavaScript's parseInt: '12abc' is 12, 1.9 is 1, and 'x' is None."""
    try:
        match = _WHOLE.match(javascript.text(value))
        return int(match[1]) if match else None
    except ValueError:
        return None  # thousands of digits, which Python doesn't read


def seconds(item: str, value: Any) -> int:
    """Return a visibility timeout or a delay in seconds. Raises InvalidValueError."""
    number = whole(value)
    if number is None or not 0 <= number <= MAX_S:
        raise InvalidValueError(item, 0, MAX_S)
    return number


def maxsize(value: Any) -> int:
    """Return the maximum size of a message in bytes, or -1 for any size."""
    number = whole(value)
    if number is None or (number != ANY_SIZE and not MIN_SIZE <= number <= MAX_SIZE):
        raise InvalidValueError("maxsize", MIN_SIZE, MAX_SIZE)
    return number


def body(message: Any) -> bytes:
    """Return a message's bytes; text is encoded as UTF-8."""
    if isinstance(message, bytes):
        return message
    if not isinstance(message, str):
        raise MessageNotStringError
    try:
        return message.encode()
    except UnicodeEncodeError:
        raise MessageNotStringError from None  # half a surrogate pair


def random_parts(count: int) -> list[bytes]:
    """Return the random last parts of `count` ids. All parts are different."""
    try:
        return [_drawn.pop() for _ in range(count)]
    except IndexError:
        # Losing the parts that were already taken is harmless, because they are random.
        drawn = os.urandom(_RANDOM * (count + _AHEAD)).translate(_LETTERS)
        parts = [drawn[first : first + _RANDOM] for first in range(0, len(drawn), _RANDOM)]
        _drawn.extend(parts[count:])
        return parts[:count]


def random_part() -> bytes:
    """Return random bytes for the end of a message id."""
    try:
        return _drawn.pop()
    except IndexError:
        return random_parts(1)[0]


#: Parts drawn in advance, because a system call costs more than a part. A forked child must draw its own parts.
_drawn: list[bytes] = []
os.register_at_fork(after_in_child=_drawn.clear)
