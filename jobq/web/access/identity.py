"""Who makes a request, and what that person or program may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from jobq.errors import ConfigError

#: Characters of a name at most. Names stand in the audit stream and in pages.
MAX_NAME_LENGTH = 64


class UserRole(IntEnum):
    """What a user may do. Each role may do what the ones before it may.

    NONE sees only the login. READ sees everything but arguments. OPERATE does what can be undone. ADMIN does the rest.
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
    """The role of a word: `role_of("operate")`. ConfigError for another word."""
    if word not in ROLE_WORDS:
        raise ConfigError(f"unknown role {word!r}; use one of {', '.join(ROLE_WORDS)}")
    return UserRole[word.upper()]


def checked_user_name(name: str) -> str:
    """Return `name`, as the users file takes it; else raise ConfigError."""
    if not 0 < len(name) <= MAX_NAME_LENGTH or ":" in name or " " in name or not name.isprintable():
        raise ConfigError(
            f"user name {name!r} can't be used; use 1 to {MAX_NAME_LENGTH} printable characters "
            "without white space or a colon"
        )
    return name


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of the dashboard.

    arguments: the user may see the arguments and results of jobs, and search in them. via: what proved the
    identity: `link`, `password`, `token`, `header`, `program` (the program that mounts the dashboard) or `open`
    (`--no-auth`).
    """

    name: str
    role: UserRole = READ
    arguments: bool = False
    via: str = "program"

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not bool(self.role) <= len(self.name) <= MAX_NAME_LENGTH:
            raise ConfigError(
                f"the name of an identity is 1 to {MAX_NAME_LENGTH} printable characters, not {self.name!r}"
            )
        if not isinstance(self.role, UserRole):
            # A program may give the word.
            object.__setattr__(self, "role", role_of(str(self.role)))

    def may(self, role: UserRole) -> bool:
        """Whether this user may do what needs `role`."""
        return self.role >= role


#: A request that proves nothing.
NOBODY = Identity("", NONE)
