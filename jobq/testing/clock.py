"""The clock of tests. jobq and its scripts use this clock, and tests can move it forward without waiting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from jobq.client.clock import wall
from jobq.client.connection import Client
from jobq.config import duration_s
from jobq.durations import Duration
from jobq.errors import ConfigError
from jobq.queue.directory import queue_names
from jobq.queue.keys import prefix, result

#: Number of keys per SCAN.
SCANNED = 1_000


class KitClock:
    """The clock of jobq in this process and on the test server. It follows freezegun and time-machine.

    It starts at the host's current time. Moving the clock doesn't expire results; `expire_results` deletes them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        #: Called before each move. It raises ConfigError while something runs that can't follow the clock.
        self.guard: Callable[[], None] = bool  # type: ignore[assignment]

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(wall.ms() / 1000, UTC)

    def move(self, by: Duration) -> None:
        """Move the clock forward, for example by 30 (seconds), "5m" or a timedelta."""
        seconds = duration_s(by)
        if seconds < 0:
            raise ConfigError(
                f"the clock can't go back by {-seconds:g} s; pass a positive duration"
            )
        self._to(wall.ms() + round(seconds * 1000))

    def move_to(self, at: datetime | float) -> None:
        """Move the clock forward to a datetime with a time zone, or to epoch seconds."""
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ConfigError(f"{at!r} has no time zone; use datetime(…, tzinfo=timezone.utc)")
            at = at.timestamp()
        if at * 1000 < wall.ms():
            raise ConfigError(f"{at:.3f} is before {wall.ms() / 1000:.3f}; the clock can't go back")
        self._to(round(at * 1000))

    def expire_results(self) -> int:
        """Delete all stored results, as if they had expired. Return the number of deleted results."""
        gone = 0
        for name in queue_names(self._client):
            pattern, cursor = result(prefix(self._client.namespace, name), "*"), b"0"
            while True:
                cursor, names = self._client.command(
                    "SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED, routed_by=pattern
                )
                gone += self._client.command("DEL", *names) if names else 0
                if cursor == b"0":
                    break
        return gone

    def _to(self, at_ms: int) -> None:
        self.guard()
        wall.ahead_ms += at_ms - wall.ms()
