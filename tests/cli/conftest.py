"""Running command lines, in this process and in one of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from jobq.cli import main
from jobq.queue.types import Ending

ROOT = Path(__file__).resolve().parents[2]


class Ended(NamedTuple):
    """The outcome of a command line."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[Any]:
        """Return its JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty working folder, with an environment without jobq's variables."""
    for name in [
        name for name in os.environ if name.startswith("JOBQ_") or name in ("REDIS_URL", "NO_COLOR")
    ]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def line(bare: Path) -> Iterator[Callable[..., Ended]]:
    """line("queues", "--json", env={...}): one command line in this process."""
    heard, path = signal.getsignal(signal.SIGTTIN), sys.path[:]

    def run(
        *args: str, env: dict[str, str | None] | None = None, given: str | None = None
    ) -> Ended:
        with CliRunner().isolation(input=given, env=env) as (out, err, _):
            code = main(args)
        return Ended(code, out.getvalue().decode(), err.getvalue().decode())

    yield run
    # `jobq worker` ignores it until it has begun, and `--import` looks in the working folder.
    signal.signal(signal.SIGTTIN, heard)
    sys.path[:] = path


@pytest.fixture
def cli(line: Callable[..., Ended], client: Any) -> Callable[..., Ended]:
    """cli("queues"): one command line in this process, pointed at the test's server."""

    def run(*args: str, env: dict[str, str | None] | None = None, **given: Any) -> Ended:
        return line(*args, env={"JOBQ_URL": client.url, **(env or {})}, **given)

    return run


@pytest.fixture
def kill_message() -> Callable[..., str]:
    """kill_message(queue, mid, reason): enqueue a message and let it die; its dead id."""

    def kill(queue: Any, mid: str, reason: str = "broken\n\nTraceback") -> str:
        queue.enqueue(b'{"job":"a.b","args":["secret"]}', mid=mid)
        [message] = queue.dequeue().messages
        queue.finish([Ending(mid=mid, token=message.token, outcome="dead", reason=reason)])
        return str(queue.admin.dead(mid=mid)[0].dead_id)

    return kill


@pytest.fixture
def process(bare: Path) -> Callable[..., Ended]:
    """process("queues", env={...}): `python -m jobq queues` in a process of its own, in the bare folder."""

    def run(*args: str, env: dict[str, str] | None = None, given: str | None = None) -> Ended:
        ran = subprocess.run(
            [sys.executable, "-m", "jobq", *args], input=given, capture_output=True, text=True, timeout=300,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, cwd=bare,
        )  # fmt: skip
        return Ended(ran.returncode, ran.stdout, ran.stderr)

    return run
