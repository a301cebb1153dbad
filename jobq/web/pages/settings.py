"""The settings page with the findings of `jobq check doctor`, the connections, and the event levels."""

from __future__ import annotations

import time
from threading import Lock
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jobq import __version__
from jobq.client.pipelining import commands
from jobq.errors import masked_text
from jobq.events import MAXLEN
from jobq.queue import keys
from jobq.queue.directory import listed_queues
from jobq.queue.doctor import Finding, findings
from jobq.queue.types import text_of
from jobq.web.foreign import MAX_ROWS, read_each
from jobq.web.pages.foreign import offset_of
from jobq.web.rendering import render
from jobq.web.routes import nav, page
from jobq.web.site import Site, site_of

#: How long findings are reused, in seconds.
KEPT_S = 30.0
LOOKS = {"ok": "done", "warn": "retry", "fail": "dead"}

nav("settings", "Settings", section="Records", order=99)


class Doctor:
    """The findings of one dashboard's server. It is thread-safe."""

    def __init__(self, site: Site) -> None:
        self._client = site.client
        self._lock = Lock()
        self._until = 0.0
        self._findings: list[Finding] = []

    def findings(self) -> list[Finding]:
        """Return the findings, failures first. The server is checked at most every half minute."""
        with self._lock:
            if time.monotonic() >= self._until:
                order = list(LOOKS)[::-1]
                self._findings = sorted(
                    findings(self._client), key=lambda finding: order.index(finding.level)
                )
                self._until = time.monotonic() + KEPT_S
            return self._findings


@page("/settings")
def settings(request: Request) -> Response:
    """Show the findings of `jobq check doctor`, the connections, and the event levels."""
    site, offset = site_of(request), offset_of(request)
    names = listed_queues(site.client).names

    def levels(name: str) -> dict[str, Any]:
        # A read-only user may not run the script for levels, so read the fields directly.
        meta = keys.key(keys.prefix(site.client.namespace, name), "meta")
        words = [("HGET", meta, field) for field in ("events", "maxlen")]
        level, most = commands(site.client, meta, words)
        return {"queue": name, "level": text_of(level or b"attempts"), "maxlen": _number(most)}

    read = read_each(site.client, names[offset : offset + MAX_ROWS], levels)
    return render(
        request, "settings.html", live=0, findings=site.part(Doctor, Doctor).findings(), looks=LOOKS, levels=read,
        more=len(names) > offset + MAX_ROWS, offset=offset, step=MAX_ROWS, version=__version__,
        url_shown=masked_text(site.client.url), namespace=site.client.namespace,
        operate_shown="" if site.operate is site.client else masked_text(site.operate.url),
    )  # fmt: skip


def _number(written: bytes | None) -> int | None:
    """Return the configured length of a queue's event stream, or the default; None if the setting isn't a number."""
    if written is None:
        return MAXLEN
    return int(written) if written.isdigit() and len(written) < 12 else None
