"""What the tests of RELIABLEQ share: a queue, its functions called as any client would, processes that wait."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from jobq.client.functions import area_library
from jobq.protocols.reliable import ReliableQueue
from jobq.protocols.reliable.keys import places
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def rq(client: Any) -> ReliableQueue:
    """ReliableQueue on the emptied server."""
    return ReliableQueue(client)


@pytest.fixture
def at() -> Callable[[int], int]:
    """at(ms): an epoch so long after the test's own beginning of time."""
    return lambda ms: 1_700_000_000_000 + ms


@pytest.fixture
def fcall(redis: Any) -> Callable[..., Any]:
    """fcall("pop", ["high", "low"], "COUNT", 2): the raw reply, as any client gets it."""
    redis.function_load(area_library("reliable").source, replace=True)

    def call(verb: str, names: list[str], *args: Any) -> Any:
        keys = [key for name in names for key in places("reliable", name)]
        return redis.execute_command("FCALL", f"reliable_{verb}", len(keys), *keys, *args)

    return call


@pytest.fixture
def facts(redis: Any) -> Callable[[], dict[bytes, bytes]]:
    """facts(): every key that doesn't expire, as the bytes of its value."""
    return lambda: {key: redis.dump(key) for key in sorted(redis.keys("*")) if redis.ttl(key) == -1}


@pytest.fixture
def blocked(redis: Any) -> Callable[[int], None]:
    """blocked(n): wait until so many clients are blocked."""

    def wait(count: int) -> None:
        until(
            lambda: redis.info("clients")["blocked_clients"] == count,
            f"not {count} clients blocked, but {redis.info('clients')['blocked_clients']}",
        )

    return wait


@pytest.fixture
def run(server: Any, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """run("print(rq.pop(1, -1, 'q'))"): a process of its own with `rq` at hand; killed in the end."""
    started: list[subprocess.Popen[str]] = []
    opening = (
        "import os, signal, sys, threading\n"
        "from jobq.config import ServerSettings\n"
        "from jobq.client.connection import connect\n"
        "from jobq.protocols.reliable import ReliableQueue\n"
        f"client = connect(settings=ServerSettings(url={server.url!r}))\n"
        "rq = ReliableQueue(client)\n"
        "say = lambda *words: print(*words, flush=True)\n"
    )

    def start(code: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", opening + code], stdout=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
            )
        )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def plain(server: Any) -> Iterator[Any]:
    """Another plain connection to the same server."""
    with redis_py.Redis(unix_socket_path=server.socket, protocol=2) as client:
        yield client
