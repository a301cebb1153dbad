"""Parse options of Spark's readers and writers. The case of an option's name doesn't matter."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Literal

from jobq.config import STAYING_PATIENCE_S, ServerSettings, parse_time, settings_from_env
from jobq.errors import ConfigError

#: Options of every read and write that say where the server is.
PLACE = ("url", "namespace")
#: A time as callers pass it; None means no limit.
Moment = datetime | date | str | None
#: Where work is done: in this process or on Spark's executors. `auto` chooses Spark for large amounts.
EngineName = Literal["auto", "local", "spark"]
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no")


class SparkOptions:
    """The options of a read or write, as plain data that can be sent to executors. Unknown names are rejected."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        self._given: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in names:
                raise ConfigError(unknown("option", name, names.values()))
            self._given[names[name.lower()]] = str(value)

    def __repr__(self) -> str:
        return f"Options({', '.join(sorted(self._given))})"

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def text(self, name: str, default: str = "") -> str:
        """Return an option's text, or the default."""
        return self._given.get(name, default)

    def flag(self, name: str, default: bool) -> bool:
        """Return an option as a boolean."""
        text = self.text(name, "true" if default else "false").strip().lower()
        if text not in (*_YES, *_NO):
            raise ConfigError(f"option {name}={text!r} is invalid; use true or false")
        return text in _YES

    def number(self, name: str, default: int, least: int = 0) -> int:
        """Return an option as a whole number of at least `least`."""
        text = self.text(name, str(default)).strip()
        if not text.lstrip("-").isdecimal() or int(text) < least:
            raise ConfigError(
                f"option {name}={text!r} is invalid; use a whole number of at least {least}"
            )
        return int(text)

    def choice(self, name: str, choices: Iterable[str], default: str = "") -> str:
        """Return an option that is one of several words; case doesn't matter."""
        known = {word.lower(): word for word in choices}
        text = self.text(name, default).strip()
        if text.lower() not in known:
            raise ConfigError(unknown(f"{name} =", text, known.values()))
        return known[text.lower()]

    def names(self, name: str) -> tuple[str, ...]:
        """Return an option's comma-separated names without duplicates; empty if the option isn't set."""
        parts = (part.strip() for part in self.text(name).split(","))
        return tuple(dict.fromkeys(filter(None, parts)))

    def moment(self, name: str) -> datetime | None:
        """Return an option as a time, None if it isn't set. A time without a time zone is UTC."""
        text = self.text(name).strip()
        return parsed_moment(f"option {name}", text) if text else None

    def server(self) -> ServerSettings:
        """Return the server's settings, without an outage buffer. Options override environment variables."""
        settings = settings_from_env(patience_s=STAYING_PATIENCE_S)
        return replace(
            settings,
            url=self.text("url") or settings.url,
            namespace=self.text("namespace") or settings.namespace,
            outage_buffer=0,
        )


def parsed_moment(what: str, text: str) -> datetime:
    """Parse an ISO 8601 time; without a time zone it is UTC."""
    try:
        return parse_time(text, zone=UTC)
    except ConfigError as error:
        raise ConfigError(f"{what}={error}") from error


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the error text for an unknown name, with the nearest known name or all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), [name.lower() for name in names], 1, 0.5)
    remedy = next(name for name in names if name.lower() == near[0]) if near else ""
    hint = f"did you mean {remedy!r}?" if remedy else f"use one of {', '.join(names)}"
    return f"{what} {name!r} is unknown; {hint}"
