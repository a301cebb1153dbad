"""Serves /healthz, /readyz and /metrics of a worker from its monitor process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from jobq.jobs.crashes import MonitorListener
from jobq.metrics.exposition import APPLICATION, metrics_page
from jobq.metrics.of_worker import worker_families
from jobq.metrics.serving import Answer, Endpoint, Page, PageRequest, PageServer, listen, logger
from jobq.worker.monitor import PoolView
from jobq.worker.shared_state import Phase

#: A supervisor is stuck if an iteration of its loop takes longer than this, and longer than a lease.
HANGS_S = 10.0
#: Number of leases after which a server that doesn't answer counts as away.
AWAY_LEASES = 2


def why_dead(pool: PoolView) -> str:
    """Return why the worker should be restarted; '' if it works. A lost connection to the server isn't a reason."""
    age_s = pool.state.loop_age_s
    if age_s < max(HANGS_S, pool.settings.lease_s):
        return ""
    return f"the supervisor has been stuck for {age_s:.0f} s"


def why_not_ready(pool: PoolView) -> str:
    """Return why the worker can't fetch messages or its jobs can't enqueue; '' if the worker is ready."""
    state = pool.state
    if dead := why_dead(pool):
        return dead
    if state.is_stopping:
        return "draining: it finishes running jobs, then exits"
    if state.is_quiet:
        return "quiet: it fetches no messages until CONT"
    if not any(child.phase in (Phase.WORKING, Phase.IDLE) for child in pool.children()):
        return "no child works"
    if state.server_age_s >= AWAY_LEASES * pool.settings.lease_s:
        return "the server doesn't answer"
    if state.is_server_full:
        # Waiting jobs still run. But jobs that enqueue fail, and a deployment should stop.
        return "full: the server's memory is at maxmemory, so it rejects enqueues"
    return ""


def probe(why: Callable[[], str]) -> Page:
    """Return a page for health checks. It answers `ok`, or status 503 with the reason that `why` returns."""

    def page(_: PageRequest) -> Answer:
        text = why()
        return Answer(f"{text}\n".encode(), 503) if text else Answer(b"ok\n")

    return page


class WorkerPages(MonitorListener):
    """Serves the HTTP pages of a worker from its monitor process."""

    def __init__(self, endpoint: Endpoint, by_job: bool = True) -> None:
        """Create the pages of a worker.

        Args:
            by_job: Whether metrics have the label `job`.
        """
        self._endpoint, self._by_job = endpoint, by_job
        self._listening: socket.socket | None = None
        self._announced = False

    def open(self) -> None:
        """Open a socket that listens at the endpoint. Reopening uses the same port, even if port 0 was requested."""
        self._listening = listen(self._endpoint)
        if not self._endpoint.path:
            port: int = self._listening.getsockname()[1]
            self._endpoint = self._endpoint._replace(port=port)
        if not self._announced:
            self._announced = True
            logger.info("probes and metrics at %s", self._endpoint.shown)

    def close(self) -> None:
        """Close this process's copy of the socket; the monitor process keeps its own."""
        if self._listening is not None:
            self._listening.close()

    def start(self, pool: PoolView) -> None:
        """Serve the pages in a thread."""
        assert self._listening is not None
        pages = {
            "/healthz": probe(lambda: why_dead(pool)),
            "/readyz": probe(lambda: why_not_ready(pool)),
            "/metrics": metrics_page(
                lambda: worker_families(pool, self._by_job), os.environ.get(APPLICATION, "")
            ),
        }
        PageServer(self._listening, pages).serve_in_thread()
