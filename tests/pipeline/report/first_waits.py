"""The first wait of messages in plain Python: what the view `events` must say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from jobq.pipeline.report.query import ReportQuery

FIRST = ("done", "retry", "dead", "crashed", "snoozed")
Rows = list[dict[str, Any]]


def in_range(rows: Rows, query: ReportQuery) -> Rows:
    """The rows of the range, each with its first wait, and when its message arrived: `since` its newest revival."""
    rows = [one for one in rows if query.since <= one["finished_at"] < query.until]
    times = {
        kind: grouped([one for one in rows if one["kind"] == kind], "queue", "mid")
        for kind in ("snoozed", "revived")
    }
    made = []
    for one in rows:
        mid = one["queue"], one["mid"]
        snoozed, revived = (
            [row["finished_at"] for row in times[kind].get(mid, ())] for kind in times
        )
        ran, since = one["started_at"], _since(one, revived)
        is_first = one["kind"] in FIRST and one["attempt"] == 1
        late = any((since is None or at >= since) and (ran is None or ran >= at) for at in snoozed)
        wait = one["wait_ms"] if since is None else (ran - since) // timedelta(milliseconds=1)
        first = wait if is_first and not late else None
        made.append({**one, "first": first, "since": since, "arrived": since or one["enqueued_at"]})
    return made


def _since(run: dict[str, Any], revived: Sequence[datetime]) -> datetime | None:
    """The newest revival of the run's message before it."""
    begun, ran = run["enqueued_at"], run["started_at"]
    if begun is None or ran is None:
        return None
    return max((at for at in revived if begun <= at <= ran), default=None)


def grouped(rows: Rows, *names: str) -> dict[tuple[Any, ...], Rows]:
    """The rows by the values of some columns."""
    found: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for one in rows:
        found[tuple(one[name] for name in names)].append(one)
    return found
