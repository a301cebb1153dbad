"""`python -m bench.tracing`: costs of OpenTelemetry for a worker, in jobs per second and µs of CPU per no-op job.

Modes take turns for several rounds, each on a separate server. Per mode the median rate, the median of its ratios
to the same messages without OpenTelemetry, and the least CPU: of the children, and of worker and server, with its
ratio. The last ratio also shows on a busy machine how many jobs two idle cores would run. Messages carry no trace,
an unsampled trace, or a sampled trace, whose spans go to a collector that discards them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from bench.profile import cpu_s
from bench.server import private_server
from bench.stage import wait_for
from bench.work import noop
from bench.worker import running_worker
from jobq import Queue

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
#: The first share of a drain, in which children start, isn't measured.
FROM_SHARE = 0.2


class Mode(NamedTuple):
    """The trace in messages, and whether the worker exports spans."""

    name: str
    flags: str
    exports: bool

    @property
    def headers(self) -> dict[str, str]:
        return {"traceparent": PARENT + self.flags} if self.flags else {}


MODES = [
    Mode(f"{carried}, OpenTelemetry {'on' if exports else 'off'}", flags, exports)
    for carried, flags in (("no trace", ""), ("unsampled", "00"), ("sampled", "01"))
    for exports in (False, True)
]


class Swallow(BaseHTTPRequestHandler):
    """A collector that discards spans."""

    def do_POST(self) -> None:
        """Discard the request."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Suppress the log."""


@contextmanager
def exporting(mode: Mode, endpoint: str) -> Iterator[None]:
    """Yield the environment of an exporting worker. Messages without a trace don't start traces."""
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }
    os.environ.update(given if mode.exports else {})
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)


class Drain(NamedTuple):
    """Jobs per second; µs of CPU per job, of the children, and of worker and server."""

    rate: float
    children: float
    everyone: float


def drained(mode: Mode, endpoint: str, jobs: int, processes: int) -> Drain:
    """Run the jobs of one drain."""
    with private_server() as client:
        queue = Queue("bench", client)
        noop.options(client=client, headers=mode.headers).enqueue_many([()] * jobs)
        with exporting(mode, endpoint), running_worker(client, client.url, processes):
            wait_for(lambda: queue.admin.counts().ready < jobs * (1 - FROM_SHARE), 60, 0.001)
            before, left, began = cpu_s(client), queue.admin.counts().ready, time.monotonic()
            wait_for(lambda: queue.admin.counts().ready == 0, 300, 0.01)
            took, after = time.monotonic() - began, cpu_s(client)
    children = after["children"] - before["children"]
    everyone = sum(after.values()) - sum(before.values())
    return Drain(left / took, children / left * 1e6, everyone / left * 1e6)


def main() -> None:
    """Print a line per mode."""
    parser = argparse.ArgumentParser(prog="python -m bench.tracing", description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Swallow)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    found: dict[Mode, list[Drain]] = {mode: [] for mode in MODES}
    for _ in range(chosen.rounds):
        for mode in MODES:
            found[mode].append(drained(mode, endpoint, chosen.jobs, chosen.processes))
    for mode, rounds in found.items():
        same = found[mode._replace(name=mode.name.replace(" on", " off"), exports=False)]
        ratio = statistics.median(on.rate / off.rate for on, off in zip(rounds, same))
        rate = statistics.median(round_.rate for round_ in rounds)
        children = min(round_.children for round_ in rounds)
        everyone = min(round_.everyone for round_ in rounds)
        share = min(one.everyone for one in same) / everyone
        print(
            f"{mode.name:30} {rate:9,.0f} jobs/s {ratio:5.2f}"
            f" {children:7.2f} µs {everyone:7.2f} µs {share:5.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
