"""What keeps a worker from starting has an exit code and a sentence of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .conftest import ROOT

#: Of this folder, these workers are started as users start them.
pytestmark = pytest.mark.real_process

THREAD = """
import threading
threading.Thread(target=threading.Event().wait, name="poller", daemon=True).start()
"""
HOOKED = """
import sys
from jobq.config import ServerSettings, WorkerSettings
from jobq.client.connection import connect
from jobq.jobs.registry import Registry
from jobq.worker.child import Hooks
from jobq.worker.run import run_worker

def fail():
    raise RuntimeError("no licence")

from jobq.jobs.registry import job

registry = Registry()
job(name="a", registry=registry)(lambda: None)
client = connect(sys.argv[1])
sys.exit(run_worker(WorkerSettings(processes=2), client, registry, hooks=Hooks(start=fail)))
"""


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("import nowhere_to_be_found", 10, "No module named 'nowhere_to_be_found'"),
        ("1 / 0", 10, "ZeroDivisionError"),
        (THREAD, 10, "poller"),
        ("", 10, "no job is registered"),
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
@pytest.mark.parametrize(("then", "says"), [("1 / 0", "ZeroDivisionError"), ("", "no job is regi")])
def test_error_of_the_start_reaches_stderr_whatever_logging_does(
    start, tmp_path, silence, then, says
):
    (tmp_path / "bad_jobs.py").write_text(f"import logging.config, os\n{silence}\n{then}\n")
    worker = start(module="bad_jobs", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert worker.wait() == 10
    assert worker.log.count(says) == 1


def test_missing_module_is_a_wrong_option(start):
    worker = start(module="no_such_jobs")
    assert worker.wait() == 2
    assert "check --import" in worker.log


def test_child_that_cannot_start_stops_the_worker(server, client, tmp_path):
    script = tmp_path / "hooked.py"
    script.write_text(HOOKED)
    ran = subprocess.run(
        [sys.executable, str(script), server.url], capture_output=True, text=True, timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.returncode == 11
    assert "no licence" in ran.stderr
