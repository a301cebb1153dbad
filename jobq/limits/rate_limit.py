"""`RateLimit`: a maximum number of starts per time span, shared by all processes."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any

from jobq.client.names import checked_name
from jobq.client.numbered_calls import moment
from jobq.client.steps import Nap, Steps
from jobq.config import duration_s
from jobq.durations import Duration, Rate, rate_of, wait_of
from jobq.errors import ConfigError, JobqError, LimitedError, ServerFullError, UnavailableError
from jobq.jobs.context import Call
from jobq.jobs.queues import ClientLike
from jobq.limits.calls import SharedLimit

logger = logging.getLogger("jobq.limits")
#: Maximum time until a caller's turn, and maximum duration of a hold, in seconds.
MAX_TURN_S, MAX_HOLD_S = 3600.0, 30 * 86400.0
_UNITS = {1000: "a second", 60_000: "a minute", 3_600_000: "an hour", 86_400_000: "a day"}


class Grant:
    """The result of a request to start. A false grant means that no start is allowed for `retry_after` seconds."""

    __slots__ = ("_limit", "cost", "counted", "granted", "rate", "retry_after", "started_ms")

    def __init__(
        self, limit: RateLimit, cost: int, granted: bool, rate: Rate, *,
        retry_after: float = 0.0, started_ms: int = 0, counted: bool = True,
    ) -> None:  # fmt: skip
        """Create a grant.

        Args:
            counted: Whether the server counted an allowed start. For a rejected start: False if the limit is on hold,
                True if the rate is used up.
        """
        self._limit, self.cost, self.granted, self.rate = limit, cost, granted, rate
        self.retry_after, self.started_ms, self.counted = retry_after, started_ms, counted

    def __bool__(self) -> bool:
        return self.granted

    def __repr__(self) -> str:
        if self.granted:
            return f"<Grant of {self.cost} by {self._limit.name}>"
        return f"<no Grant by {self._limit.name} for {self.retry_after:.1f} s>"

    def adjust(self, used: int) -> None:
        """Reduce the cost to `used` and return the rest to the limit. Call this at most once."""
        calls = self._limit.calls
        calls.perform(self._adjust_steps(used))

    async def aadjust(self, used: int) -> None:
        """Adjust the cost without blocking the event loop; see `adjust`."""
        await self._limit.calls.aio.perform(self._adjust_steps(used))

    def undo(self) -> None:
        """Cancel the grant, so that the limit no longer counts its cost."""
        try:
            self.adjust(0)
        except JobqError as error:
            self._log_unused(error)

    async def aundo(self) -> None:
        """Cancel the grant without blocking the event loop; see `undo`."""
        try:
            await self.aadjust(0)
        except JobqError as error:
            self._log_unused(error)

    def leave(self) -> None:
        """Do nothing: a rate limit counts starts, so the end of a job doesn't matter."""

    async def aleave(self) -> None:
        """Do nothing; see `leave`."""

    def _log_unused(self, error: JobqError) -> None:
        logger.warning(
            "limit %s still counts a start that was not used: %s", self._limit.name, error
        )

    def _adjust_steps(self, used: int) -> Steps[None]:
        if isinstance(used, bool) or not isinstance(used, int) or not 0 <= used <= self.cost:
            raise ConfigError(
                f"used={used!r} is out of range; {self._limit.name} granted {self.cost}, so it must be between 0 "
                f"and {self.cost}"
            )
        unused, self.cost = self.cost - used, used
        if self.granted and self.counted and unused:
            max_starts, span_ms = self.rate
            values = {
                "started": self.started_ms, "unused": unused, "most": max_starts, "span_ms": span_ms,
                "margin_ms": self._limit.margin_ms,
            }  # fmt: skip
            yield from self._limit.calls.once_steps("settle", values)


class RateLimit(SharedLimit):
    """Limit the starts of all processes together: with "100/m", any span of a minute has at most 100 starts.

    `jobq limit set stripe 200/m` overrides the rate without a deploy. With a rate above 10,000 per span, at most a
    twentieth of the starts are allowed in a burst.

    Args:
        name: Programs that use the same name on the same server share the limit.
        rate: Maximum number of starts per second, minute, hour or day: `10/s`, `100/m`.
        margin: Extend the span by this duration, for providers that count requests when they arrive.
        client: None means the default client.
    """

    def __init__(
        self, name: str, rate: str, *, margin: Duration = 0, client: ClientLike | None = None
    ) -> None:
        super().__init__(checked_name("limit", name), client)
        try:
            self.rate = rate_of(rate)
        except ValueError as error:
            raise ConfigError(f"rate={error}") from None
        seconds = duration_s(margin)
        if not 0 <= seconds * 1000 <= self.rate.span_ms:
            raise ConfigError(
                f"margin={margin!r} is out of range; it must be between 0 seconds and the span of {rate}"
            )
        self.margin_ms = round(seconds * 1000)
        self._warned_rate: Rate | None = None

    def __repr__(self) -> str:
        return f"RateLimit({self.name!r}, {str(self.rate)!r})"

    @property
    def declaration(self) -> str:
        """The rate, and the margin in milliseconds if there is one: `100/m+500`."""
        return f"{self.rate}+{self.margin_ms}" if self.margin_ms else str(self.rate)

    def try_acquire(
        self, cost: int = 1, *, fail_open: bool = False, now: int | None = None
    ) -> Grant:
        """Count a start if the rate allows it now. Return a grant, which is false for a rejected start. Never wait.

        Args:
            cost: Number of starts to count.
            fail_open: If the server can't be reached or is full, allow the start without counting it.
            now: Current time in epoch milliseconds, for tests.

        Raises:
            ConfigError: The rate can never allow this cost.
            UnavailableError: The server can't be reached, and `fail_open` is false.
            ServerFullError: The server rejects writes, and `fail_open` is false.
        """
        try:
            return self.calls.perform(self._acquire_steps(cost, 0.0, now))
        except (UnavailableError, ServerFullError) as error:
            return self._fail_open(cost, fail_open, error)

    async def atry_acquire(self, cost: int = 1, *, fail_open: bool = False) -> Grant:
        """Count a start without blocking the event loop; see `try_acquire`."""
        try:
            return await self.calls.aio.perform(self._acquire_steps(cost, 0.0))
        except (UnavailableError, ServerFullError) as error:
            return self._fail_open(cost, fail_open, error)

    def acquire(
        self, timeout: Duration | None = None, cost: int = 1, *, fail_open: bool = False
    ) -> Grant:
        """Wait until the rate allows a start, and count it.

        Args:
            timeout: Maximum waiting time; None waits without a limit.
            cost, fail_open: See `try_acquire`, which also lists other errors.

        Raises:
            LimitedError: The caller's turn would come after `timeout`. This is raised immediately.
        """
        try:
            return self.calls.perform(self._wait_steps(timeout, cost))
        except (UnavailableError, ServerFullError) as error:
            return self._fail_open(cost, fail_open, error)

    async def aacquire(
        self, timeout: Duration | None = None, cost: int = 1, *, fail_open: bool = False
    ) -> Grant:
        """Wait for a start without blocking the event loop; see `acquire`."""
        try:
            return await self.calls.aio.perform(self._wait_steps(timeout, cost))
        except (UnavailableError, ServerFullError) as error:
            return self._fail_open(cost, fail_open, error)

    def hold(self, seconds: Duration) -> None:
        """Reject all starts for a duration, or for the time in a Retry-After header. 0 ends the hold."""
        self.calls.perform(self.hold_steps(checked_hold(seconds)))

    async def ahold(self, seconds: Duration) -> None:
        """Hold the limit without blocking the event loop; see `hold`."""
        await self.calls.aio.perform(self.hold_steps(checked_hold(seconds)))

    def admit(self, call: Call, worker: str) -> Grant:
        """Count the start of a job. If the rate doesn't allow it now, the grant contains the waiting time."""
        return self.calls.perform(self._turn_steps())

    async def aadmit(self, call: Call, worker: str) -> Grant:
        """Count the start of a job without blocking the event loop; see `admit`."""
        return await self.calls.aio.perform(self._turn_steps())

    def _turn_steps(self) -> Steps[Grant]:
        """Request a job's start. If the start is rejected, the grant contains the waiting time."""
        return (yield from self._acquire_steps(1, MAX_TURN_S))

    def _wait_steps(self, timeout: Duration | None, cost: int) -> Steps[Grant]:
        until = None if timeout is None else monotonic() + duration_s(timeout)
        while True:
            left_s = MAX_TURN_S if until is None else max(0.0, until - monotonic())
            grant = yield from self._acquire_steps(cost, left_s)
            if grant:
                return grant
            if until is not None and grant.retry_after > left_s:
                raise self._limited_error(grant)
            yield Nap(grant.retry_after)

    def _acquire_steps(self, cost: int, patience_s: float, now: int | None = None) -> Steps[Grant]:
        """Request a start.

        If the start is rejected, the grant contains the waiting time: until the caller's turn, or until the next free
        start if `patience_s` is 0.
        """
        if isinstance(cost, bool) or not isinstance(cost, int) or cost < 1:
            raise ConfigError(
                f"cost={cost!r} is out of range; it must be a whole number of at least 1"
            )
        calls = self.calls
        yield from calls.list_steps()
        patience_ms = min(round(patience_s * 1000), round(MAX_TURN_S * 1000))
        values = {
            "now": moment(now), "cost": min(cost, 10**9), "most": self.rate.most, "span_ms": self.rate.span_ms,
            "margin_ms": self.margin_ms, "patience_ms": patience_ms,
        }  # fmt: skip
        word, *rest = yield from calls.once_steps("take", values)
        if word == b"ok":
            started_ms, *rate = rest
            return Grant(self, cost, True, self._in_force(rate), started_ms=started_ms)
        if word == b"never":
            raise ConfigError(
                f"cost={cost} is more than {self._in_force(rest[:2])} can ever allow; it must be at most {rest[2]}"
            )
        free_ms, turn_ms, *rate = rest
        wait_ms = turn_ms if patience_ms else free_ms
        counted, rule = word == b"wait", self._in_force(rate)
        return Grant(self, cost, False, rule, retry_after=wait_ms / 1000, counted=counted)

    def _in_force(self, numbers: list[Any]) -> Rate:
        rate = Rate(*numbers)
        if rate != self.rate and rate != self._warned_rate:
            self._warned_rate = rate
            logger.warning(
                "limit %s: the rate %s set on the server overrides %s; jobq limit unset %s removes it",
                self.name, rate, self.rate, self.name,
            )  # fmt: skip
        return rate

    def _limited_error(self, grant: Grant) -> LimitedError:
        wait_s = grant.retry_after
        if not grant.counted:
            return LimitedError(f"{self.name} is held; try again in {wait_s:.1f} s", wait_s)
        max_starts, span_ms = grant.rate
        span = _UNITS.get(span_ms, f"in {span_ms / 1000:g} s")
        return LimitedError(
            f"{self.name} allows {max_starts} {span}; try again in {wait_s:.1f} s", wait_s
        )

    def _fail_open(self, cost: int, fail_open: bool, error: JobqError) -> Grant:
        if not fail_open:
            raise error
        logger.warning(
            "allowed a start without counting it, because the server of limit %s can't be reached: %s",
            self.name,
            error,
        )
        return Grant(self, cost, True, self.rate, counted=False)


def checked_hold(seconds: Duration) -> float:
    """Return the duration of a hold in seconds; raise ConfigError if it is not a duration of up to 30 days."""
    try:
        hold_s = wait_of(seconds)
    except ValueError as error:
        raise ConfigError(f"hold={error}") from None
    if not 0 <= hold_s <= MAX_HOLD_S:
        raise ConfigError(
            f"hold={seconds!r} is out of range; it must be between 0 seconds and 30 days"
        )
    return hold_s
