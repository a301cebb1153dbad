"""`Limit`: never more starts in a span of time than a rate allows, in however many processes."""

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
from jobq.limits.calls import OnServer

logger = logging.getLogger("jobq.limits")
#: The latest turn that a limit gives, and the longest hold.
LONGEST_TURN_S, LONGEST_HOLD_S = 3600.0, 30 * 86400.0
_UNITS = {1000: "a second", 60_000: "a minute", 3_600_000: "an hour", 86_400_000: "a day"}


class Grant:
    """The answer to `take`: true if it started. Otherwise the next start is free in `retry_after` seconds."""

    __slots__ = ("_limit", "cost", "counted", "granted", "rate", "retry_after", "started_ms")

    def __init__(
        self, limit: Limit, cost: int, granted: bool, rate: Rate, *,
        retry_after: float = 0.0, started_ms: int = 0, counted: bool = True,
    ) -> None:  # fmt: skip
        """counted: False if it was granted without asking the server, which was away."""
        self._limit, self.cost, self.granted, self.rate = limit, cost, granted, rate
        self.retry_after, self.started_ms, self.counted = retry_after, started_ms, counted

    def __bool__(self) -> bool:
        return self.granted

    def __repr__(self) -> str:
        if self.granted:
            return f"<Grant of {self.cost} by {self._limit.name}>"
        return f"<no Grant by {self._limit.name} for {self.retry_after:.1f} s>"

    def settle(self, used: int) -> None:
        """Give back what `used` leaves of the cost. Call it once."""
        calls = self._limit.calls
        calls.perform(self._settle_steps(used))

    async def asettle(self, used: int) -> None:
        """As settle."""
        await self._limit.calls.aio.perform(self._settle_steps(used))

    def undo(self) -> None:
        """Give all of it back: nothing started."""
        try:
            self.settle(0)
        except JobqError as error:
            self._log_unused(error)

    async def aundo(self) -> None:
        """As undo."""
        try:
            await self.asettle(0)
        except JobqError as error:
            self._log_unused(error)

    def leave(self) -> None:
        """What started is over: a rate counts starts."""

    async def aleave(self) -> None:
        """As leave."""

    def _log_unused(self, error: JobqError) -> None:
        logger.warning("limit %s counts a start that wasn't used: %s", self._limit.name, error)

    def _settle_steps(self, used: int) -> Steps[None]:
        if isinstance(used, bool) or not isinstance(used, int) or not 0 <= used <= self.cost:
            raise ConfigError(
                f"used={used!r} is out of range; {self._limit.name} granted {self.cost}, so take 0 to {self.cost}"
            )
        unused, self.cost = self.cost - used, used
        if self.granted and self.counted and unused:
            most, span_ms = self.rate
            values = {
                "started": self.started_ms, "unused": unused, "most": most, "span_ms": span_ms,
                "margin_ms": self._limit.margin_ms,
            }  # fmt: skip
            yield from self._limit.calls.once_steps("settle", values)


class Limit(OnServer):
    """Never more than `rate` starts, "100/m", in any such span of time, in all processes together.

    Threads may share it.

    margin: the span is that many seconds longer, for providers that count arrivals. The rate may be changed at the
    server: `jobq limit set stripe 200/m`. Above 10,000 a span, at most a twentieth of the rate starts at once.
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
                f"margin={margin!r} is out of range; take 0 seconds to the span of {rate}"
            )
        self.margin_ms = round(seconds * 1000)
        self._warned_of: Rate | None = None

    def __repr__(self) -> str:
        return f"Limit({self.name!r}, {str(self.rate)!r})"

    @property
    def said(self) -> str:
        """The rate, and the margin in ms if there is one."""
        return f"{self.rate}+{self.margin_ms}" if self.margin_ms else str(self.rate)

    def take(self, cost: int = 1, *, fail_open: bool = False, now: int | None = None) -> Grant:
        """Count a start if there is room now; never wait.

        fail_open: start, uncounted, if the server is away, where UnavailableError would be raised. now: epoch ms, for
        tests. Raises ConfigError for a cost that the rate never allows.
        """
        try:
            return self.calls.perform(self._take_steps(cost, 0.0, now))
        except (UnavailableError, ServerFullError) as error:
            return self._opened(cost, fail_open, error)

    async def atake(self, cost: int = 1, *, fail_open: bool = False) -> Grant:
        """As take."""
        try:
            return await self.calls.aio.perform(self._take_steps(cost, 0.0))
        except (UnavailableError, ServerFullError) as error:
            return self._opened(cost, fail_open, error)

    def wait(
        self, timeout: Duration | None = None, cost: int = 1, *, fail_open: bool = False
    ) -> Grant:
        """Count a start, at the latest after `timeout`; None waits without end.

        Raises LimitedError at once if its turn comes later than that. fail_open: as for take.
        """
        try:
            return self.calls.perform(self._wait_steps(timeout, cost))
        except (UnavailableError, ServerFullError) as error:
            return self._opened(cost, fail_open, error)

    async def await_(
        self, timeout: Duration | None = None, cost: int = 1, *, fail_open: bool = False
    ) -> Grant:
        """As wait."""
        try:
            return await self.calls.aio.perform(self._wait_steps(timeout, cost))
        except (UnavailableError, ServerFullError) as error:
            return self._opened(cost, fail_open, error)

    def hold(self, seconds: Duration) -> None:
        """Allow no start for a time, given as for Retry: `hold(response.headers["Retry-After"])`. 0 ends a hold."""
        self.calls.perform(self.hold_steps(checked_hold(seconds)))

    async def ahold(self, seconds: Duration) -> None:
        """As hold."""
        await self.calls.aio.perform(self.hold_steps(checked_hold(seconds)))

    def admit(self, call: Call, worker: str) -> Grant:
        """For a job that is about to start."""
        return self.calls.perform(self._turn_steps())

    async def aadmit(self, call: Call, worker: str) -> Grant:
        """As admit."""
        return await self.calls.aio.perform(self._turn_steps())

    def _turn_steps(self) -> Steps[Grant]:
        """A start, or the turn of one that waits for however long."""
        return (yield from self._take_steps(1, LONGEST_TURN_S))

    def _wait_steps(self, timeout: Duration | None, cost: int) -> Steps[Grant]:
        until = None if timeout is None else monotonic() + duration_s(timeout)
        while True:
            left_s = LONGEST_TURN_S if until is None else max(0.0, until - monotonic())
            grant = yield from self._take_steps(cost, left_s)
            if grant:
                return grant
            if until is not None and grant.retry_after > left_s:
                raise self._limited(grant)
            yield Nap(grant.retry_after)

    def _take_steps(self, cost: int, patience_s: float, now: int | None = None) -> Steps[Grant]:
        """patience_s: a refused caller that waits so long at most gets its turn, as `retry_after`."""
        if isinstance(cost, bool) or not isinstance(cost, int) or cost < 1:
            raise ConfigError(f"cost={cost!r} is out of range; take a whole number from 1")
        calls = self.calls
        yield from calls.list_steps()
        patience_ms = min(round(patience_s * 1000), round(LONGEST_TURN_S * 1000))
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
                f"cost={cost} is more than {self._in_force(rest[:2])} ever allows at once; take at most {rest[2]}"
            )
        free_ms, turn_ms, *rate = rest
        wait_ms = turn_ms if patience_ms else free_ms
        grant = Grant(self, cost, False, self._in_force(rate), retry_after=wait_ms / 1000)
        grant.counted = word == b"wait"
        return grant

    def _in_force(self, found: list[Any]) -> Rate:
        rate = Rate(*found)
        if rate != self.rate and rate != self._warned_of:
            self._warned_of = rate
            logger.warning(
                "limit %s: the server says %s, which wins over %s here; jobq limit unset %s ends that",
                self.name, rate, self.rate, self.name,
            )  # fmt: skip
        return rate

    def _limited(self, grant: Grant) -> LimitedError:
        wait_s = grant.retry_after
        if not grant.counted:
            return LimitedError(
                f"{self.name} is held; its next start is free in {wait_s:.1f} s", wait_s
            )
        most, span_ms = grant.rate
        span = _UNITS.get(span_ms, f"in {span_ms / 1000:g} s")
        return LimitedError(
            f"{self.name} allows {most} {span}; the next is free in {wait_s:.1f} s", wait_s
        )

    def _opened(self, cost: int, fail_open: bool, error: JobqError) -> Grant:
        if not fail_open:
            raise error
        logger.warning("limit %s can't be asked, and the start isn't counted: %s", self.name, error)
        return Grant(self, cost, True, self.rate, counted=False)


def checked_hold(seconds: Duration) -> float:
    """How long to hold; ConfigError for text that can't be read as one."""
    try:
        found = wait_of(seconds)
    except ValueError as error:
        raise ConfigError(f"hold={error}") from None
    if not 0 <= found <= LONGEST_HOLD_S:
        raise ConfigError(f"hold={seconds!r} is out of range; take 0 seconds to 30 days")
    return found
