"""The server loses its scripts, restarts, or doesn't answer: callers don't notice."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.queue import keys
from jobq.queue.queue import Queue

from ..conftest import answering, binary
from ..conftest import start as start_server
from .conftest import until


class OwnServer:
    """A server of the test's own, whose data survive a restart."""

    def __init__(self, kind):
        self.folder = Path(tempfile.mkdtemp(prefix="jobq-", dir="/tmp"))
        self.socket = str(self.folder / "s")
        self.url = f"unix://{self.socket}"
        self._program = binary(kind)
        self.begin()

    def begin(self):
        self.process = start_server(
            self._program, self.folder, "--port", "0", "--unixsocket", self.socket,
            "--appendonly", "yes", "--appendfsync", "always",
        )  # fmt: skip
        answering(self.process, self.folder, unix_socket_path=self.socket)

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def own(server):
    """Start a server of the same kind as the session's."""
    made = OwnServer(server.kind)
    yield made
    made.end()


@pytest.fixture
def own_queue(own):
    client = connect(settings=ServerSettings(url=own.url))
    yield Queue("low", client)
    client.close()


def test_job_is_stopped_before_its_lease_ends_when_the_server_is_silent(
    own, own_queue, start, send, ledger
):
    worker = start("--processes", "1", "--lease", "1500ms", url=own.url)
    send("gated", "a", to=own_queue)
    until(lambda: ledger.lines("start"))
    own.process.send_signal(signal.SIGSTOP)
    [aborted] = until(lambda: ledger.lines("aborted"))
    # The child's deadline is before the end of the lease.
    assert "lease" in aborted["why"]
    own.process.send_signal(signal.SIGCONT)
    until(lambda: len(ledger.lines("start")) >= 2)
    ledger.gate("a").touch()
    until(lambda: own_queue.admin.counts().messages == 0)
    assert len(ledger.lines("end")) == 1
    assert worker.stop() == 0


def test_burst_says_so_and_leaves_when_there_is_no_server(start, tmp_path):
    worker = start("--burst", url=f"unix://{tmp_path}/none", env={"JOBQ_PATIENCE": "200ms"})
    assert worker.wait() == 3
    assert "no connection to unix://" in worker.log


def test_worker_says_so_and_starts_later_when_the_server_is_away(
    own, own_queue, start, send, ledger
):
    own.process.send_signal(signal.SIGSTOP)
    worker = start("--processes", "1", url=own.url)
    until(lambda: "this worker starts when the server answers" in worker.log)
    # Later tries have the whole patience of a command.
    assert "within 1 s" in worker.log
    own.process.send_signal(signal.SIGCONT)
    until(
        lambda: (
            "the server answers" in worker.log.splitlines()[-2:] or "starts 1 child" in worker.log
        )
    )
    send("quick", "a", to=own_queue)
    until(lambda: ledger.lines("end", "a"))
    assert worker.log.count("this worker starts when") == 1
    assert worker.stop() == 0


def test_term_ends_an_idle_worker_while_the_server_is_away(own, start):
    # Who waited as long as running jobs may take would miss the test's deadline.
    options = ("--processes", "2", "--lease", "500ms", "--shutdown-timeout", "1h")
    worker = start(*options, url=own.url)
    until(lambda: worker.log.count(" started") == 2)
    until(lambda: own_clients(own) >= 4)
    own.process.send_signal(signal.SIGKILL)
    own.process.wait()
    until(lambda: "waiting for the server" in worker.log)
    assert "lease" not in worker.log
    assert worker.stop() == 0
    own.begin()


def own_clients(own):
    """How many are connected to it."""
    client = connect(settings=ServerSettings(url=own.url))
    try:
        info = client.command("INFO", "clients").decode()
        return int(info.partition("connected_clients:")[2].split()[0])
    finally:
        client.close()


def test_writes_refused_for_a_while_crash_nobody(redis, queue, start, send, ledger):
    """Reject writes, like a full disk or a failover: children keep their reports until then."""
    worker = start("--processes", "2")
    send("gated", "a")
    until(lambda: ledger.lines("start"))
    for number in range(20):
        send("quick", f"q{number}")
    redis.config_set("min-replicas-to-write", 1)
    try:
        ledger.gate("a").touch()
        until(lambda: ledger.lines("end", "a"))
        until(lambda: "not renewed" in worker.log)
    finally:
        redis.config_set("min-replicas-to-write", 0)
    until(lambda: queue.admin.counts().messages == 0)
    assert len(ledger.lines("end")) == 21
    assert worker.stop() == 0
    assert "crashed" not in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.loop
def test_child_that_the_server_refuses_as_it_wakes_waits_until_that_is_mended(
    redis, queue, start, send, ledger
):
    worker = start("--processes", "1", "--lease", "1500ms")
    until(lambda: redis.info("clients")["blocked_clients"])
    meta = keys.key(queue.prefix, "meta")
    redis.rename(meta, f"{meta}-kept")
    redis.set(meta, "not what a script can read")
    redis.lpush(queue.wake_key, "1")
    until(lambda: "queue low: the server rejects its calls" in worker.log)
    redis.rename(f"{meta}-kept", meta)
    send("quick", "a")
    until(lambda: ledger.lines("end", "a"))
    until(lambda: "queue low: the server answers again after" in worker.log)
    assert worker.stop() == 0
    assert "exited with" not in worker.log


def test_term_ends_a_worker_while_writes_are_refused(redis, start):
    worker = start("--processes", "2", "--lease", "500ms")
    until(lambda: worker.log.count(" started") == 2)
    redis.config_set("min-replicas-to-write", 1)
    try:
        until(lambda: "waiting for the server" in worker.log)
        assert worker.stop() == 0
    finally:
        redis.config_set("min-replicas-to-write", 0)
    assert "Traceback" not in worker.log
