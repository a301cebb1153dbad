"""Message ids (mids): make new ones and check given ones."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from os import urandom
from typing import overload

from jobq.errors import ConfigError

#: Maximum length of a mid, in characters.
MAX_MID_LENGTH = 128
# Mids have no hyphen, so a double click selects a whole mid, and no command mistakes a mid for an option.
_PLAIN = bytes.maketrans(b"+/", b"__")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
#: Characters that distinguish the mids of one call.
_ENDINGS = [first + last for first in _ALPHABET for last in _ALPHABET[:17]]


def new_mid() -> str:
    """Return a new mid: 14 characters from A-Z, a-z, 0-9 and `_`, with 83 random bits."""
    # The server stores 14 characters in 16 bytes.
    return b2a_base64(urandom(12), newline=False)[:14].translate(_PLAIN).decode()


class MadeMids(Sequence[str]):
    """Up to 1,024 new mids in the form of `new_mid`. They share 71 random bits, and only these bits are stored."""

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
    """Return a mid made from 12 bytes, with the form that `new_mid` uses."""
    return b2a_base64(digest, newline=False)[:14].translate(_PLAIN).decode()


def users_mid(mid: str) -> str:
    """Return a mid chosen by a user; raise ConfigError if it is invalid, or begins with the reserved '=' or '~'."""
    if mid.startswith("="):
        raise ConfigError(
            f"mid={mid!r} can't be used: mids that begin with '=' belong to unique jobs; use another mid, or "
            "@job(unique=…)"
        )
    return no_members_mid(mid)


def no_members_mid(mid: str) -> str:
    """Return `mid`; raise ConfigError if it is invalid or belongs to a flow."""
    if mid.startswith("~"):
        raise ConfigError(
            f"mid={mid!r} can't be used: mids that begin with '~' are reserved for steps of flows; use another mid"
        )
    return checked_mid(mid)


def members_mid(mid: str) -> str:
    """Return `mid`; raise ConfigError if it is invalid or doesn't belong to a flow."""
    if not mid.startswith("~"):
        raise ConfigError(f"mid={mid!r} is not the mid of a flow's message, which begins with '~'")
    return checked_mid(mid)


def checked_mid(mid: str) -> str:
    """Return `mid`; raise ConfigError if it isn't printable text of 1 to 128 characters."""
    if not isinstance(mid, str) or not 0 < len(mid) <= MAX_MID_LENGTH or not mid.isprintable():
        text = "" if isinstance(mid, str) else "a str of "
        raise ConfigError(
            f"mid {mid!r:.200} can't be used; use {text}1-{MAX_MID_LENGTH} printable characters"
        )
    return mid


def is_mid(text: str) -> bool:
    """Whether a message can have this mid."""
    return 0 < len(text) <= MAX_MID_LENGTH and text.isprintable()
