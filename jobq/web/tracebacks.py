"""Tracebacks of failed attempts, if the server still stores them."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.client.connection import Client
from jobq.client.pipelining import read_together
from jobq.errors import JobqError
from jobq.queue.queue import Queue
from jobq.queue.types import Status
from jobq.web.contents import Contents
from jobq.web.history import RunRow


def tracebacks(client: Client, contents: Contents, runs: Sequence[RunRow]) -> dict[RunRow, str]:
    """Return the stored tracebacks of these attempts. Reading them takes one round trip; on a Cluster, one per attempt.

    A message stores the traceback of its latest failed attempt until the message ends. A dead message stores the
    traceback in its reason.
    """
    failed = [run for run in runs if run.mid and run.kind in ("retry", "dead")]
    asked = [
        place.admin.dead_call(run.mid) if run.kind == "dead" else place.status_call(run.mid)
        for run in failed
        for place in [Queue(run.partition or run.queue, client)]
    ]
    try:
        replies = read_together(client, asked)
    except JobqError:
        return {}
    texts = {}
    for run, reply in zip(failed, replies, strict=True):
        text = _stored_text(run, reply)
        shown = contents.traceback(run.queue, run.mid, text, run.job)
        if shown:
            texts[run] = shown
    return texts


def _stored_text(run: RunRow, reply: object) -> str:
    if isinstance(reply, Status):
        return reply.traceback if reply.failed_attempt == run.attempt else ""
    return str(reply[0].reason) if isinstance(reply, list) and reply else ""
