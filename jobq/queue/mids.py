"""Message ids: what they may be, and new ones."""

from __future__ import annotations

from binascii import b2a_base64
from os import urandom

from jobq.errors import ConfigError

#: In characters.
LONGEST_MID = 128
_URLSAFE = bytes.maketrans(b"+/", b"-_")


def new_mid() -> str:
    """A mid that no other message has: 84 random bits in 14 characters, which fit 16 bytes of the server's memory."""
    return b2a_base64(urandom(12), newline=False)[:14].translate(_URLSAFE).decode()


def mid_of(digest: bytes) -> str:
    """12 bytes as a mid, in the same form."""
    return b2a_base64(digest, newline=False)[:14].translate(_URLSAFE).decode()


def checked_mid(mid: str) -> str:
    """Return `mid`; raise ConfigError for one that is empty, too long or not printable."""
    if not 0 < len(mid) <= LONGEST_MID or not mid.isprintable():
        raise ConfigError(f"mid {mid!r} can't be used; take 1-{LONGEST_MID} printable characters")
    return mid
