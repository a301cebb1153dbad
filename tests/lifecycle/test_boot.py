"""Each obstacle to a worker's start has its exit code and its sentence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from jobq.queue import orders, presence

from .conftest import DEADLINE_S, ROOT, until

#: Of this folder, these workers are started as users start them.
pytestmark = pytest.mark.real_process

THREAD = """
import threading
threading.Thread(target=threading.Event().wait, name="poller", daemon=True).start()
"""
CONNECTED = """
import atexit, os, socket, sqlite3
from jobq import default_client
from tests.lifecycle import jobs_at_work

default_client().command("PING")
tcp = socket.create_connection(("127.0.0.1", int(os.environ["LISTENER"])))
pair = socket.socketpair()
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect(("127.0.0.1", 9))
base = sqlite3.connect(os.environ["DATABASE"])
base.execute("CREATE TABLE t (a)")
"""
HOOKED = """
import sys
from jobq.config import ServerSettings, WorkerSettings
from jobq.client.connection import connect
from jobq.jobs.registry import Registry
from jobq.worker.run import run_worker

from jobq.jobs.registry import job

registry = Registry()

@registry.worker_started
def fail():
    raise RuntimeError("no licence")

job(name="a", registry=registry)(lambda: None)
client = connect(sys.argv[1])
sys.exit(run_worker(WorkerSettings(processes=2), client, registry))
"""


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("import nowhere_to_be_found", 10, "No module named 'nowhere_to_be_found'"),
        ("1 / 0", 10, "ZeroDivisionError"),
        (THREAD, 10, "poller"),
        ("", 10, "no @job is declared in bad_jobs; name the modules"),
    ],
    ids=["import", "error", "thread", "empty"],
)
def test_module_that_cannot_be_loaded_ends_the_worker(start, tmp_path, text, code, says):
    (tmp_path / "bad_jobs.py").write_text(text)
    worker = start(module="bad_jobs", env={"PYTHONPATH": str(tmp_path)})
    assert worker.wait() == code
    assert says in worker.log


@pytest.mark.one_server
@pytest.mark.parametrize(
    "silence",
    [
        "logging.config.dictConfig({'version': 1})",
        "logging.disable(logging.CRITICAL)",
        "logging.config.dictConfig({'version': 1, 'loggers': {'jobq': {'handlers': [], 'level': 'CRITICAL'}}})",
        "logging.basicConfig(filename=os.devnull)",
    ],
    ids=["disabled", "all", "jobq", "file"],
)
@pytest.mark.parametrize(
    ("then", "says"), [("1 / 0", "ZeroDivisionError"), ("", "no @job is decl")]
)
def test_error_of_the_start_reaches_stderr_whatever_logging_does(
    start, tmp_path, silence, then, says
):
    (tmp_path / "bad_jobs.py").write_text(f"import logging.config, os\n{silence}\n{then}\n")
    worker = start(module="bad_jobs", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert worker.wait() == 10
    assert worker.log.count(says) == 1


@pytest.mark.one_server
def test_thread_at_import_is_warned_of_when_threads_are_allowed(start, tmp_path, send, ledger):
    (tmp_path / "threaded_jobs.py").write_text(
        f"from tests.lifecycle import jobs_at_work\n{THREAD}"
    )
    worker = start(
        "--processes", "1", "--allow-threads", module="threaded_jobs", env={"PYTHONPATH": str(tmp_path)}
    )  # fmt: skip
    send("quick", "a")
    until(lambda: ledger.lines("end", "a"))
    assert worker.stop() == 0
    assert (
        "a thread is still running after the modules were loaded: poller (threading.Event.wait)"
        in worker.log
    )
    assert "stays locked" in worker.log


@pytest.mark.one_server
@pytest.mark.skipif(sys.platform != "linux", reason="it needs /proc")
def test_connections_opened_at_import_are_named(start, tmp_path, send, ledger):
    (tmp_path / "connected_jobs.py").write_text(CONNECTED)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        env = {
            "PYTHONPATH": str(tmp_path), "LISTENER": str(port), "DATABASE": str(tmp_path / "shop.db"),
        }  # fmt: skip
        worker = start("--processes", "1", module="connected_jobs", env=env)
        send("quick", "a")
        until(lambda: ledger.lines("end", "a"))
    assert worker.stop() == 0
    what = f"SQLite database {tmp_path}/shop.db, connection to 127.0.0.1:{port};"
    assert f"are shared by all children: {what}" in worker.log


@pytest.mark.one_server
def test_worker_needs_no_temporary_folder(start, tmp_path, send, ledger):
    worker = start("--processes", "1", env={"TMPDIR": "/proc", "HOME": "/proc"})
    send("quick", "a")
    until(lambda: ledger.lines("end", "a"))
    worker.send(signal.SIGTTIN)
    until(lambda: "jobs ended" in worker.log)
    assert worker.stop() == 0


@pytest.mark.one_server
def test_worker_runs_jobs_and_replaces_a_killed_child_when_shared_memory_is_read_only(
    start, send, ledger
):
    worker = start("--processes", "1", module="tests.lifecycle.jobs_without_semaphores")
    send("gated", "victim")
    [victim] = until(lambda: ledger.lines("start"))
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: ledger.lines("start")[1:])
    ledger.gate("victim").touch()
    until(lambda: ledger.lines("end"))
    assert worker.stop() == 0


@pytest.mark.one_server
def test_second_worker_of_a_name_has_one_of_its_own_and_orders_reach_both(start, client):
    first = start("--processes", "1", "--name", "web", "--lease", "3s")
    until(lambda: [one.pid for one in presence.workers(client)] == [first.pid])
    second = start("--processes", "1", "--name", "web", "--lease", "3s")

    def seen():
        entries = presence.workers(client)
        return len(entries) == 2 and all(one.started_at for one in entries) and entries

    both = until(seen)
    assert {one.pid for one in both} == {first.pid, second.pid}
    until(lambda: f"this worker is shown as {both[1].name}" in " ".join(second.log.split()))
    sent = {
        name: orders.send(client, entry, "drain", by="anna")
        for name, entry in presence.workers_named(client, ["web"]).items()
    }
    assert sent.keys() == {"web", both[1].name}
    assert [worker.wait() for worker in (first, second)] == [0, 0]


def test_missing_module_is_a_wrong_option(start):
    worker = start(module="no_such_jobs")
    assert worker.wait() == 2
    assert "check --import" in worker.log


def test_child_that_cannot_start_stops_the_worker(server, client, tmp_path):
    script = tmp_path / "hooked.py"
    script.write_text(HOOKED)
    ran = subprocess.run(
        [sys.executable, str(script), server.url], capture_output=True, text=True, timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.returncode == 11
    assert "no licence" in ran.stderr
