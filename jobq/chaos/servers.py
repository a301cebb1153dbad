"""The servers that a round can run on: a new server, a new Cluster, or a server that already runs."""

from __future__ import annotations

import os
import random
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from jobq.chaos.workers import START_S, ChaosTimeoutError, wait_until
from jobq.client.connection import Client, connect
from jobq.config import ServerSettings
from jobq.embedded.program import program
from jobq.errors import ConfigError, JobqError, masked
from jobq.worker.signals import die_with

SCAN = 1000


class TargetServer:
    """An existing server, which the round doesn't start.

    Attributes:
        target: The server's address for a proxy; None if a proxy can't connect to it.
    """

    own = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.target = _target(url)

    def client(self, namespace: str) -> Client:
        return connect(settings=ServerSettings(url=self.url, namespace=namespace, patience_s=30))

    def through(self, port: int) -> str:
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"redis://127.0.0.1:{port}"
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{port}"))

    def restart(self) -> None:
        raise ConfigError(f"jobq can't restart {masked(self.url)}; leave out --url")

    def fill_disk(self) -> None:
        """Keep the append-only files from growing."""
        raise ConfigError(f"jobq can't fill the disk of {masked(self.url)}; leave out --url")

    def free_disk(self) -> None:
        """Let files grow again, and wait until the server has noticed."""

    def close(self) -> None:
        """Do nothing: the round did not start this server."""


class OwnServer(TargetServer):
    """A server with an append-only file and a socket, both in `folder`.

    Attributes:
        command: The server program; Valkey by default.
        options: Options that replace the class's own options.
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
                f"no program {command!r} on the PATH; install it, or choose another with --server"
            )
        self._start()

    def restart(self) -> None:
        self.close()
        time.sleep(0.2)
        self._start()

    def fill_disk(self) -> None:
        """Simulate a full disk by keeping the append-only file from growing."""
        sizes = [file.stat().st_size for file in self._folder.glob("appendonlydir/*.incr.aof")]
        self._limit_files(max(sizes))

    def free_disk(self) -> None:
        self._limit_files(resource.RLIM_INFINITY)
        wait_until(self._writes, "the server didn't accept writes again", START_S)

    def close(self) -> None:
        """Kill the processes immediately."""
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        socket = self._folder / "s"
        socket.unlink(missing_ok=True)
        # With appendfsync no, the server writes before it answers, so `kill -9` loses no write. With everysec, a
        # write during a sync is deferred, and lost on a slow disk.
        command = [
            self._command, "--port", "0", "--unixsocket", str(socket), "--dir", str(self._folder),
            "--save", "", "--appendonly", "yes", "--appendfsync", "no", *self._options,
        ]  # fmt: skip
        with (self._folder / "server.log").open("ab") as log:
            # Keep Python's signal handling: a file at its limit is an error for the server, not a signal that kills it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env,
                start_new_session=True, restore_signals=False, preexec_fn=partial(die_with, os.getpid()),
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise ChaosTimeoutError(f"the server didn't start; see {self._folder}/server.log")
            time.sleep(0.02)

    def _limit_files(self, size: int) -> None:
        if not hasattr(resource, "prlimit"):
            raise ConfigError("disk-full needs Linux; choose other faults with --fault")
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
    """Return every key of a namespace, on all nodes."""
    all_keys: set[str] = set()
    for connection in client.open_everywhere():
        connection.connect()
        try:
            cursor: bytes | str = "0"
            while cursor != b"0":
                connection.send_command(
                    "SCAN", cursor, "MATCH", f"{client.namespace}:*", "COUNT", SCAN
                )
                cursor, names = connection.read_response()
                all_keys.update(name.decode() for name in names)
        finally:
            connection.disconnect()
    return sorted(all_keys)


HOST, SHARDS, SLOTS = "127.0.0.1", 3, 16_384
#: Below the ports that the system gives to outgoing connections.
PORTS = range(10_240, 32_000)


class OwnCluster(TargetServer):
    """A Cluster of three masters without replicas, with its files in `folder`.

    Attributes:
        command, options: See OwnServer.
    """

    own = True

    def __init__(self, folder: Path, command: str = "", options: Sequence[str] = ()) -> None:
        self._command = shutil.which(command or program()) or ""
        if not self._command:
            raise ConfigError(
                f"no program {command!r} on the PATH; install it, or choose another with --server"
            )
        self._folder, self._options = folder, options
        self._ports = _free_ports(2 * SHARDS)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        hosts = ",".join(f"{HOST}:{port}" for port in self._ports[:SHARDS])
        super().__init__(f"redis+cluster://{hosts}")

    def shard_of(self, key: str) -> int:
        """Return the number (from 0) of the master that serves a key. The first master must be running."""
        slot = _said(self._ports[0], "CLUSTER", "KEYSLOT", key)
        return next(shard for shard in range(SHARDS) if slot < _first(shard + 1))

    def kill(self, shard: int) -> None:
        """Kill a master immediately; it is not restarted."""
        self._processes[shard].kill()
        self._processes[shard].wait()

    def close(self) -> None:
        """Kill the processes immediately."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self) -> None:
        ports = self._ports[:SHARDS]
        for shard in range(SHARDS):
            port, bus = self._ports[shard], self._ports[SHARDS + shard]
            home = self._folder / f"shard{shard}"
            home.mkdir()
            command = [
                self._command, "--port", str(port), "--bind", HOST, "--dir", str(home), "--save", "",
                "--cluster-enabled", "yes", "--cluster-port", str(bus),
                # The other masters still serve their slots.
                "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "2000",
                "--appendonly", "yes", "--appendfsync", "no", *self._options,
            ]  # fmt: skip
            with (home / "server.log").open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=partial(die_with, os.getpid()),
                )
            self._processes.append(process)
        wait_until(lambda: all(_said(port, "PING") for port in ports), "no shard answered", START_S)
        for shard in range(SHARDS):
            slots = (str(_first(shard)), str(_first(shard + 1) - 1))
            _said(self._ports[shard], "CLUSTER", "ADDSLOTSRANGE", *slots)
            meet = (HOST, str(self._ports[0]), str(self._ports[SHARDS]))
            _said(self._ports[shard], "CLUSTER", "MEET", *meet)
        wait_until(self._whole, "the Cluster didn't form", START_S)

    def _whole(self) -> bool:
        said = [_said(port, "CLUSTER", "INFO") for port in self._ports[:SHARDS]]
        known = f"cluster_known_nodes:{SHARDS}".encode()
        return all(b"cluster_state:ok" in info and known in info for info in said)


def _first(shard: int) -> int:
    return shard * SLOTS // SHARDS


def _said(port: int, *words: str) -> Any:
    client = connect(settings=ServerSettings(url=f"redis://{HOST}:{port}", patience_s=0))
    try:
        return client.command(*words)
    except JobqError:
        return b""
    finally:
        client.close()


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            break
    return ports
