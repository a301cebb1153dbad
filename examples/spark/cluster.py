"""Start a standalone Spark cluster on this machine, with a master and two workers.

python examples/spark/cluster.py          prints the master's URL; Ctrl-C ends it
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import IO

import pyspark

from jobq.pipeline.environment import spark_variables

HOST = "127.0.0.1"
PROGRAM = Path(pyspark.__file__).parent / "bin" / "spark-class"
MASTER = (
    "org.apache.spark.deploy.master.Master",
    "--host",
    HOST,
    "--port",
    "0",
    "--webui-port",
    "0",
)
WORKER = ("org.apache.spark.deploy.worker.Worker", "--host", HOST, "--webui-port", "0")
#: A small heap is enough, because executors run in their own processes.
SMALL = {
    "SPARK_DAEMON_MEMORY": "128m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@contextmanager
def cluster(workers: int = 2, memory: str = "1g") -> Iterator[str]:
    """Start a master, and workers with one core and `memory` each; yield the master's URL."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        url = stack.enter_context(_started(MASTER, r"Starting Spark master at (spark://\S+)"))
        for number in range(workers):
            options = ("--cores", "1", "--memory", memory, "--work-dir", f"{folder}/{number}", url)
            stack.enter_context(
                _started((*WORKER, *options), r"Successfully registered with (\S+)")
            )
        yield url


@contextmanager
def _started(command: tuple[str, ...], sign: str) -> Iterator[str]:
    """Start a daemon, wait for a log line that matches `sign`, and yield the matched group."""
    process = subprocess.Popen(
        [str(PROGRAM), *command], env={**os.environ, **SMALL, **spark_variables()},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    # Read the log, because a daemon blocks when the pipe is full.
    reading = Thread(target=_read, args=(process.stderr,), daemon=True)
    try:
        told = _said(process.stderr, sign)
        reading.start()
        yield told
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        if reading.is_alive():
            # The daemon's children may keep the pipe open, and closing it would wait for them.
            reading.join(10)
        if not reading.is_alive():
            process.stderr.close()


def _read(log: IO[str]) -> None:
    for _ in log:
        pass


def _said(log: IO[str], sign: str) -> str:
    before = []
    for line in log:
        match = re.search(sign, line)
        if match:
            return match[1]
        before.append(line)
    raise RuntimeError("it ended before it was ready:\n" + "".join(before[-20:]))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with cluster() as address:
        print(address, flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            sys.exit()
