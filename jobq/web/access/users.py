"""The users file: users with their roles and password hashes, and tokens for programs. Only its owner may read the
file.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from jobq.errors import ConfigError
from jobq.trust import user_name
from jobq.web.access.identity import Identity, checked_user_name, role_of
from jobq.web.access.passwords import (
    hash_password,
    is_hash,
    new_token,
    password_matches,
    token_digest,
)

#: Maximum number of bytes of the file to read; a thousand users need 200 KB.
MAX_BYTES = 1 << 20


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user of the dashboard. A user without a password can only log in through a trusted proxy."""

    role: str
    arguments: bool = False
    password: str | None = None


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program's token.

    Attributes:
        sha256: Hash of the token, in hex.
        expires: Expiry in epoch seconds; None for never.
    """

    role: str
    sha256: str
    arguments: bool = False
    expires: int | None = None


class Entries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of the users file."""

    users: dict[str, User] = {}
    tokens: dict[str, Token] = {}


class Known(NamedTuple):
    """A user from the users file.

    Attributes:
        mark: Digest of the user's password, role and right to see arguments.
    """

    identity: Identity
    mark: str


class UsersFile:
    """Reads a users file, and reads it again after each change. It is thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raise ConfigError if the file is missing, damaged, or open to others."""
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._entries = Entries()
        self._by_digest: dict[str, str] = {}
        self.entries()

    def entries(self) -> Entries:
        """Return the current content of the file. If the file can't be read, raise ConfigError, so all logins fail."""
        with self._lock:
            with _opened(self.path) as (descriptor, status):
                seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                if seen != self._seen:
                    self._entries = _parsed(self.path, os.read(descriptor, MAX_BYTES + 1))
                    tokens = self._entries.tokens
                    self._by_digest = {token.sha256: name for name, token in tokens.items()}
                    self._seen = seen
            return self._entries

    def user(self, name: str, via: str = "password") -> Known | None:
        """Return the user with this name, or None."""
        user = self.entries().users.get(name)
        if user is None:
            return None
        mark = token_digest(f"{user.role} {user.arguments} {user.password}")[:16]
        return Known(Identity(name, role_of(user.role), user.arguments, via), mark)

    def check_password(self, name: str, password: str) -> Known | None:
        """Return the user if the password is right, otherwise None. Checking an unknown name takes the same time."""
        user = self.entries().users.get(name)
        if not password_matches(password, user.password if user else None):
            return None
        return self.user(name)

    def check_token(self, token: str, now: float) -> Identity | None:
        """Return the program that has this token; None if the token is unknown or has expired.

        Args:
            now: Epoch seconds.
        """
        entries = self.entries()
        name = self._by_digest.get(token_digest(token))
        known = entries.tokens.get(name) if name is not None else None
        if name is None or known is None or (known.expires is not None and now >= known.expires):
            return None
        return Identity(name, role_of(known.role), known.arguments, "token")


def add_user(path: Path, name: str, user: User, *, replace: bool = False) -> None:
    """Add a user; create the file if it is missing.

    Raises ConfigError if the name is taken, unless `replace` is set.
    """
    checked_user_name(name)
    role_of(user.role)
    with _changing(path) as entries:
        if name in entries.users and not replace:
            raise ConfigError(
                f"there is already a user {name!r}; remove the user first, or use --replace"
            )
        entries.users[name] = user


def remove_user(path: Path, name: str) -> bool:
    """Remove a user, which ends the user's sessions; return whether the user existed."""
    with _changing(path) as entries:
        return entries.users.pop(name, None) is not None


def add_token(path: Path, name: str, role: str, arguments: bool, expires: int | None) -> str:
    """Add a token and return it; the file stores only its SHA-256. Raises ConfigError if the name is taken."""
    checked_user_name(name)
    role_of(role)
    token = new_token()
    with _changing(path) as entries:
        if name in entries.tokens:
            raise ConfigError(f"there is already a token {name!r}; remove it first")
        entries.tokens[name] = Token(
            role=role, sha256=token_digest(token), arguments=arguments, expires=expires
        )
    return token


def remove_token(path: Path, name: str) -> bool:
    """Remove a token; return whether the token existed."""
    with _changing(path) as entries:
        return entries.tokens.pop(name, None) is not None


def new_user(role: str, arguments: bool, password: str | None) -> User:
    """Return a user with the hash of this password. Raises ConfigError for a bad role or password."""
    role_of(role)
    hashed = None if password is None else hash_password(password)
    return User(role=role, arguments=arguments, password=hashed)


def expiry_text(expires: int | None) -> str:
    """Return when a token expires, in UTC; `never` if it doesn't."""
    if expires is None:
        return "never"
    return datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%MZ")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    """Open the file, check the owner and the permissions of the opened file, and yield it with its status."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(
            f"the users file {path} can't be read: {error.strerror}; "
            + (
                f"add the first user with 'jobq web user add NAME --role admin --users {path}'"
                if isinstance(error, FileNotFoundError)
                else "check the path and the permissions of its folders"
            )
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(
                f"the users file {path} is not a regular file; name a file with --users"
            )
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"the users file {path} belongs to {user_name(status.st_uid)}, not to you or root; change its owner"
            )
        if status.st_mode & 0o077:
            raise ConfigError(
                f"the users file {path} is open to others (mode {status.st_mode & 0o777:04o}); chmod 600 it"
            )
        yield descriptor, status
    finally:
        os.close(descriptor)


def _parsed(path: Path, raw: bytes) -> Entries:
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            f"the users file {path} is larger than {MAX_BYTES:,} bytes, the maximum; remove unused users and tokens"
        )
    try:
        entries = msgspec.json.decode(raw, type=Entries)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"the users file {path} is damaged: {error}") from error
    try:
        for name in (*entries.users, *entries.tokens):
            checked_user_name(name)
        for user in entries.users.values():
            role_of(user.role)
        for token in entries.tokens.values():
            role_of(token.role)
    except ConfigError as error:
        raise ConfigError(f"the users file {path}: {error}") from error
    for name, user in entries.users.items():
        if user.password is not None and not is_hash(user.password):
            raise ConfigError(
                f"the users file {path}: the password hash of {name!r} can't be read; set the password again with "
                f"'jobq web user add {name} --replace'"
            )
    return entries


@contextmanager
def _changing(path: Path) -> Iterator[Entries]:
    """Yield the file's entries, then write the changed entries with mode 0600. A lock prevents concurrent changes."""
    folder = path.absolute().parent
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"the folder {folder} can't be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = UsersFile(path).entries() if path.exists() else Entries(users={}, tokens={})
        yield entries
        text = msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n"
        _replace(path, text)
    finally:
        os.close(lock)


def _replace(path: Path, text: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, text)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigError(f"the users file {path} can't be written: {error.strerror}") from error
