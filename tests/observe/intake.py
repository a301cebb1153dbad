"""A Sentry of our own: it listens on HTTP and keeps the events that arrive."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def intake() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its DSN, and the events."""
    events: list[dict[str, Any]] = []

    class Intake(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            lines = body.splitlines()
            events.extend(
                json.loads(item) for head, item in zip(lines[1::2], lines[2::2], strict=False)
                if json.loads(head).get("type") == "event"
            )  # fmt: skip
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Intake)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://key@127.0.0.1:{server.server_port}/1", events
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
