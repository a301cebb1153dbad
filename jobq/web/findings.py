"""Problems that need attention, each with a sentence and a link to details."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import islice
from threading import Lock
from typing import NamedTuple

from jobq.client.connection import Client
from jobq.errors import JobqError
from jobq.observe.incidents import Incident
from jobq.queue.types import Schedules
from jobq.schedules.listing import (
    ScheduleRow,
    is_undeclared,
    known_if_readable,
    rows_of,
    schedules_of_queues,
)
from jobq.web import formats
from jobq.web.sampler import Snapshot
from jobq.web.site import Site
from jobq.web.words import sentence, state_label

#: Maximum number of findings of each kind on the first page.
MAX_COUNT = 8
#: Interval between searches for late schedules, delay after which a schedule is late, and maximum number of
#: schedules to check per queue.
LATE_EVERY_S, LATE_MS, MAX_SCHEDULES = 15.0, 60_000, 1_000


class PageFinding(NamedTuple):
    """A line in the list of findings.

    Attributes:
        style, word: Style and text of the state's label.
        name: The subject's name, for example a queue.
        route, values: Route of the page with details, and the parameters in its path.
        since: When the problem began, in epoch ms; None if unknown.
    """

    style: str
    word: str
    name: str
    text: str
    route: str = ""
    values: Mapping[str, str] = {}
    since: float | None = None


Finder = Callable[[Site, Snapshot], list[PageFinding]]
#: Functions that find problems. Modules of pages add their functions when they are imported.
FINDERS: list[Finder] = []


def finder(find: Finder) -> Finder:
    """Declare a function that finds problems. The function may make at most one round trip to the server."""
    FINDERS.append(find)
    return find


def findings(site: Site, snapshot: Snapshot) -> list[PageFinding]:
    """Return the findings: causes first, then queues without a known cause, then other problems."""
    return [
        *_causes(snapshot), *_queues(snapshot),
        *site.part(LateSchedules, lambda site: LateSchedules(site.client)).findings(snapshot),
        *(finding for find in FINDERS for finding in find(site, snapshot)[:MAX_COUNT]),
    ]  # fmt: skip


class LateSchedules:
    """Finds overdue and undeclared schedules. It queries the server at most once per LATE_EVERY_S seconds."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = Lock()
        self._until = 0.0
        self._findings: list[PageFinding] = []

    def findings(self, snapshot: Snapshot) -> list[PageFinding]:
        """Return findings about late and undeclared schedules, most overdue first."""
        with self._lock:
            if time.monotonic() >= self._until and not snapshot.broken:
                self._findings = self._read(list(snapshot.queues))
                self._until = time.monotonic() + LATE_EVERY_S
            return self._findings

    def _read(self, names: list[str]) -> list[PageFinding]:
        try:
            by_queue = schedules_of_queues(self._client, names)
        except JobqError:  # reported elsewhere on the page
            return []
        known = (known_if_readable(self._client) if by_queue else None) or {}
        rows = [
            (is_undeclared(row, known.get(queue, ())), row)
            for queue, reply in by_queue.items()
            if isinstance(reply, Schedules)
            for row in islice(rows_of(queue, reply), MAX_SCHEDULES)
        ]
        shown = [(gone, row) for gone, row in rows if gone or row.late_ms > LATE_MS]
        shown.sort(key=lambda each: -each[1].late_ms)
        return [_late(row, gone) for gone, row in shown[:MAX_COUNT]]


def _late(row: ScheduleRow, undeclared: bool) -> PageFinding:
    text = (
        f"No running worker of {row.queue} declares this schedule, so it doesn't run. Remove it, or deploy "
        "the code that declares it."
        if undeclared
        else f"A tick has been due for {formats.duration(row.late_ms / 1000)}, but no worker of {row.queue} has "
        "enqueued it."
    )
    return PageFinding(
        "retry", "undeclared" if undeclared else "late", row.name, text, "schedule",
        {"schedule": row.name, "queue": row.queue},
    )  # fmt: skip


def _queues(snapshot: Snapshot) -> list[PageFinding]:
    rows = snapshot.unexplained
    backlogs = {
        incident.queues[0]: cause_line(incident).text
        for incident in snapshot.incidents
        if incident.code == "backlog"
    }
    shown = [
        PageFinding(
            *state_label(row), row.queue, backlogs.get(row.queue) or sentence(row), "queue", {"queue": row.queue},
            row.growth.since_s * 1000
            if row.state == "falling_behind" and row.growth.since_s is not None
            else None,
        )
        for row in rows[:MAX_COUNT]
    ]  # fmt: skip
    if len(rows) > MAX_COUNT:
        shown.append(
            PageFinding("unknown", "more", f"{len(rows) - MAX_COUNT:,} more queues", "", "queues")
        )
    return shown


#: Code of an incident -> style and word of its line.
_OF_CODES = {
    "server_read_only": ("dead", "read-only"), "server_full": ("dead", "full"), "worker_lost": ("dead", "lost"),
    "unknown_job": ("dead", "unknown job"), "poison": ("dead", "crashing"), "stuck": ("retry", "stuck"),
    "all_quiet": ("paused", "quiet"), "backlog": ("retry", "backlog"), "no_worker": ("dead", "no worker"),
    "paused": ("paused", "paused"),
}  # fmt: skip


def _causes(snapshot: Snapshot) -> list[PageFinding]:
    told = {row.queue for row in snapshot.unexplained}
    shown = [
        incident
        for incident in snapshot.incidents
        # Other incidents are left to the states of their queues, whose figures cover a longer period.
        if incident in snapshot.causes or not told.issuperset(incident.queues)
    ]
    lines = [cause_line(incident) for incident in shown[:MAX_COUNT]]
    if len(shown) > MAX_COUNT:
        more = f"{len(shown) - MAX_COUNT:,} more"
        lines.append(PageFinding("unknown", "more", more, "jobq check doctor lists them"))
    return lines


def cause_line(incident: Incident) -> PageFinding:
    """Convert an incident to a finding with a link to the page that shows details."""
    style, word = _OF_CODES[incident.code]
    text = f"{incident.sentence[:1].upper()}{incident.sentence[1:]}.{' → ' * bool(incident.remedy)}{incident.remedy}"
    queue = incident.queues[0] if incident.queues else ""
    if incident.mid and queue:
        return PageFinding(
            style, word, incident.headline, text, "message", {"queue": queue, "mid": incident.mid}
        )
    if incident.code == "worker_lost" and incident.worker:
        return PageFinding(
            style, word, incident.headline, text, "worker", {"worker": incident.worker}
        )
    if queue:
        return PageFinding(style, word, incident.headline, text, "queue", {"queue": queue})
    return PageFinding(style, word, incident.headline, text, "workers" if incident.worker else "")
