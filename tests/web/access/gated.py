"""A small application behind the gate, and requests as raw bytes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from jobq.metrics.serving import parse_endpoint
from jobq.web.access.gate import Gate
from jobq.web.access.settings import AccessSettings


async def _seen(request: Request) -> JSONResponse:
    body = await request.body()
    return JSONResponse(
        {"scheme": request.url.scheme, "address": request.client.host, "bytes": len(body)}
    )


METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


def gated(
    *, bind: str = "127.0.0.1:8700", peer: str = "127.0.0.1", prefix: str = "", **given: object
) -> TestClient:
    """A client of an application that answers what it sees of each request."""
    endpoint = parse_endpoint(bind) if bind else None
    settings = AccessSettings(bind=endpoint, **given)
    app = Gate(Starlette(routes=[Route("/{path:path}", _seen, methods=METHODS)]), settings)
    served = Starlette(routes=[Mount(prefix, app=app)]) if prefix else app
    return TestClient(served, base_url="http://127.0.0.1:8700", client=(peer, 40_000))
