"""Slow and silent clients neither block the dashboard's server nor fill its log."""

from __future__ import annotations

import logging
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from jobq.web.serving import (
    MAX_CONNECTIONS,
    PATIENCE_S,
    BoundedServer,
    Connections,
    most_connections,
    once_a_minute,
)

MAX_COUNT = 8
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 64 << 20


async def _answer(request: Request) -> Response:
    try:
        await request.body()
    except ClientDisconnect:
        return Response(status_code=400)
    return PlainTextResponse("x" * LARGE if request.url.path == "/large" else "fine")


@contextmanager
def served(now: Callable[[], float] = lambda: 0.0) -> Iterator[Callable[[], socket.socket]]:
    """A function that connects to a server of a small application."""
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    app = Starlette(routes=[Route("/{path:path}", _answer, methods=["GET", "POST"])])
    server = BoundedServer(app, listening, Connections(MAX_COUNT, now))
    thread = threading.Thread(target=server.serve_until_signal)
    thread.start()
    with ExitStack() as opened:
        try:
            yield lambda: opened.enter_context(socket.create_connection(address, 60))
        finally:
            opened.close()
            server.should_exit = True
            thread.join(60)


@pytest.fixture
def closed() -> Iterator[threading.Event]:
    """Yield an event that is set when the server logs closed connections."""
    told = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: told.set()
    logging.getLogger("jobq.web").addHandler(handler)
    yield told
    logging.getLogger("jobq.web").removeHandler(handler)


def exchanged(client: socket.socket) -> bytes:
    client.sendall(GET)
    return client.recv(1000)


def test_server_answers_when_silent_clients_hold_more_connections_than_it_keeps():
    with served() as connect:
        silent = [connect() for _ in range(4 * MAX_COUNT)]
        for _ in range(3):
            assert exchanged(connect()).startswith(b"HTTP/1.1 200")
        assert silent[0].recv(1) == b"", "the longest waiting is closed first"


def test_server_closes_those_that_wait_and_keeps_a_request_under_way(caplog):
    with served() as connect:
        slow = connect()
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        for _ in range(MAX_COUNT):
            assert exchanged(connect()).startswith(b"HTTP/1.1 200")
        slow.settimeout(60)
        assert slow.recv(1) == b"", "a body that doesn't come is waited for like headers"
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", GET, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
     b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=["silent", "headers", "idle", "body", "reply"],
)  # fmt: skip
def test_connection_is_closed_when_its_client_is_slow(sent, closed):
    now = [0.0]
    with served(lambda: now[0]) as connect:
        client = connect()
        client.sendall(sent)
        received = len(client.recv(1)) if b"large" in sent else 0
        assert exchanged(connect()).startswith(b"HTTP/1.1 200")
        now[0] = PATIENCE_S + 1
        assert closed.wait(60)
        while part := _received(client):
            received += len(part)
        assert received < LARGE


def _received(client: socket.socket) -> bytes:
    """Some bytes; none at the end."""
    try:
        return client.recv(1 << 20)
    except ConnectionResetError:
        return b""


def test_a_minute_has_one_line_about_closed_connections(caplog):
    now = [0.0]
    connections = Connections(2, lambda: now[0])
    with ExitStack() as opened, caplog.at_level(logging.WARNING, "jobq.web"):
        for _ in range(5):
            for one in socket.socketpair():
                opened.enter_context(one)
                connections.add(one)
            connections.sweep()
            now[0] += PATIENCE_S
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_a_connection_is_only_closed_while_it_waits():
    connections = Connections(1, lambda: 0.0)
    with ExitStack() as opened:
        pairs = [[opened.enter_context(one) for one in socket.socketpair()] for _ in range(2)]
        connections.add(pairs[0][0])
        connections.mark(pairs[0][0].fileno(), waits=False)
        connections.add(pairs[1][0])
        assert pairs[1][1].recv(1) == b""
        pairs[0][0].send(b"reply")
        assert pairs[0][1].recv(9) == b"reply"


def test_the_number_of_connections_leaves_files_for_the_server_itself(monkeypatch):
    for files, most in [(256, 128), (1 << 20, MAX_CONNECTIONS), (-1, MAX_CONNECTIONS)]:
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert most_connections() == most


def test_lines_that_clients_cause_are_logged_once_a_minute():
    passes = once_a_minute()

    def line(level: int, text: str) -> bool:
        return passes(logging.LogRecord("uvicorn.error", level, "x", 1, text, None, None))

    assert [line(logging.WARNING, "Invalid HTTP request received.") for _ in range(3)] == [
        True,
        False,
        False,
    ]
    out_of_files = "socket.accept() out of system resource\nsocket: <…>"
    assert [line(logging.ERROR, out_of_files) for _ in range(2)] == [True, False]
    assert [line(logging.ERROR, "a job of asyncio's own") for _ in range(2)] == [True, True]
