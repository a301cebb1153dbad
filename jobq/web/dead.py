"""Dead messages of all queues, grouped by job and error."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jobq.client.connection import Client
from jobq.client.names import base_of
from jobq.errors import ScriptError, UnavailableError
from jobq.queue.queue import Queue
from jobq.web.contents import Contents
from jobq.web.filters import MAX_CHARACTERS, Filter, quoted
from jobq.web.search import (
    MAX_MESSAGES,
    MAX_SECONDS,
    PER_CALL,
    DeadFingerprints,
    ListedRow,
    counts_of,
    dead_row,
    names_in,
)

#: Maximum groups on a page, and maximum characters of an error's shape.
MAX_GROUPS, MAX_ERROR = 200, 160
#: Variable parts of similar errors: numbers, ids, addresses, texts in quotes.
_VARIES = re.compile(
    r"\*+|'[^']{0,200}'|\"[^\"]{0,200}\"|<[^<>]{0,200}>|\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+(?:[.,:]\d+)*"
)


class DeadGroup(NamedTuple):
    """A group of similar dead messages. Times are in epoch ms.

    Attributes:
        error: Text of the errors, with `*` in place of its variable parts.
        filter: Filter that lists these messages.
    """

    queue: str
    job: str
    error: str
    number: int
    newest_at: int
    oldest_at: int
    newest_error: str
    filter: str


class DeadGroups(NamedTuple):
    """Groups of dead messages, largest first.

    Attributes:
        more: Number of omitted groups.
        looked_at: Number of searched dead messages.
        total: Number of all dead messages in these queues.
        at_ms: Server time of the request, in epoch ms.
        problems: Queue name -> reason why the queue can't be read.
    """

    groups: list[DeadGroup]
    more: int
    looked_at: int
    total: int
    at_ms: int
    problems: dict[str, str]


@dataclass
class _Tally:
    number: int = 0
    newest_at: int = 0
    oldest_at: int = 0
    newest_error: str = ""

    def add(self, at_ms: int, error: str) -> None:
        if not self.number or at_ms > self.newest_at:
            self.newest_at, self.newest_error = at_ms, error
        self.oldest_at = min(at_ms, self.oldest_at) if self.number else at_ms
        self.number += 1


def groups(
    client: Client, contents: Contents, asked: Filter, names: Sequence[str],
    most: int = MAX_MESSAGES, seconds: float = MAX_SECONDS,
) -> DeadGroups:  # fmt: skip
    """Group the latest matching dead messages of each queue. The limits apply to all queues together."""
    until, now_ms = time.monotonic() + seconds, client.clock_ms()
    counts, problems = counts_of(client, names_in(asked, names))
    left = sorted((count.dead, name) for name, count in counts.items() if count.dead)
    tallies: dict[tuple[str, str, str], _Tally] = {}
    looked_at, total = 0, sum(number for number, _ in left)
    fingerprints = DeadFingerprints(asked)
    while left:
        share = max(PER_CALL, (most - looked_at) // len(left))
        _, name = left.pop(0)
        try:
            queue = Queue(name, client)
            queue.is_alone = True
            rows = _newest(queue, contents, share, now_ms, until)
            for listed in fingerprints.added(queue, rows):
                looked_at += 1
                if asked(listed.row):
                    key = (base_of(name), listed.row.job, shape(listed.row.error))
                    tally = tallies.setdefault(key, _Tally())
                    tally.add(listed.at_ms, listed.row.error.partition("\n")[0])
        except (ScriptError, UnavailableError) as error:
            if client.is_lost(error):
                raise
            problems[name] = str(error)
    ranked = [
        DeadGroup(*key, tally.number, tally.newest_at, tally.oldest_at, tally.newest_error, filter_of_group(*key))
        for key, tally in tallies.items()
    ]  # fmt: skip
    ranked.sort(
        key=lambda group: (-group.number, -group.newest_at, group.queue, group.job, group.error)
    )
    return DeadGroups(
        ranked[:MAX_GROUPS], len(ranked[MAX_GROUPS:]), looked_at, max(total, looked_at), now_ms, problems,
    )  # fmt: skip


def _newest(
    queue: Queue, contents: Contents, most: int, now_ms: int, until: float
) -> list[ListedRow]:
    """Return rows for a queue's latest dead messages, at most `most` rows.

    Stop reading at the time `until`, but read at least one page.
    """
    rows: list[ListedRow] = []
    while not rows or (len(rows) < most and time.monotonic() < until):
        page = queue.admin.dead(len(rows), min(PER_CALL, most - len(rows)))
        if not page:
            break
        rows += [dead_row(contents, queue.name, message, now_ms) for message in page]
    return rows


def shape(error: str) -> str:
    """Return the first line of an error with `*` for variable parts: `Timeout after 30 s` -> `Timeout after * s`."""
    line = error.partition("\n")[0]
    masked = re.sub(r"\*[\s*]*\*", "*", _VARIES.sub("*", line[: 4 * MAX_ERROR]))
    whole = len(masked) <= MAX_ERROR and len(line) <= 4 * MAX_ERROR
    return masked if whole else f"{masked[:MAX_ERROR].rstrip('*')}*"


def filter_of_group(queue: str, job: str, error: str) -> str:
    """Return the filter that lists a group's messages. A filter that would be too long is shortened, so it matches more
    messages.
    """
    parts = [quoted(part) if part else "" for part in error.split("*")]
    named = f"queue:{quoted(queue)} job:{quoted(job) if job else chr(34) * 2} error:"
    text = named + ("*".join(parts) or '""')
    while len(text) > MAX_CHARACTERS and len(parts) > 1:
        parts = [*parts[:-2], ""] if parts[-1] == "" else [*parts[:-1], ""]
        text = named + "*".join(parts)
    return text if len(text) <= MAX_CHARACTERS else f"queue:{quoted(queue)}"
