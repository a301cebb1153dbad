"""Real peers: Sidekiq's client, API and worker in Ruby, Resque in Ruby and in Node; and `jobq worker` beside them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from jobq.queue.queue import Queue
from tests import tools
from tests.waiting import until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DEADLINE_S = 200
NODE_RESQUE = "9.7.1"


class Ledger:
    """What runs wrote: one line per happening."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger"
        self.path.touch()

    def lines(self, word: str = "end", name: str | None = None) -> list[dict[str, Any]]:
        """The happenings of one kind, of one name."""
        found = [json.loads(line) for line in self.path.read_text().split("\n")[:-1]]
        return [one for one in found if one["word"] == word and name in (None, one["name"])]

    def open_gate(self, name: str) -> None:
        """Let jobs of that name go on."""
        self.path.with_name(f"{name}.gate").touch()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty one."""
    return Ledger(tmp_path)


class Peer:
    """A program that answers a line of JSON with a line of JSON."""

    def __init__(self, command: list[str], url: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env={**os.environ, "REDIS_URL": url}, cwd=HERE,
        )  # fmt: skip

    def __call__(self, do: str, **given: Any) -> Any:
        """Ask it to do something; what came of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@cache
def has_gem(name: str) -> bool:
    """Whether Ruby and this gem are here."""
    ruby = shutil.which("ruby")
    command = [ruby or "", "-e", f"require '{name}'"]
    return ruby is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def ruby(server: Any, client: Any) -> Iterator[Peer]:
    """ruby("async", args=[…]): Sidekiq's client and API."""
    if not has_gem("sidekiq"):
        tools.not_run("not run: needs ruby and the gem sidekiq (apt-get install ruby-sidekiq)")
    peer = Peer(["ruby", "peer.rb"], server.url)
    yield peer
    peer.close()


@pytest.fixture
def namespaced(server: Any, client: Any) -> Iterator[Peer]:
    """As `ruby`, in the namespace `my:app` of the gem redis-namespace."""
    if not (has_gem("sidekiq") and has_gem("redis-namespace")):
        tools.not_run(
            "not run: needs the gems sidekiq and redis-namespace (apt-get install ruby-sidekiq ruby-redis-namespace)",
            packaged=False,
        )
    peer = Peer(["ruby", "peer.rb", "my:app"], server.url)
    yield peer
    peer.close()


@pytest.fixture
def sidekiq(server: Any, ruby: Peer, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """sidekiq("-q", "default"): a real Sidekiq worker."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*options: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "sidekiq.log").open("ab") as log:
            process = subprocess.Popen(
                ["sidekiq", "-r", str(HERE / "hard_worker.rb"), "-c", "2", *options], cwd=tmp_path,
                stdout=log, stderr=log, env={**os.environ, "REDIS_URL": server.url},
            )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait(DEADLINE_S)


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Where node-resque is installed, once per checkout."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        tools.not_run("not run: needs node and npm")
    folder = ROOT / ".interop" / "resque"
    folder.mkdir(parents=True, exist_ok=True)
    # npm writes it last. Processes of one run take turns, so none begins with what another is installing.
    made = folder / "node_modules" / ".package-lock.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            command = [str(npm), "install", "--no-audit", "--no-fund", f"node-resque@{NODE_RESQUE}"]
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if ran.returncode:
                tools.not_run(
                    f"not run: needs node-resque from npm ({ran.stderr.strip().splitlines()[-1:]})"
                )
    return folder / "node_modules"


@pytest.fixture
def node_in(server: Any, client: Any, node_modules: Path) -> Iterator[Callable[[str], Peer]]:
    """node_in("resque")("enqueue", …): node-resque's queue, API and worker in a namespace."""
    peers: list[Peer] = []

    def begin(namespace: str) -> Peer:
        command = ["node", str(HERE / "peer.js"), str(node_modules), server.socket, namespace]
        peers.append(Peer(command, server.url))
        return peers[-1]

    yield begin
    for peer in peers:
        peer.close()


@pytest.fixture
def node(node_in: Callable[[str], Peer]) -> Peer:
    """node("enqueue", …): the same in the namespace `resque`."""
    return node_in("resque")


@pytest.fixture
def gem(server: Any, client: Any) -> Iterator[Peer]:
    """gem("enqueue", …): the real Resque."""
    if not has_gem("resque"):
        tools.not_run("not run: needs ruby and the gem resque (gem install resque)", packaged=False)
    peer = Peer(["ruby", "resque_peer.rb", server.socket], server.url)
    yield peer
    peer.close()


class Worker:
    """A running `jobq worker`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text()

    def kill(self) -> None:
        """The whole of it at once, as a machine that loses power."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)

    def stop(self) -> int:
        """Drain; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def worker(server: Any, client: Any, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """worker("--sidekiq", "default"): a jobq worker with ruby_jobs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "SENTRY"))}
    started: list[Worker] = []

    def begin(*options: str) -> Worker:
        log = tmp_path / f"worker{len(started)}.log"
        command = [sys.executable, "-m", "jobq", "worker", "--url", server.url, "--processes", "2"]
        command += ["--import", "tests.interop.ruby.ruby_jobs", *options]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env=kept, stdout=file, stderr=file, start_new_session=True
            )
        started.append(Worker(process, log))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.kill()
        until(lambda one=one: not group(one.process.pid), "a process outlived its worker")


def group(leader: int) -> list[int]:
    """The living processes of a worker."""
    found = []
    for pid in psutil.pids():
        try:
            alive = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            if alive and os.getsid(pid) == leader:
                found.append(pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
    return found


@pytest.fixture
def default(client: Any) -> Queue:
    """The jobq queue that Sidekiq's `default` goes to."""
    return Queue("default", client)
