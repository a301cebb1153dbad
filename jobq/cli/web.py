"""`jobq web`: the dashboard."""

from __future__ import annotations

import logging
import socket
from typing import Any

from jobq.cli.options import option
from jobq.cli.session import Session, command
from jobq.errors import ConfigError
from jobq.extras import install
from jobq.metrics.serving import Endpoint, listen, parse_endpoint

#: How long to let requests end.
GRACE_S = 3


@command("web", "", "--bind 127.0.0.1:8701 --title production --accent '#b3261e'")
@option("--bind ADDRESS", "Listen at this host:port or unix:PATH.", default="127.0.0.1:8700")
@option("--title NAME", "Name of this cluster, in the header.", default="jobq")
@option("--accent COLOUR", "Colour of this cluster, as #1f5fa5.  [default: blue]", default="")
@option("--prefix PATH", "First part of every path, as /ops/jobq.  [default: none]", default="")
@option("--read-only", "Refuse every action.")
def web(session: Session, bind: str, title: str, accent: str, prefix: str, read_only: bool) -> None:
    """Serve the dashboard until TERM or INT.

    It listens on this machine alone, and prints a link that logs you in: it works once, for ten minutes.
    """
    try:
        import uvicorn

        from jobq.web.access.settings import AccessSettings
        from jobq.web.app import create_app
        from jobq.web.settings import WebSettings
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("jobq"):
            raise
        raise ConfigError(f"the dashboard needs {error.name}; {install('web')}") from error
    endpoint = parse_endpoint(bind)
    settings = WebSettings(
        title=title, accent=accent, prefix=prefix, read_only=read_only, access=AccessSettings(bind=endpoint)
    )  # fmt: skip
    app = create_app(session.client, settings=settings)
    listening = listen(endpoint)
    link = f"{address(endpoint, listening)}{prefix}/login?token={app.state.site.guard.links.make()}"
    session.say({"address": link}, f"dashboard at {link}")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", proxy_headers=False, server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
    )  # fmt: skip
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        app.state.site.close()
        session.client.close()


def address(endpoint: Endpoint, listening: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    if endpoint.path:
        return f"http+unix://{endpoint.path}"
    name: Any = listening.getsockname()
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"
