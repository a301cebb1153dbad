"""The pipe to which a worker logs is not read, for example because a log collector hangs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from .conftest import DEADLINE_S, ROOT, until

pytestmark = [pytest.mark.real_process, pytest.mark.one_server]
JOBS = """
import logging
from jobq import job
{setup}
@job(queue="low")
def chatty() -> None:
    logging.getLogger("app").warning("y" * 2000)
"""


@pytest.mark.parametrize(
    "setup",
    ["", "import sys; logging.basicConfig(stream=sys.stdout)"],
    ids=["jobq's", "the application's"],
)
def test_worker_runs_jobs_and_hears_term_when_nobody_reads_its_log(
    server: Any, queue: Any, tmp_path: Any, setup: str
) -> None:
    (tmp_path / "chatty_jobs.py").write_text(JOBS.format(setup=setup))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "SENTRY"))}
    path = os.pathsep.join([str(tmp_path), kept.get("PYTHONPATH", "")])
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    queue.enqueue_many([b'{"job":"chatty_jobs.chatty","v":1}'] * 50)
    worker = subprocess.Popen(
        [
            sys.executable, "-m", "jobq", "worker", "--url", server.url, "--queues", "low", "--processes", "1",
            "--import", "chatty_jobs",
        ],
        cwd=ROOT, env={**kept, "PYTHONPATH": path}, stdout=writing, stderr=writing,
    )  # fmt: skip
    os.close(writing)
    try:
        until(
            lambda: queue.admin.counts().ready == 0 and not queue.admin.counts().locked, "jobs wait"
        )
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_S) == 0
        assert not queue.admin.dead()
    finally:
        worker.kill()
        worker.wait()
        os.close(reading)
