"""A small HTTP server for health checks and metrics. It serves a few pages at an address or a Unix socket."""

from __future__ import annotations

import http.client
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from jobq.errors import ConfigError, UnavailableError

logger = logging.getLogger("jobq.metrics")
#: Timeout of a client for each step of its request, and maximum number of clients. A further client closes the oldest
#: connection.
STEP_S, MAX_CLIENTS = 5.0, 32
TEXT = "text/plain; charset=utf-8"


class Endpoint(NamedTuple):
    """An address at which a server listens: a host and a port, or the path of a Unix socket."""

    host: str
    port: int
    path: str = ""

    @property
    def shown(self) -> str:
        """Return the address as text, such as `http://127.0.0.1:9464` or `unix:/run/jobq.sock`."""
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class PageRequest(NamedTuple):
    """The parts of a client's request that a page needs: the Accept header and the query's parameters."""

    accept: str = ""
    query: Mapping[str, list[str]] = {}


class Answer(NamedTuple):
    """The reply to a request."""

    body: bytes
    status: int = 200
    kind: str = TEXT


Page = Callable[[PageRequest], Answer]


def parse_endpoint(text: str) -> Endpoint:
    """Parse `127.0.0.1:9464`, `[::1]:9464` or `unix:/run/jobq.sock`. Raises ConfigError for anything else."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path or len(os.fsencode(path)) > 100 or "\0" in path:
            raise ConfigError(f"{text!r:.200} is not a socket path; it must have 1 to 100 bytes")
        return Endpoint("", 0, path)
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ConfigError(
            f"{text!r:.200} is not an address; write it like 127.0.0.1:9464, 0.0.0.0:9464 or unix:/run/jobq.sock"
        )
    return Endpoint(host, int(port))


def listen(endpoint: Endpoint) -> socket.socket:
    """Return a socket that listens at the endpoint. Raises ConfigError if the endpoint can't be used."""
    try:
        return _listen_at_path(endpoint.path) if endpoint.path else _listen_at_port(endpoint)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"can't listen at {endpoint.shown}: {error}; choose another address"
        ) from error


def _listen_at_port(endpoint: Endpoint) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(MAX_CLIENTS)
    except BaseException:
        made.close()
        raise
    return made


def _listen_at_path(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode) and not _answers(path):
                os.unlink(path)
        before = os.umask(0o177)
        try:
            made.bind(path)
        finally:
            os.umask(before)
        made.listen(MAX_CLIENTS)
    except BaseException:
        made.close()
        raise
    return made


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(STEP_S)
        try:
            line.connect(path)
        except OSError:
            return False
    return True


class PageServer(ThreadingMixIn, HTTPServer):
    """Serves one page per path, on a socket that is already listening."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, pages: Mapping[str, Page]) -> None:
        super().__init__(("", 0), PageHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_address = listening.getsockname()
        self.pages = pages
        self._clients: dict[int, socket.socket] = {}
        self._lock = threading.Lock()

    def serve_in_thread(self) -> None:
        """Serve in a thread until the process ends."""
        threading.Thread(target=self.serve_forever, name="jobq-metrics", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a request. If there are too many connections, close the oldest connection first."""
        with self._lock:
            while len(self._clients) >= MAX_CLIENTS:
                with suppress(OSError):
                    self._clients.pop(next(iter(self._clients))).shutdown(socket.SHUT_RDWR)
            self._clients[id(request)] = request
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection and stop counting it."""
        with self._lock:
            self._clients.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error at debug level, because the usual cause is a client that disconnected early."""
        logger.debug("a request for metrics failed", exc_info=True)


class PageHandler(BaseHTTPRequestHandler):
    """Handles one request, then closes the connection."""

    server_version, sys_version = "jobq", ""
    timeout = STEP_S

    def do_GET(self) -> None:
        """Answer with the page at the request's path."""
        asked = urlsplit(self.path)
        assert isinstance(self.server, PageServer)
        pages = self.server.pages
        page = pages.get(asked.path)
        if page is None:
            known = " ".join(pages)
            answer = Answer(f"no such page; the pages are {known}\n".encode(), 404)
        else:
            try:
                query = parse_qs(asked.query, max_num_fields=20)
                answer = page(PageRequest(self.headers.get("Accept", ""), query))
            except Exception:
                logger.exception("the page %s failed", asked.path)
                answer = Answer(b"this page fails; the log says why\n", 500)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request at debug level, because health checks arrive every few seconds."""
        logger.debug("%s", format % args)


class _PathConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def fetch(endpoint: Endpoint, page: str, timeout_s: float = STEP_S) -> Answer:
    """Fetch a page from another process. Raises UnavailableError if there is no answer within `timeout_s` seconds."""
    # A server that listens on all interfaces also answers on the loopback interface.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(endpoint.host, endpoint.host)  # noqa: S104 # nosec B104
    line = (
        _PathConnection(endpoint.path, timeout_s)
        if endpoint.path
        else http.client.HTTPConnection(host, endpoint.port, timeout=timeout_s)
    )
    try:
        line.request("GET", page)
        reply = line.getresponse()
        return Answer(reply.read(1 << 20), reply.status, reply.getheader("Content-Type", ""))
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            f"can't reach {endpoint.shown}: {error}; is the worker running?"
        ) from error
    finally:
        line.close()
