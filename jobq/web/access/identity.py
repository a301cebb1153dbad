"""Identities of users and programs, and their rights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from jobq.errors import ConfigError

#: Maximum length of a name in characters. Names appear in the audit stream and in pages.
MAX_NAME_LENGTH = 64


class UserRole(IntEnum):
    """Role of a user. Each role includes the rights of the roles before it.

    NONE only sees the login page. READ sees everything except arguments. OPERATE can make reversible changes. ADMIN can
    make all changes.
    """

    NONE = 0
    READ = 1
    OPERATE = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """The name of the role on pages, in the users file and on the command line."""
        return self.name.lower()


NONE, READ, OPERATE, ADMIN = UserRole
ROLE_WORDS = tuple(role.word for role in UserRole if role)


def role_of(word: str) -> UserRole:
    """Return the role with this name: `role_of("operate")`. Raises ConfigError for an unknown name."""
    if word not in ROLE_WORDS:
        raise ConfigError(f"unknown role {word!r}; use one of {', '.join(ROLE_WORDS)}")
    return UserRole[word.upper()]


def checked_user_name(name: str) -> str:
    """Return `name` if it is valid in the users file. Raises ConfigError otherwise."""
    if not 0 < len(name) <= MAX_NAME_LENGTH or ":" in name or " " in name or not name.isprintable():
        raise ConfigError(
            f"user name {name!r} must be 1 to {MAX_NAME_LENGTH} printable characters, without spaces or colons"
        )
    return name


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of the dashboard.

    Attributes:
        arguments: Whether the user may see and search the arguments and results of jobs.
        via: How the user was identified: by `link`, `password`, `token`, `header`, `program` (the program that mounts
            the dashboard) or `open` (`--no-auth`).
    """

    name: str
    role: UserRole = READ
    arguments: bool = False
    via: str = "program"

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not bool(self.role) <= len(self.name) <= MAX_NAME_LENGTH:
            raise ConfigError(
                f"the name of an identity must be 1 to {MAX_NAME_LENGTH} printable characters, not {self.name!r}"
            )
        if not isinstance(self.role, UserRole):
            # A program may pass the name of the role.
            object.__setattr__(self, "role", role_of(str(self.role)))

    def may(self, role: UserRole) -> bool:
        """Return whether this user has the rights of `role`."""
        return self.role >= role


#: The identity of a sender who didn't prove who they are.
NOBODY = Identity("", NONE)
