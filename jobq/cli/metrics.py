"""`jobq metrics`: export metrics of queues, topics and schedules to Prometheus."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import click

from jobq.cli.arguments import names_of
from jobq.cli.lake import lake_option, opened, source_option, storage_option
from jobq.cli.options import option, queues_option
from jobq.cli.session import Session, command
from jobq.metrics.exposition import metrics_page
from jobq.metrics.names import LakeBehind
from jobq.metrics.serving import Answer, PageRequest, PageServer, listen, parse_endpoint


@command("metrics", "", "--bind 0.0.0.0:9465", "--queues high,low", "--once", server="awaits")
@option("--bind ADDRESS", "Listen at this host:port or unix:PATH.", default="127.0.0.1:9465")
@option("--once", "Print the metrics and exit.")
@lake_option("to report its lag")
@storage_option
@source_option
@queues_option
def metrics(
    session: Session, bind: str, once: bool, path: str | None, storage: tuple[str, ...],
    source: str, queues: str | None,
) -> bool | None:  # fmt: skip
    """Serve metrics of queues, topics and schedules until TERM or INT.

    One exporter is enough for any number of workers. A scrape makes a few calls to the server, at most every five
    seconds, and doesn't write. For metrics of attempts, use 'jobq worker --health'.
    """
    # Without this package, every scrape would fail.
    import prometheus_client  # noqa: F401

    from jobq.metrics.of_queues import QueueExporter

    names = names_of(queues) if queues else None
    exporter = QueueExporter(session.client, names, _lake_behind(session, path, storage, source))
    page = metrics_page(exporter.families)
    if once:
        answer = page(PageRequest())
        click.echo(answer.body.decode(), nl=False)
        return answer.status == 200
    endpoint = parse_endpoint(bind)
    listening = listen(endpoint)
    if not endpoint.path:
        endpoint = endpoint._replace(port=listening.getsockname()[1])
    numbers = (signal.SIGTERM, signal.SIGINT)
    # Block them before the first thread starts, so that all threads inherit the mask, and `sigwait` gets the signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    PageServer(
        listening, {"/metrics": page, "/healthz": lambda _: Answer(b"ok\n")}
    ).serve_in_thread()
    session.note(f"metrics at {endpoint.shown}")
    signal.sigwait(numbers)
    if endpoint.path:
        os.unlink(endpoint.path)
    return None


def _lake_behind(
    session: Session, path: str | None, storage: tuple[str, ...], source: str
) -> Callable[[], dict[str, LakeBehind]] | None:
    """Return a function that measures how far the lake is behind each queue; None without a lake."""
    if not path:
        return None
    from jobq.pipeline.lake.inspection import backlog

    lake = opened(session, path, storage)
    return lambda: {
        row.queue: LakeBehind(row.backlog, row.overruns_in_s, row.behind_s)
        for row in backlog(lake, session.client, source=source)
    }
