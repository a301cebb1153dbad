"""A worker that is process 1, as in a container: the kernel keeps signals from it that it doesn't handle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests import tools

from .conftest import DEADLINE_S, ROOT, until

pytestmark = [pytest.mark.real_process, pytest.mark.one_server]
SLOW = """
import os, threading
from jobq import job

@job(queue="low")
def work() -> None: ...

open(os.environ["IMPORTING"], "w").close()
threading.Event().wait()
"""


def test_worker_as_first_process_ends_at_term_when_it_still_imports(
    server: Any, queue: Any, tmp_path: Any
) -> None:
    unshare = shutil.which("unshare")
    command = [str(unshare), "--pid", "--fork", "--kill-child"]
    if unshare is None or subprocess.run([*command, "true"], check=False).returncode:
        tools.not_run("not run: needs unshare, and the right to use it", packaged=False)
    (tmp_path / "slow_jobs.py").write_text(SLOW)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "SENTRY"))}
    path = os.pathsep.join([str(tmp_path), kept.get("PYTHONPATH", "")])
    importing = tmp_path / "importing"
    queue.enqueue(b'{"job":"slow_jobs.work","v":1}', mid="m")
    outer = subprocess.Popen(
        [*command, sys.executable, "-m", "jobq", "worker", "--url", server.url, "--import", "slow_jobs"],
        cwd=ROOT, env={**kept, "PYTHONPATH": path, "IMPORTING": str(importing)},
    )  # fmt: skip
    try:
        until(importing.exists, "it doesn't import")
        [first] = psutil.Process(outer.pid).children()
        first.send_signal(signal.SIGTERM)
        assert outer.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert queue.status("m").word == "queued"
    finally:
        outer.kill()
        outer.wait()
