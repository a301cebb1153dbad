"""The tracebacks of failed attempts, and the places in the code that they name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from jobq.client.connection import Client
from jobq.client.pipelining import read_together
from jobq.errors import JobqError
from jobq.queue.queue import Queue
from jobq.queue.types import Status
from jobq.web.contents import Contents
from jobq.web.history import RunRow

#: Groups of errors whose place is looked for, and attempts of each.
MAX_GROUPS, ATTEMPTS_OF_EACH = 100, 3
_FRAME = re.compile(r'^[ |]*File "([^"\n]+)", line (\d+), in (.+)$', re.MULTILINE)


def tracebacks(client: Client, contents: Contents, runs: Sequence[RunRow]) -> dict[RunRow, str]:
    """Return the tracebacks of those attempts that still have one, in one round trip; on a Cluster, one for each.

    A message keeps the traceback of its latest failed attempt until it ends, a dead message as part of its reason.
    """
    failed = [run for run in runs if run.mid and run.kind in ("retry", "dead")]
    asked = [
        Queue(run.queue, client).admin.dead_call(run.mid)
        if run.kind == "dead"
        else Queue(run.queue, client).status_call(run.mid)
        for run in failed
    ]
    try:
        replies = read_together(client, asked)
    except JobqError:
        return {}
    found = {}
    for run, reply in zip(failed, replies, strict=True):
        text = _stored_text(run, reply)
        shown = contents.traceback(run.queue, run.mid, text, run.job)
        if shown:
            found[run] = shown
    return found


def places(
    client: Client, contents: Contents, newest: Mapping[str, Sequence[RunRow]]
) -> dict[str, str]:
    """Return the place in the code of each group of errors, of which some attempt has a traceback."""
    groups = list(newest)[:MAX_GROUPS]
    asked = {group: newest[group][:ATTEMPTS_OF_EACH] for group in groups}
    found = tracebacks(client, contents, [run for runs in asked.values() for run in runs])
    named = {
        group: next((place for run in runs if (place := place_of(found.get(run, "")))), "")
        for group, runs in asked.items()
    }
    return {group: place for group, place in named.items() if place}


def place_of(traceback: str) -> str:
    """Return `shop/pay.py:42 in charge`, the innermost frame; '' if the text names none."""
    frames = _FRAME.findall(traceback)
    if not frames:
        return ""
    path, line, function = frames[-1]
    return f"{'/'.join(path.replace(chr(92), '/').split('/')[-2:])}:{line} in {function}"


def _stored_text(run: RunRow, reply: object) -> str:
    if isinstance(reply, Status):
        return reply.traceback if reply.failed_attempt == run.attempt else ""
    return str(reply[0].reason) if isinstance(reply, list) and reply else ""
