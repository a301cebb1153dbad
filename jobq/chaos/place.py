"""Where a round is played: a server of its own, which may be killed, or one that is there already."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from jobq.chaos.crew import START_S, ChaosTimeoutError, until
from jobq.client.connection import Client, connect
from jobq.config import ServerSettings
from jobq.embedded.process import program
from jobq.errors import ConfigError, JobqError, masked

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
        raise ConfigError(f"{masked(self.url)} isn't ours to restart; leave out --url")

    def fill_disk(self) -> None:
        """None of its files may grow any more."""
        raise ConfigError(f"the disk of {masked(self.url)} isn't ours to fill; leave out --url")

    def free_disk(self) -> None:
        """They may again, and it has noticed."""

    def close(self) -> None:
        """Nothing of ours runs there."""


class OwnServer(Place):
    """A server in `folder`, on a socket there, with an append-only file. A name for `command`, else Valkey.

    `options` come after ours and so win.
    """

    own = True

    def __init__(
        self, folder: Path, command: str = "", options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(f"unix://{folder}/s")
        self._folder = folder
        self._options, self._env = options, {**os.environ, **(env or {})}
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

    def fill_disk(self) -> None:
        """As a full disk does: its append-only file doesn't grow any more."""
        sizes = [file.stat().st_size for file in self._folder.glob("appendonlydir/*.incr.aof")]
        self._limit_files(max(sizes))

    def free_disk(self) -> None:
        """It writes again once its own next try succeeds, within a second."""
        self._limit_files(resource.RLIM_INFINITY)
        until(self._writes, "the server doesn't write again", START_S)

    def close(self) -> None:
        """At once."""
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        socket = self._folder / "s"
        socket.unlink(missing_ok=True)
        # Every write is made before it is answered, so that `kill -9` takes none along. At everysec one that
        # comes amid a sync waits for that, and is lost on a slow disk.
        command = [
            self._command, "--port", "0", "--unixsocket", str(socket), "--dir", str(self._folder),
            "--save", "", "--appendonly", "yes", "--appendfsync", "no", *self._options,
        ]  # fmt: skip
        with (self._folder / "server.log").open("ab") as log:
            # With Python's own signals: a file at its limit is an error for it, not its end.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env,
                start_new_session=True, restore_signals=False,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise ChaosTimeoutError(f"the server didn't start; see {self._folder}/server.log")
            time.sleep(0.02)

    def _limit_files(self, size: int) -> None:
        if not hasattr(resource, "prlimit"):
            raise ConfigError("disk-full needs Linux; choose the other faults with --fault")
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _writes(self) -> bool:
        client = connect(settings=ServerSettings(url=self.url, patience_s=10))
        try:
            return b"aof_last_write_status:ok" in client.command("INFO", "persistence")
        finally:
            client.close()

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
