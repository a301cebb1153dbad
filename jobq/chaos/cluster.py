"""A Cluster of three masters of a round's own, of which one can be killed for good."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobq.chaos.crew import START_S, until
from jobq.chaos.place import Place
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.embedded.process import program
from jobq.errors import ConfigError, JobqError

if TYPE_CHECKING:
    from jobq.chaos.stage import Stage

HOST, SHARDS, SLOTS = "127.0.0.1", 3, 16_384
#: Below those ports that systems give to whoever connects to somewhere.
PORTS = range(10_240, 32_000)


class OwnCluster(Place):
    """Three masters without replicas, in `folder`. A name for `command`, else Valkey; `options` win over ours."""

    own = True

    def __init__(self, folder: Path, command: str = "", options: Sequence[str] = ()) -> None:
        self._command = shutil.which(command or program()) or ""
        if not self._command:
            raise ConfigError(
                f"no server program {command!r} on the path; install it or name another"
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
        """Which of them serves a key, from 0. Asks the first, so only while that lives."""
        slot = _said(self._ports[0], "CLUSTER", "KEYSLOT", key)
        return next(shard for shard in range(SHARDS) if slot < _first(shard + 1))

    def kill(self, shard: int) -> None:
        """At once, and it doesn't come back."""
        self._processes[shard].kill()
        self._processes[shard].wait()

    def close(self) -> None:
        """At once."""
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
                # The others are to go on without the slots of the one that is gone.
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
                )
            self._processes.append(process)
        until(lambda: all(_said(port, "PING") for port in ports), "no shard answers", START_S)
        for shard in range(SHARDS):
            slots = (str(_first(shard)), str(_first(shard + 1) - 1))
            _said(self._ports[shard], "CLUSTER", "ADDSLOTSRANGE", *slots)
            meet = (HOST, str(self._ports[0]), str(self._ports[SHARDS]))
            _said(self._ports[shard], "CLUSTER", "MEET", *meet)
        until(self._whole, "the Cluster doesn't form", START_S)

    def _whole(self) -> bool:
        said = [_said(port, "CLUSTER", "INFO") for port in self._ports[:SHARDS]]
        known = f"cluster_known_nodes:{SHARDS}".encode()
        return all(b"cluster_state:ok" in one and known in one for one in said)


def shard_gone(stage: Stage) -> None:
    """kill -9 of one shard, for good. It explains no second run on the others."""
    assert isinstance(stage.place, OwnCluster)
    with stage.fault("shard-gone"):
        stage.place.kill(stage.random.randrange(SHARDS))


def _first(shard: int) -> int:
    return shard * SLOTS // SHARDS


def _said(port: int, *words: str) -> Any:
    """What one of them answers; nothing while it doesn't."""
    client = connect(settings=ServerSettings(url=f"redis://{HOST}:{port}", patience_s=0))
    try:
        return client.command(*words)
    except JobqError:
        return b""
    finally:
        client.close()


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            break
    return found
