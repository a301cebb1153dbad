"""A collector: it takes OTLP over HTTP and keeps the spans that arrive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Arrived(NamedTuple):
    """A span, with ids as hex digits."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: list[str]
    status: int
    attributes: dict[str, Any]
    service: str
    seconds: float


@contextmanager
def collector() -> Iterator[tuple[str, list[Arrived]]]:
    """Its address, for OTEL_EXPORTER_OTLP_ENDPOINT, and the spans."""
    spans: list[Arrived] = []

    class Intake(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest()
            request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
            spans.extend(_arrived(request))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Intake)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _arrived(request: Any) -> Iterator[Arrived]:
    for resource in request.resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Arrived(
                    span.name, span.kind, span.trace_id.hex(), span.span_id.hex(),
                    span.parent_span_id.hex(), [link.span_id.hex() for link in span.links],
                    span.status.code, _values(span.attributes), service,
                    (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                )  # fmt: skip


def _values(attributes: Any) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes
    }  # fmt: skip
