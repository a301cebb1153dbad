"""Endpoints for probes and Prometheus: /healthz, /readyz, /metrics, and the description of the API."""

from __future__ import annotations

import threading
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from jobq.errors import JobqError, LakeError
from jobq.extras import install
from jobq.metrics.exposition import metrics_page
from jobq.metrics.names import LakeBehind
from jobq.metrics.of_queues import QueueExporter
from jobq.metrics.serving import PageRequest
from jobq.web.access.identity import UserRole
from jobq.web.api.document import document
from jobq.web.api.resource import RESOURCES, ROOT
from jobq.web.routes import ROUTES, page
from jobq.web.site import Site, site_of

#: How long a reply from the server counts, and minimum interval between queries, in seconds.
FRESH_S, ASKED_S = 10.0, 2.0


class Readiness:
    """Checks whether the server has answered recently. It is thread-safe."""

    def __init__(self, site: Site) -> None:
        self._client = site.client
        self._lock = threading.Lock()
        self._asked = self._answered = float("-inf")

    def is_ready(self) -> bool:
        """Return whether the server has answered recently. The server is queried at most every two seconds."""
        with self._lock:
            now = time.monotonic()
            if now - self._asked >= ASKED_S:
                self._asked = now
                try:
                    self._client.clock_ms()
                    self._answered = time.monotonic()
                except JobqError:
                    pass
            return time.monotonic() - self._answered < FRESH_S


class WebExporter:
    """The metrics of queues, topics and schedules, and of the lake."""

    def __init__(self, site: Site) -> None:
        self._client, self._settings = site.client, site.settings
        behind = self._behind if site.settings.lake else None
        self.page = metrics_page(QueueExporter(site.client, lake=behind).families)

    def _behind(self) -> dict[str, LakeBehind]:
        """Return the lake's backlog for each queue, by name. Raises LakeError if the lake can't be read."""
        try:
            from jobq.pipeline.lake.inspection import backlog
            from jobq.pipeline.lake.lake import Lake
        except ModuleNotFoundError as error:
            raise LakeError(f"backlog figures need {error.name}; {install('spark')}") from error
        lake = Lake.open(self._settings.lake, self._settings.storage)
        backlogs = backlog(lake, self._client, source=self._settings.source)
        return {
            lag.queue: LakeBehind(lag.backlog, lag.overruns_in_s, lag.behind_s) for lag in backlogs
        }


@page("/healthz", role=UserRole.NONE)
def healthz(request: Request) -> Response:
    """Confirm that the process answers."""
    return PlainTextResponse("ok\n")


@page("/readyz", role=UserRole.NONE)
def readyz(request: Request) -> Response:
    """Report whether the server answered in the last ten seconds."""
    if site_of(request).part(Readiness, Readiness).is_ready():
        return PlainTextResponse("ready\n")
    return PlainTextResponse("the server does not answer\n", 503)


def metrics(request: Request) -> Response:
    """Answer a scrape by Prometheus."""
    exporter = site_of(request).part(WebExporter, WebExporter)
    answer = exporter.page(PageRequest(request.headers.get("accept", "")))
    return Response(answer.body, answer.status, {"content-type": answer.kind})


def openapi(request: Request) -> Response:
    """Return the OpenAPI document of the API."""
    return JSONResponse(document(RESOURCES.declared, f"{request.scope.get('root_path', '')}{ROOT}"))


ROUTES.add("/metrics", "GET", UserRole.READ, "metrics", metrics, program=True)
ROUTES.add(f"{ROOT}/openapi.json", "GET", UserRole.READ, "openapi", openapi, program=True)
