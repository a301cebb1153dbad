"""RSMQ's real clients: Node's from npm and PyRSMQ from PyPI, kept in `.interop/`, and ours behind the bridge.

Where one can't be had its tests are skipped, with the reason; JOBQ_REQUIRE_TOOLS=1 makes that a failure.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tools

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / ".interop" / "rsmq"
PEERS = Path(__file__).with_name("peers")
NODE = "rsmq@0.12.4"
PYRSMQ = "PyRSMQ==0.6.1"


class Refused(Exception):
    """A peer answered with an error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name, self.message = name, message


class Peer:
    """One client of RSMQ in a process of its own, asked in Node's words."""

    def __init__(self, name: str, command: list[str], env: dict[str, str] | None = None) -> None:
        self.name = name
        self._count = 0
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})},
        )  # fmt: skip

    def __call__(self, method: str, **options: Any) -> Any:
        """The result; Refused with the error's name and message."""
        process, self._count = self._process, self._count + 1
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(
            json.dumps({"n": self._count, "method": method, "options": options}) + "\n"
        )
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert answer["n"] == self._count
        if "error" in answer:
            raise Refused(**answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End its input, and so the process. A client that goes on all the same is killed."""
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def kept(name: str, made: Path, command: list[str]) -> Path:
    """A folder of `.interop/rsmq`, made by a command unless it is there; processes take turns."""
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / made).exists():
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if ran.returncode:
                tools.not_run(
                    f"{' '.join(command[:4])} failed: {(ran.stderr or ran.stdout).strip()[-300:]}"
                )
    return folder


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Where Node's client is."""
    if reason := tools.missing("node") or tools.missing("npm"):
        tools.not_run(reason)
    command = ["npm", "install", "--no-fund", "--no-audit", "--no-save", "--prefix", ".", NODE]
    made = Path("node_modules/rsmq/index.js")
    return kept("node", made, command) / "node_modules"


@pytest.fixture(scope="session")
def pyrsmq() -> Path:
    """Where PyRSMQ is."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", ".", PYRSMQ]
    return kept("python", Path("rsmq/__init__.py"), command)


@pytest.fixture(scope="session")
def running() -> Iterator[dict[tuple[str, str], Peer]]:
    """Peers by name and server, each started once."""
    started: dict[tuple[str, str], Peer] = {}
    yield started
    for one in started.values():
        one.close()


@pytest.fixture
def peer(
    request: pytest.FixtureRequest, server: Any, redis: Any, running: dict[tuple[str, str], Peer]
) -> Callable[[str], Peer]:
    """peer("node" | "py" | "jobq"): a client on the emptied server."""

    fresh: dict[str, Peer] = {}

    def found(name: str) -> Peer:
        if name not in fresh:
            key = (name, server.kind)
            if key not in running:
                running[key] = launched(name, request, server)
            elif name != "jobq":
                running[key]("fresh")
            fresh[name] = running[key]
        return fresh[name]

    return found


def launched(name: str, request: pytest.FixtureRequest, server: Any) -> Peer:
    """Senders publish, those that can."""
    if name == "node":
        modules = request.getfixturevalue("node_modules")
        return Peer(name, ["node", str(PEERS / "node.js"), str(modules), server.socket, "1"])
    if name == "py":
        folder = request.getfixturevalue("pyrsmq")
        return Peer(
            name, [sys.executable, str(PEERS / "py.py"), server.socket], {"PYTHONPATH": str(folder)}
        )
    command = [sys.executable, "-m", "jobq", "rsmq", "bridge", "--url", server.url, "--realtime"]
    return Peer(name, command, {"PYTHONPATH": str(ROOT)})
