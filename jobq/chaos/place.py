"""Where a round is played: a server of its own, which may be killed, or one that is there already."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from jobq.chaos.crew import START_S, Stuck
from jobq.config import ServerSettings
from jobq.engine.connection import Client, connect
from jobq.engine.embedded_process import program
from jobq.errors import ConfigError, JobqError

SCAN = 1000


class Place:
    """A server that is there already. `target`: what a proxy connects to, None where it can't."""

    own = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.target = _target(url)

    def client(self, namespace: str) -> Client:
        """Straight to the server, past every proxy."""
        return connect(settings=ServerSettings(url=self.url, namespace=namespace, patience_s=30))

    def through(self, port: int) -> str:
        """The same server, by way of a proxy on this machine."""
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"redis://127.0.0.1:{port}"
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{port}"))

    def restart(self) -> None:
        """Kill it and start it again on the same data."""
        raise ConfigError(f"{self.url} isn't ours to restart; leave out --url")

    def close(self) -> None:
        """Nothing of ours runs there."""


class OwnServer(Place):
    """A server in `folder`, on a socket there, with an append-only file. A name for `command`, else Valkey."""

    own = True

    def __init__(self, folder: Path, command: str = "") -> None:
        super().__init__(f"unix://{folder}/s")
        self._folder = folder
        self._command = shutil.which(command or program()) or ""
        if not self._command:
            raise ConfigError(
                f"no server program {command!r} on the path; install it or name another"
            )
        self._start()

    def restart(self) -> None:
        """`kill -9`, and start again on the same data."""
        self.close()
        time.sleep(0.2)
        self._start()

    def close(self) -> None:
        """At once."""
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        socket = self._folder / "s"
        socket.unlink(missing_ok=True)
        command = [
            self._command, "--port", "0", "--unixsocket", str(socket), "--dir", str(self._folder),
            "--save", "", "--appendonly", "yes", "--appendfsync", "everysec",
        ]  # fmt: skip
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Stuck(f"the server didn't start; see {self._folder}/server.log")
            time.sleep(0.02)

    def _answers(self) -> bool:
        settings = ServerSettings(url=self.url, patience_s=0)
        client = connect(settings=settings)
        try:
            return bool(client.command("PING"))
        except JobqError:
            return False
        finally:
            client.close()


def _target(url: str) -> tuple[str, int] | str | None:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    if parts.scheme == "redis" and "," not in parts.netloc:
        return (parts.hostname or "localhost", parts.port or 6379)
    return None


def keys_of(client: Client) -> list[str]:
    """Every key of a namespace, on whatever node."""
    found: set[str] = set()
    for connection in client.open_everywhere():
        connection.connect()
        try:
            cursor: bytes | str = "0"
            while cursor != b"0":
                connection.send_command(
                    "SCAN", cursor, "MATCH", f"{client.namespace}:*", "COUNT", SCAN
                )
                cursor, names = connection.read_response()
                found.update(name.decode() for name in names)
        finally:
            connection.disconnect()
    return sorted(found)
