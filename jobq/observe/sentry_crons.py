"""Check-ins that tell Sentry whether scheduled calls ran."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from sentry_sdk.crons import capture_checkin
from sentry_sdk.utils import capture_internal_exceptions

from jobq.jobs.context import Context
from jobq.jobs.ticks import Tick, tick_of

#: Minutes after a tick until Sentry reports a run that hasn't begun as missed.
MARGIN_MIN = 5
_INTERVAL = re.compile(r"every (\d+)s")
_NO_SLUG = re.compile(r"[^a-z0-9_-]+")


def checking_in(context: Context) -> Callable[[str], None]:
    """Tell Sentry that a scheduled call has started. Return a function to call with `ok` or `error` when the call ends.

    All attempts of a message share one check-in. The child process sends the check-in, because the supervisor has only
    one thread and no connection to Sentry. If a scheduled call never starts, Sentry shows it as missed.
    """
    tick = tick_of(context.headers)
    config = config_of(tick, context.hard_limit) if tick else None
    if tick is None or config is None:
        return lambda _: None
    slug, known = _names(tick, context.queue, context.mid)

    def send(status: str) -> None:
        with capture_internal_exceptions():
            capture_checkin(slug, known, status, monitor_config=config)

    send("in_progress")
    return send


def close(headers: Mapping[str, str], queue: str, mid: str) -> None:
    """Tell Sentry that a scheduled call has failed because its process died."""
    tick = tick_of(headers)
    if tick is not None and config_of(tick, None) is not None:
        slug, known = _names(tick, queue, mid)
        with capture_internal_exceptions():
            capture_checkin(slug, known, "error")


def _names(tick: Tick, queue: str, mid: str) -> tuple[str, str]:
    """Return the monitor's slug and the check-in's id, which a supervisor can also compute for a dead child."""
    slug = _NO_SLUG.sub("-", tick.schedule.lower()).strip("-")[:50]
    return slug, hashlib.sha256(f"{queue}/{mid}/{tick.at_ms}".encode()).hexdigest()[:32]


def config_of(tick: Tick, limit_s: float | None) -> Any:
    """Return the configuration of a schedule's monitor, or None for intervals that Sentry doesn't support.

    Args:
        limit_s: Maximum duration of a run.
    """
    interval = _INTERVAL.fullmatch(tick.rule)
    if interval is None and tick.rule.startswith("every "):
        return None
    if interval is not None and int(interval[1]) % 60:
        return None
    rule = (
        {"type": "interval", "value": int(interval[1]) // 60, "unit": "minute"}
        if interval
        else {"type": "crontab", "value": tick.rule}
    )
    config = {"schedule": rule, "timezone": tick.zone, "checkin_margin": MARGIN_MIN}
    return config | ({"max_runtime": math.ceil(limit_s / 60)} if limit_s else {})
