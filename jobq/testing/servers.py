"""The server of tests: a private Valkey on a socket, without persistence, or the server in --jobq-url."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jobq.client.address import parse
from jobq.client.connection import Client
from jobq.client.numbered_calls import CallState
from jobq.config import TEST_SERVERS, ServerSettings
from jobq.embedded.process import START_S, client_of
from jobq.embedded.program import program
from jobq.errors import ConfigError, EmbeddedError, masked
from jobq.queue.durability import Confirmation
from jobq.worker.signals import die_with

#: Number of databases of a server with default settings.
DATABASES = 16


class PrivateServer:
    """A Valkey without persistence, on a socket in a temporary folder. It ends with this process."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="jobq-tests-"))
        self._socket = self._folder / "s"
        self._pid = os.getpid()
        #: The URL for clients.
        self.url = f"unix://{self._socket}"
        server = program("name a server with --jobq-url")
        self._process = subprocess.Popen(
            [
                server, "--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700",
                "--dir", str(self._folder), "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction",
                "--logfile", str(self._folder / "log"),
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: die_with(self._pid),
        )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        allow_server(self.url)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        with client_of(self._socket) as client:
            while True:
                try:
                    client.ping()
                    return
                except OSError as error:
                    self._still_starting(deadline, error)
                except Exception as error:  # redis-py: the server is loading, or rejects the call
                    self._still_starting(deadline, error)

    def _still_starting(self, deadline: float, error: Exception) -> None:
        if self._process.poll() is not None or time.monotonic() > deadline:
            log = self._folder / "log"
            said = log.read_text(errors="replace")[-500:] if log.exists() else ""
            raise EmbeddedError(
                f"the server of the tests doesn't answer ({error}); its output: {said}"
            )
        time.sleep(0.002)

    def stop(self) -> None:
        """End the server and remove its folder. Do nothing in a forked process."""
        if os.getpid() != self._pid:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class KitClient(Client):
    """A client of the test server. It can't confirm durability, because the test server has no persistence."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.durability = "memory"

    def perform(self, key: str, state: CallState, by: Any = None) -> Any:
        """Make one call to the server; see Client.perform."""
        waits = isinstance(getattr(by, "__self__", None), Confirmation)
        return super().perform(key, state, None if waits else by)


def connected(settings: ServerSettings, clock: Any) -> KitClient:
    """Return a client of the test server. The client uses this clock."""
    return KitClient(settings, clock)


def flushable(url: str, may_flush: bool, process: int = 0) -> str:
    """Return the URL of a database that tests may empty. Raise ConfigError unless emptying is certainly safe.

    Args:
        process: Number of this test process. It is added to the database's number, so that processes don't share data.
    """
    if not may_flush:
        raise ConfigError(
            f"tests empty the database of {masked(url)} before each test; if that is right, add --jobq-may-flush"
        )
    if parse(url).kind != "single":
        raise ConfigError(
            f"tests need a single server, not {masked(url)}; a Cluster has only one database"
        )
    parts = urlsplit(url)
    unix = parts.scheme == "unix"
    given = parse_qs(parts.query).get("db", [""])[0] if unix else parts.path.strip("/")
    number = int(given) if given.isdecimal() else 0
    if not 1 <= number + process < DATABASES or number < 1:
        raise ConfigError(
            f"each test process uses its own database, from 1 to {DATABASES - 1}, but {masked(url)} "
            f"names {given or 'none'}; append {'?db=1' if unix else '/1'}"
        )
    if unix:
        return parts._replace(query=f"db={number + process}").geturl()
    return parts._replace(path=f"/{number + process}").geturl()


def allow_server(url: str) -> None:
    """Allow this process and its children to connect to a server that the tests have started."""
    allowed = os.environ.get(TEST_SERVERS)
    servers = (allowed or "").split()
    if allowed is not None and url not in servers:
        servers.append(url)
        os.environ[TEST_SERVERS] = " ".join(servers)


@contextmanager
def private_server() -> Iterator[str]:
    """Start a private server, yield its URL, and stop the server afterwards."""
    server = PrivateServer()
    try:
        yield server.url
    finally:
        server.stop()
