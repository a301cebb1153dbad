"""`jobq worker --reload`: another version of a file runs without a restart by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobq.jobs.codec import encode
from jobq.queue.queue import Queue

from .conftest import DEADLINE_S, until


@pytest.mark.one_server
def test_a_changed_file_runs_and_a_broken_one_is_waited_for(
    server: Any, queue: Queue, tmp_path: Path
):
    source, said, log = tmp_path / "app_jobs.py", tmp_path / "said", tmp_path / "log"

    def write(version: str) -> None:
        source.write_text(
            "from jobq import job\n\n"
            '@job(queue="low", name="say")\n'
            "def say():\n"
            f'    with open({str(said)!r}, "a") as file:\n'
            f"        file.write({version!r})\n"
        )

    def runs(version: str) -> None:
        queue.enqueue(encode("say"))
        until(lambda: said.exists() and said.read_text().endswith(version), version)

    write("one")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "SENTRY"))}
    command = [sys.executable, "-m", "jobq", "worker", "--url", server.url, "--import", "app_jobs"]
    with log.open("wb") as file:
        worker = subprocess.Popen(
            [*command, "--processes", "1", "--reload"], cwd=tmp_path, stdout=file, stderr=file,
            start_new_session=True, env={**kept, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    try:
        runs("one")
        write("second")
        until(lambda: log.read_text().count(" starts 1 child") == 2, "no second start")
        runs("second")
        source.write_text("def broken(:\n")
        until(lambda: "waiting for a source file to change" in log.read_text(), "no failed start")
        write("the third")
        until(lambda: log.read_text().count(" starts 1 child") == 3, "no third start")
        runs("the third")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_S) == 0
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait(DEADLINE_S)
