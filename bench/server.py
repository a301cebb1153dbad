"""A private server on a unix socket, gone when the measurement ends."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

import jobq
from jobq.embedded.program import usable

ROOT = Path(__file__).resolve().parents[1]
VALKEY = next((program.path for program in usable() if program.kind == "Valkey"), "valkey-server")
READY_S = 60
#: Set where the measured systems reach the server over TCP; otherwise they use its unix socket.
OVER_TCP = "BENCH_TCP"


def redis_binary() -> str:
    """Return Debian's redis-server if it is installed, for statements about Redis by name; else Valkey."""
    return next((program.path for program in usable() if program.kind == "Redis"), VALKEY)


@contextmanager
def private_server(
    *options: str, binary: str = VALKEY, contents: Path | None = None, port: int = 0
) -> Iterator[jobq.Client]:
    """Yield a client of a private server, which saves to disk only if `options` enable it.

    `contents` is a dump that it starts with, made by `saved`. With `port`, it also listens there, on this machine.
    """
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        path = f"{folder}/s"
        if contents is not None:
            Path(folder, "dump.rdb").symlink_to(contents)
        command = [
            binary, "--port", str(port), "--unixsocket", path, "--save", "", "--dir", folder, *options,
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            yield connected(f"unix://{path}")
        finally:
            process.kill()
            process.wait(10)


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def saved(client: jobq.Client, to: Path) -> None:
    """Write the server's content to a file."""
    path = client.url.removeprefix("unix://")
    with redis.Redis(unix_socket_path=path, socket_timeout=None) as plain:
        plain.save()
    shutil.copyfile(Path(path).with_name("dump.rdb"), to)


def connected(url: str, patience_s: float = 2) -> jobq.Client:
    """A client of a server that is starting."""
    client = jobq.connect(url)
    client.patience_s = patience_s
    deadline = time.monotonic() + READY_S
    while True:
        try:
            client.command("PING")
        except jobq.errors.JobqError:
            # Not there yet, or reading its contents.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return client


def info(client: jobq.Client, section: str) -> dict[str, str]:
    """Return a section of INFO."""
    return fields_of(client.command("INFO", section))


def fields_of(reply: bytes) -> dict[str, str]:
    """Return the fields of a reply to INFO."""
    return dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)


def server_s(client: jobq.Client) -> float:
    """Seconds of CPU that the server took so far."""
    used = info(client, "cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def calls(client: jobq.Client) -> tuple[int, int]:
    """Round trips of scripts and blocking pops, and commands in all, since CONFIG RESETSTAT."""
    counted = {
        name.removeprefix("cmdstat_"): int(value.split(",")[0].removeprefix("calls="))
        for name, value in info(client, "commandstats").items()
    }
    trips = sum(counted.get(name, 0) for name in ("evalsha", "blpop", "brpop", "blmove"))
    # Commands inside a script count separately; the measurement's commands don't count.
    return trips, sum(counted.values()) - counted.get("info", 0) - counted.get(
        "config|resetstat", 0
    )
