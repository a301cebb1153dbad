"""Print current problems below the tables of `jobq queues` and `jobq workers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click
from msgspec import structs

from jobq.cli import output
from jobq.client.connection import Client
from jobq.errors import JobqError
from jobq.observe.incidents import Incident, incidents
from jobq.observe.situation import read_situation
from jobq.queue.doctor import Finding

#: Findings below a table.
MAX_COUNT = 5
#: Maximum number of findings of one kind that `jobq check doctor` prints.
MAX_OF_KIND = 20
#: Code -> the check of `jobq check doctor`, and whether it is a failure. A pause is intended.
CHECKS = {
    "server_read_only": ("persistence", True), "server_full": ("memory", True), "worker_lost": ("workers", False),
    "queue_unreadable": ("queues", True),
    "no_worker": ("workers", False), "all_quiet": ("workers", False), "unknown_job": ("jobs", False),
    "poison": ("jobs", False), "stuck": ("jobs", False), "backlog": ("queues", False),
}  # fmt: skip


def incidents_at(client: Client, names: Sequence[str] | None = None) -> list[Incident]:
    """Return the current problems of these queues (default: all queues).

    Return an empty list if the problems can't be read. The command itself reports that error.
    """
    try:
        return incidents(read_situation(client, names))
    except JobqError:
        return []


def attention(findings: Sequence[Incident]) -> Iterator[str]:
    """Yield an empty line, then a description of each problem. Yield nothing if there are no problems."""
    if findings:
        yield ""
    for incident in findings[:MAX_COUNT]:
        yield click.style(f"! {output.escaped(incident.sentence)}", fg="yellow", bold=True)
        if incident.remedy:
            yield f"  → {output.escaped(incident.remedy)}"
    if len(findings) > MAX_COUNT:
        yield f"  {len(findings) - MAX_COUNT:,} more: jobq check doctor"


def records_of(findings: Sequence[Incident], queue: str) -> list[dict[str, Any]]:
    """Return the problems that affect the queue, as records for --json."""
    return [
        {name: value for name, value in structs.asdict(incident).items() if name != "queues"}
        for incident in findings
        if incident.concerns(queue)
    ]


def checked(findings: Sequence[Incident]) -> Iterator[Finding]:
    """Convert the problems to the findings that `jobq check doctor` prints."""
    kinds = Counter[str]()
    for incident in findings:
        if incident.code not in CHECKS:
            continue
        check, fails = CHECKS[incident.code]
        kinds[incident.code] += 1
        if kinds[incident.code] <= MAX_OF_KIND:
            yield Finding(check, "fail" if fails else "warn", incident.sentence, incident.remedy)
    for code, number in kinds.items():
        if number > MAX_OF_KIND:
            more = f"{number - MAX_OF_KIND:,} more findings of the kind {code}"
            yield Finding(CHECKS[code][0], "warn", more, "jobq queues --json shows them")
