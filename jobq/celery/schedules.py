"""The classes `crontab` and `schedule` of Celery beat, for schedules of jobq."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from jobq.errors import ConfigError

Field = str | int | Iterable[int]


class crontab:
    """A cron expression, with one argument per field."""

    def __init__(
        self, minute: Field = "*", hour: Field = "*", day_of_week: Field = "*", day_of_month: Field = "*",
        month_of_year: Field = "*",
    ) -> None:  # fmt: skip
        fields = [
            _text(field) for field in (minute, hour, day_of_month, month_of_year, day_of_week)
        ]
        if fields[2] != "*" and fields[4] != "*":
            raise ConfigError(
                f"with day_of_month={fields[2]!r} and day_of_week={fields[4]!r}, Celery runs a task if both match, "
                f"but cron runs a task if either matches; set only one field, and check the other field in the task"
            )
        #: The cron expression.
        self.cron = " ".join(fields)

    def __repr__(self) -> str:
        return f"<crontab: {self.cron}>"


class schedule:
    """A fixed interval between runs."""

    def __init__(self, run_every: float | timedelta) -> None:
        self.run_every = run_every


def options_of(when: Any, zone: str) -> tuple[str | None, dict[str, Any]]:
    """Return the cron expression, if any, and the option `every` or `tz` for a beat entry's schedule."""
    if isinstance(when, crontab):
        return when.cron, {"tz": zone}
    if isinstance(when, schedule):
        when = when.run_every
    if isinstance(when, int | float | timedelta):
        return None, {"every": when}
    raise ConfigError(
        f"schedule {when!r:.100} can't be used; use a crontab, seconds or a timedelta"
    )


def _text(field: Field) -> str:
    if isinstance(field, str):
        return field.replace(" ", "")
    if isinstance(field, int):
        return str(field)
    return ",".join(map(str, sorted(field)))
