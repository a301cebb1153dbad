"""Message ids: valid ids, and new ones."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from os import urandom
from typing import overload

from jobq.errors import ConfigError

#: In characters.
MAX_MID_LENGTH = 128
# Without a hyphen, a double click selects a whole mid, and a command takes it for no option.
_PLAIN = bytes.maketrans(b"+/", b"__")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
#: Characters that distinguish the mids of one call.
_ENDINGS = [first + last for first in _ALPHABET for last in _ALPHABET[:17]]


def new_mid() -> str:
    """A mid that no other message has: 14 letters, digits and `_` with 83 random bits, in 16 bytes of the server."""
    return b2a_base64(urandom(12), newline=False)[:14].translate(_PLAIN).decode()


class MadeMids(Sequence[str]):
    """Makes up to 1,024 new mids of the same form that share 71 random bits, and stores only these bits."""

    __slots__ = ("_count", "_stem")

    def __init__(self, count: int) -> None:
        self._stem = b2a_base64(urandom(9), newline=False).translate(_PLAIN).decode()
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        stem = self._stem
        return iter([stem + ending for ending in _ENDINGS[: self._count]])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return list(self)[index]


def mid_of(digest: bytes) -> str:
    """Return 12 bytes as a mid of the same form."""
    return b2a_base64(digest, newline=False)[:14].translate(_PLAIN).decode()


def users_mid(mid: str) -> str:
    """Return a user's `mid` if it is valid; mids that begin with '=' or '~' are reserved."""
    if mid.startswith("="):
        raise ConfigError(
            f"mid {mid!r} can't be used; mids that begin with '=' belong to unique jobs: @job(unique=…)"
        )
    return no_members_mid(mid)


def no_members_mid(mid: str) -> str:
    """Return `mid` if it is valid and doesn't belong to a flow; else raise ConfigError."""
    if mid.startswith("~"):
        raise ConfigError(
            f"mid={mid!r} can't be given; mids that begin with '~' are reserved for steps of flows"
        )
    return checked_mid(mid)


def members_mid(mid: str) -> str:
    """`checked_mid` for a mid of a flow."""
    if not mid.startswith("~"):
        raise ConfigError(f"mid={mid!r} is not the mid of a flow's message; those begin with '~'")
    return checked_mid(mid)


def checked_mid(mid: str) -> str:
    """Return `mid`; raise ConfigError if it is empty, too long or not printable."""
    if not 0 < len(mid) <= MAX_MID_LENGTH or not mid.isprintable():
        raise ConfigError(f"mid {mid!r} can't be used; use 1-{MAX_MID_LENGTH} printable characters")
    return mid
